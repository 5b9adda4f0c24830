//! Which way a packet of a pod takes, or one to a pod: past the host's stack, or through it, where
//! service NAT may have translated its flow.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::AddressEntry;
use datapath_common::fault::Fault;
use datapath_common::masquerade::Opening;
use datapath_common::outcome::{DropReason, Verdict};

use crate::family::{Ip, Piece};
use crate::fault;
use crate::fragment;
use crate::icmp_error;
use crate::maps;
use crate::mark::Mark;
use crate::nat::{self, Came, Sender, Side};
use crate::packet::Packet;
use crate::settings;
use crate::transport::{self, Ports, Transport};
use crate::work::{self, reason, work};

/// Which way a packet takes.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// Past the host's stack.
    Direct,
    /// Through it, as its flow.
    Stack(Came),
    /// Through it, which is to put the pieces of a datagram in order.
    Reordered,
}

/// The way of a packet of a pod, or of one to it, that is not translated. The IP header is the one
/// that is kept.
#[inline(always)]
pub(crate) fn of(packet: &Packet, pod: &AddressEntry, side: Side) -> Result<Way, DropReason> {
    if !settings::notes_stack() {
        return Ok(Way::Direct);
    }
    nat::ask_for(work()?, sender(pod));
    match way(packet.skb(), side.to_register()) {
        DIRECT => Ok(Way::Direct),
        REORDERED => Ok(Way::Reordered),
        ERROR => Ok(of_error(packet, side)),
        ELSEWHERE => Ok(Way::Stack(Came::Elsewhere)),
        number if number >= STACK => Ok(Way::Stack(Came::Eni((number & 0xff) as u8))),
        number => Err(reason(number)),
    }
}

// Answers of `way`; below them are the numbers of drop reasons.
const DIRECT: u32 = 0x100;
const REORDERED: u32 = 0x101;
const ERROR: u32 = 0x102;
const ELSEWHERE: u32 = 0x103;
/// And the number of the ENI.
const STACK: u32 = 0x200;

/// The way of a packet with ports, of the sender that was written.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn way(skb: *mut __sk_buff, side: u32) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    match decide(&mut packet, Side::from_register(side)) {
        Ok(number) => number,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn decide(packet: &mut Packet, side: Side) -> Result<u32, DropReason> {
    let ip = work::read(work()?.ip());
    if fragment::is_reordered(ip) {
        return Ok(REORDERED);
    }
    let ports = match ip.fragment {
        Piece::Whole | Piece::First => match transport::read_here(packet, ip) {
            Ok(Transport::Ports(ports)) => ports,
            // Service NAT does not translate packets without ports.
            other => {
                fragment::note_portless(ip)?;
                let is_error = matches!(other, Ok(Transport::Error));
                return Ok(if is_error { ERROR } else { DIRECT });
            }
        },
        Piece::Later => match fragment::recall() {
            Some(ports) if fragment::is_portless(&ports) => return Ok(DIRECT),
            Some(ports) => ports,
            None => return fragment::reorder().map(|()| REORDERED),
        },
    };
    fragment::note(ip, &ports)?;
    match nat::stack_asked(ip, &ports, side) {
        Some(_) if fault::has(Fault::StackPassed) => Ok(DIRECT),
        Some(Came::Eni(eni)) => Ok(STACK | u32::from(eni)),
        Some(Came::Elsewhere) => Ok(ELSEWHERE),
        None if matches!(side, Side::Pod) && is_reused(ip, &ports) => Ok(ELSEWHERE),
        None => Ok(DIRECT),
    }
}

/// True if a pod's packet begins a flow to another pod of its node on ports that it has used
/// through a service. The other pod's replies would find the note of that use. So the flow takes
/// the stack from its beginning on, where netfilter distinguishes the two. From then on it has a
/// note of its own.
#[inline(always)]
fn is_reused(ip: &Ip, ports: &Ports) -> bool {
    if !matches!(ports.opening, Opening::Opens) || ports.is_past_syn() {
        return false;
    }
    let receiver = maps::address(&ip.destination).filter(|entry| entry.is_endpoint());
    receiver.is_some_and(|entry| nat::stack_of_receiver(entry.identity(), ip, ports))
}

/// The way of an ICMP error: that of the flow that it quotes.
#[inline(always)]
fn of_error(packet: &Packet, side: Side) -> Way {
    let Ok(Some(_inner)) = work().and_then(|work| icmp_error::inner(packet, work)) else {
        return Way::Direct;
    };
    match nat::stack_quoted(side) {
        Some(came) if !fault::has(Fault::StackErrorPassed) => Way::Stack(came),
        Some(_) | None => Way::Direct,
    }
}

impl Way {
    /// Hands what a pod sends to the stack, if that is its way. What the stack is to put in order
    /// gets the mark of the owner ENI.
    #[inline(always)]
    pub(crate) fn take(self, packet: &mut Packet, owner: u8) -> Option<Verdict> {
        match self {
            Self::Direct => None,
            Self::Stack(came) => {
                packet.set_mark(match came {
                    Came::Eni(_) | Came::Elsewhere if fault::has(Fault::StackMark) => {
                        Mark::eni(owner)
                    }
                    Came::Eni(eni) => Mark::eni(eni),
                    Came::Elsewhere => Mark::NONE,
                });
                Some(Verdict::StackFlow)
            }
            Self::Reordered => {
                packet.set_mark(Mark::eni(owner).exception());
                Some(Verdict::Reordered)
            }
        }
    }
}

#[inline(always)]
fn sender(pod: &AddressEntry) -> Sender {
    Sender {
        endpoint: pod.identity(),
        policy: pod.eni(),
        owner: pod.eni(),
    }
}
