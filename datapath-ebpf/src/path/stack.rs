//! The path of a packet of a pod, or of one to a pod: past the host's stack, or through it, where
//! service NAT may have translated its flow.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{AddressEntry, FragmentRing};
use datapath_common::masquerade::FlowRole;
use datapath_common::outcome::{DropReason, Verdict};

use crate::base::code::reason;
use crate::base::mark::Mark;
use crate::base::{maps, settings};
use crate::nat::{self, Direction, IngressEni};
use crate::packet::transport::{self, Transport};
use crate::packet::{Packet, fragment, icmp_error};
use crate::scratch::{self, FragmentKind, Ip, Ports, Sender, scratch};

/// The path of a packet.
#[derive(Clone, Copy)]
pub(crate) enum ForwardPath {
    /// Past the host's stack.
    Direct,
    /// Through it, as its flow.
    Stack(IngressEni),
    /// Through it, which is to put the pieces of a datagram in order.
    Reordered,
}

/// The path of a packet of a pod, or of one to it, that is not translated. The IP header is the one
/// that is kept.
#[inline(always)]
pub(crate) fn of(
    packet: &Packet,
    pod: &AddressEntry,
    side: Direction,
) -> Result<ForwardPath, DropReason> {
    if !settings::notes_stack() {
        return Ok(ForwardPath::Direct);
    }
    nat::ask_for(scratch()?, sender(pod));
    match way(packet.skb(), side.to_register()) {
        DIRECT => Ok(ForwardPath::Direct),
        REORDERED => Ok(ForwardPath::Reordered),
        ERROR => Ok(of_error(packet, side)),
        ELSEWHERE => Ok(ForwardPath::Stack(IngressEni::Elsewhere)),
        number if number >= STACK => Ok(ForwardPath::Stack(IngressEni::Eni((number & 0xff) as u8))),
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

/// The path of a packet with ports, of the sender that was written.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn way(skb: *mut __sk_buff, side: u32) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    match decide(&mut packet, Direction::from_register(side)) {
        Ok(number) => number,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn decide(packet: &mut Packet, side: Direction) -> Result<u32, DropReason> {
    let scratch = scratch()?;
    let ip = scratch::read(scratch.ip());
    if fragment::is_reordered(ip) {
        return Ok(REORDERED);
    }
    let endpoint = nat::asked_for(scratch).endpoint;
    let ring = match side {
        Direction::FromPod => FragmentRing::sent(endpoint),
        Direction::ToPod => FragmentRing::received(endpoint),
    };
    let ports = match ip.fragment {
        FragmentKind::Whole | FragmentKind::First => match transport::read_here(packet, ip) {
            Ok(Transport::Ports(ports)) => ports,
            // Service NAT does not translate packets without ports.
            other => {
                fragment::note_portless(ip, ring)?;
                let is_error = matches!(other, Ok(Transport::Error));
                return Ok(if is_error { ERROR } else { DIRECT });
            }
        },
        FragmentKind::Later => match fragment::recall() {
            Some(ports) if fragment::is_portless(&ports) => return Ok(DIRECT),
            Some(ports) => ports,
            None => return fragment::reorder(ring).map(|()| REORDERED),
        },
    };
    fragment::note(ip, &ports, ring)?;
    match nat::stack_asked(ip, &ports, side) {
        Some(IngressEni::Eni(eni)) => Ok(STACK | u32::from(eni)),
        Some(IngressEni::Elsewhere) => Ok(ELSEWHERE),
        None if matches!(side, Direction::FromPod) && is_reused(ip, &ports) => Ok(ELSEWHERE),
        None => Ok(DIRECT),
    }
}

/// True if a pod's packet begins a flow to another pod of its node on ports that it has used
/// through a service. The other pod's replies would find the note of that use. So the flow takes
/// the stack from its beginning on, where netfilter distinguishes the two. From then on it has a
/// note of its own.
#[inline(always)]
fn is_reused(ip: &Ip, ports: &Ports) -> bool {
    if !matches!(ports.role, FlowRole::New) || ports.is_past_syn() {
        return false;
    }
    let receiver = maps::address(&ip.destination).filter(|entry| entry.is_endpoint());
    receiver.is_some_and(|entry| nat::stack_of_receiver(entry.identity(), ip, ports))
}

/// The path of an ICMP error: that of the flow that it quotes.
#[inline(always)]
fn of_error(packet: &Packet, side: Direction) -> ForwardPath {
    let Ok(Some(_inner)) = scratch().and_then(|scratch| icmp_error::inner(packet, scratch)) else {
        return ForwardPath::Direct;
    };
    match nat::stack_quoted(side) {
        Some(ingress) => ForwardPath::Stack(ingress),
        None => ForwardPath::Direct,
    }
}

impl ForwardPath {
    /// Hands what a pod sends to the stack, if that is its path. What the stack is to put in order
    /// gets the mark of the owner ENI.
    #[inline(always)]
    pub(crate) fn take(self, packet: &mut Packet, owner: u8) -> Option<Verdict> {
        match self {
            Self::Direct => None,
            Self::Stack(ingress) => {
                packet.set_mark(match ingress {
                    IngressEni::Eni(eni) => Mark::eni(eni),
                    IngressEni::Elsewhere => Mark::NONE,
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
