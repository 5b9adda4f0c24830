//! Which way a packet of a pod takes, or one to a pod: past the host's stack, or through it, where
//! service NAT may have translated its flow.

use datapath_common::abi::{AddressEntry, PodTuple};
use datapath_common::fault::Fault;
use datapath_common::outcome::{DropReason, Verdict};

use crate::family::{Ip, Piece};
use crate::fault;
use crate::fragment;
use crate::icmp_error;
use crate::mark::Mark;
use crate::nat::{self, Sender, Side, Tables};
use crate::packet::Packet;
use crate::settings;
use crate::transport::{self, Ports, Transport};

/// Which way a packet takes.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// Past the host's stack.
    Direct,
    /// Through it, as its flow. The pod's packets get the mark of this ENI.
    Stack(u8),
    /// Through it, which is to put the pieces of a datagram in order.
    Reordered,
}

/// The way of a packet of a pod, or of one to it, that is not translated.
#[inline(always)]
pub(crate) fn of<F: Tables>(
    packet: &mut Packet,
    ip: &Ip,
    pod: &AddressEntry,
    side: Side,
) -> Result<Way, DropReason> {
    if !settings::notes_stack() {
        return Ok(Way::Direct);
    }
    let ports = match ip.fragment {
        Piece::Whole | Piece::First => match transport::read::<F>(packet, ip) {
            Ok(Transport::Ports(ports)) => ports,
            Ok(Transport::Error) => return Ok(of_error::<F>(packet, ip, pod, side)),
            // What has no ports service NAT does not translate.
            Ok(Transport::None) | Err(_) => return Ok(Way::Direct),
        },
        Piece::Later => match fragment::recall(ip) {
            Some(ports) => ports,
            None => return fragment::reorder(ip).map(|()| Way::Reordered),
        },
    };
    if fragment::is_reordered(ip) {
        return Ok(Way::Reordered);
    }
    fragment::note(ip, &ports)?;
    let flags = ports.tcp_flags;
    let eni = nat::stack_known(&tuple(ip, &ports, side), sender(pod), flags, side);
    Ok(if fault::has(Fault::StackPassed) {
        Way::Direct
    } else {
        eni.map_or(Way::Direct, Way::Stack)
    })
}

/// The way of an ICMP error: that of the flow that it quotes. What a pod receives quotes what it has
/// sent, and the other way round.
#[inline(always)]
fn of_error<F: Tables>(packet: &Packet, ip: &Ip, pod: &AddressEntry, side: Side) -> Way {
    let Ok(Some(inner)) = icmp_error::inner::<F>(packet) else {
        return Way::Direct;
    };
    let (tuple, is_own) = match side {
        Side::Pod => (inner.answered(), inner.destination == ip.source),
        Side::Outside => (inner.sent(), inner.source == ip.destination),
    };
    if !is_own || fault::has(Fault::StackErrorPassed) {
        return Way::Direct;
    }
    nat::peek_stack(&tuple, sender(pod)).map_or(Way::Direct, Way::Stack)
}

impl Way {
    /// Hands what a pod sends to the stack, if that is its way. What the stack is to put in order
    /// gets the mark of the owner ENI.
    #[inline(always)]
    pub(crate) fn take(self, packet: &mut Packet, owner: u8) -> Option<Verdict> {
        match self {
            Self::Direct => None,
            Self::Stack(eni) => {
                let eni = if fault::has(Fault::StackMark) { owner } else { eni };
                packet.set_mark(Mark::eni(eni));
                Some(Verdict::StackFlow)
            }
            Self::Reordered => {
                packet.set_mark(Mark::eni(owner).exception());
                Some(Verdict::Reordered)
            }
        }
    }
}

/// The flow of a packet, as the pod sees it.
#[inline(always)]
fn tuple(ip: &Ip, ports: &Ports, side: Side) -> PodTuple {
    let (source, destination) = (
        (ip.source, ports.source),
        (ip.destination, ports.destination),
    );
    let (pod, remote) = match side {
        Side::Pod => (source, destination),
        Side::Outside => (destination, source),
    };
    PodTuple::new(ports.protocol, pod.0, pod.1, remote.0, remote.1)
}

#[inline(always)]
fn sender(pod: &AddressEntry) -> Sender {
    Sender {
        endpoint: pod.identity(),
        policy: pod.eni(),
        owner: pod.eni(),
    }
}
