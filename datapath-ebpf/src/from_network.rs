//! What the VPC delivers.

use datapath_common::abi::{AddressEntry, DestinationClass, FlowKey, PodTuple};
use datapath_common::fault::Fault;
use datapath_common::headers::{Ethernet, ether_type, protocol};
use datapath_common::masquerade::Opening;
use datapath_common::masquerade::PoolPolicy;
use datapath_common::outcome::{DropReason, Verdict};

use crate::deliver;
use crate::egress;
use crate::family::{Ip, Piece, V4, V6};
use crate::fault;
use crate::fragment;
use crate::icmp_error;
use crate::maps;
use crate::mark::Mark;
use crate::nat::{self, Inside, PRIMARY, Sender, Side as Direction, Tables};
use crate::packet::Packet;
use crate::rewrite::{Side, rewrite};
use crate::settings;
use crate::transport::{self, Ports, Transport};
use crate::way::{self, Way};
use crate::work;

/// Decides on a frame from an ENI.
#[inline(always)]
pub(crate) fn run(packet: &mut Packet) -> Result<Verdict, DropReason> {
    // Promiscuous mode brings others' frames; a VLAN tag makes it another network's.
    if !packet.is_for_host() || packet.has_vlan_tag() {
        return Ok(Verdict::ForeignFrame);
    }
    match packet.header::<Ethernet>(0)?.ether_type.get() {
        ether_type::IPV4 => ip::<V4>(packet),
        ether_type::IPV6 => ip::<V6>(packet),
        _ => Ok(Verdict::ForeignFrame),
    }
}

/// Decides on an IP packet from an ENI.
#[inline(always)]
fn ip<F: Tables>(packet: &mut Packet) -> Result<Verdict, DropReason> {
    let ip = work::keep(F::parse(packet)?)?;
    if ip.destination.is_multicast_or_broadcast() {
        return Ok(to_stack(packet, Verdict::Multicast));
    }
    // No map holds a link-local IPv6 address.
    if ip.destination.is_v6_link_local() {
        return Ok(to_stack(packet, Verdict::NotForPod));
    }
    match maps::address(ip.destination) {
        Some(entry) if entry.is_endpoint() => to_endpoint::<F>(packet, ip, entry),
        Some(entry) if entry.is_translation() => answer::<F>(packet, ip, entry.eni()),
        Some(_host) => Ok(to_stack(packet, Verdict::NotForPod)),
        None if maps::destination(ip.destination).contains(DestinationClass::BLOCK) => {
            Err(DropReason::NoEndpoint)
        }
        None => Ok(to_stack(packet, Verdict::NotForPod)),
    }
}

/// Delivers to a pod what its owner ENI received. The cloud delivers nothing for the pod by
/// another one.
#[inline(always)]
fn to_endpoint<F: Tables>(
    packet: &mut Packet,
    ip: &Ip,
    endpoint: &AddressEntry,
) -> Result<Verdict, DropReason> {
    let owner = endpoint.eni_ifindex();
    // Nobody can say whether this is the owner. It is not `WrongEni`, which speaks of a fault
    // outside the node.
    if owner == 0 {
        return Err(DropReason::EniNotReady);
    }
    if owner != packet.ifindex() && !fault::has(Fault::AnyEni) {
        return Err(DropReason::WrongEni);
    }
    let mark = ingress_mark(endpoint.eni());
    match way::of::<F>(packet, endpoint, Direction::Outside)? {
        Way::Direct => {}
        Way::Stack(_) => {
            packet.set_mark(mark);
            return Ok(Verdict::StackFlow);
        }
        Way::Reordered => {
            // The first piece has the ports: its flow is opened from the outside as any other.
            inbound::<F>(packet, ip, endpoint)?;
            packet.set_mark(mark.exception());
            return Ok(Verdict::Reordered);
        }
    }
    inbound::<F>(packet, ip, endpoint)?;
    into_pod::<F>(packet, ip, endpoint, endpoint.eni(), Arrival::Own)
}

/// How a packet that is for a pod came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// With the pod's own address.
    Own,
    /// With a translation address.
    Translated,
    /// With that, and of a flow that takes the stack.
    OfStack,
}

impl Arrival {
    /// That of an answer to a translated flow.
    #[inline(always)]
    fn of(inside: Inside) -> Self {
        if inside.stack && settings::notes_stack() {
            Self::OfStack
        } else {
            Self::Translated
        }
    }
}

/// Delivers to a pod, or hands to the stack what cannot be, or all where that is the way.
#[inline(always)]
fn into_pod<F: Tables>(
    packet: &mut Packet,
    ip: &Ip,
    endpoint: &AddressEntry,
    eni: u8,
    arrival: Arrival,
) -> Result<Verdict, DropReason> {
    if deliver::is_via_stack(endpoint) {
        packet.set_mark(ingress_mark(eni));
        return Ok(match arrival {
            Arrival::Own => Verdict::Stack,
            Arrival::Translated | Arrival::OfStack => Verdict::StackReturned,
        });
    }
    if matches!(arrival, Arrival::OfStack) {
        packet.set_mark(ingress_mark(eni));
        return Ok(Verdict::StackFlowReturned);
    }
    if let Some(exception) = deliver::exception(packet, ip, endpoint.mtu())? {
        packet.set_mark(ingress_mark(eni).exception());
        return Ok(exception);
    }
    deliver::to_endpoint::<F>(packet, endpoint)?;
    Ok(match arrival {
        Arrival::Own => Verdict::Local,
        Arrival::Translated | Arrival::OfStack => Verdict::Returned,
    })
}

/// Notes what is opened from a source that the pod's own packets to it would be translated for,
/// so that the answers are not. TCP is noted when the pod accepts: a scan leaves nothing behind.
#[inline(always)]
fn inbound<F: Tables>(
    packet: &mut Packet,
    ip: &Ip,
    endpoint: &AddressEntry,
) -> Result<(), DropReason> {
    if !F::is_masqueraded() || !matches!(endpoint.pool(), PoolPolicy::Masquerade) {
        return Ok(());
    }
    let is_tcp = ip.protocol == protocol::TCP;
    let ports = if is_tcp {
        last_word(packet, ip)
    } else {
        opening::<F>(packet, ip)
    };
    let Some(ports) = ports else {
        return Ok(());
    };
    // One tuple for both, and on no longer a stack than old kernels allow.
    let tuple = PodTuple::new(
        ports.protocol,
        ip.destination,
        ports.destination,
        ip.source,
        ports.source,
    );
    let sender = Sender {
        endpoint: endpoint.identity(),
        policy: endpoint.eni(),
        owner: endpoint.eni(),
    };
    if is_tcp {
        nat::see_inbound::<F>(&tuple, sender, ports.tcp_flags)
    } else {
        nat::note_inbound::<F>(&tuple, sender, 0)
    }
}

/// The ports of a packet from the outside that opens a flow.
#[inline(always)]
fn opening<F: Tables>(packet: &mut Packet, ip: &Ip) -> Option<Ports> {
    let may_open = !fault::has(Fault::InboundIgnored)
        && matches!(ip.fragment, Piece::Whole | Piece::First)
        && egress::is_translated::<F>(ip.source);
    if !may_open {
        return None;
    }
    match transport::read::<F>(packet) {
        Ok(Transport::Ports(ports)) if matches!(ports.opening, Opening::Opens) => Some(ports),
        _ => None,
    }
}

/// The ports of a TCP segment that says something of its connection which no answer of the pod
/// does. A segment with data has one; without it may have none: the handshake's last, after which
/// both sides may be silent for long, and the last of all.
#[inline(always)]
fn last_word(packet: &Packet, ip: &Ip) -> Option<Ports> {
    let is_whole = matches!(ip.fragment, Piece::Whole) && !fault::has(Fault::SegmentIgnored);
    is_whole.then(|| transport::last_word(packet, ip)).flatten()
}

/// Translates back what answers a translated flow; all else is for the host's own sockets.
#[inline(always)]
fn answer<F: Tables>(packet: &mut Packet, ip: &Ip, eni: u8) -> Result<Verdict, DropReason> {
    // The cloud delivers to the ENI that has the address.
    if maps::eni(eni).is_none_or(|entry| entry.ifindex() != packet.ifindex()) {
        return Ok(to_stack(packet, Verdict::NotForPod));
    }
    let ports = match ip.fragment {
        Piece::Whole | Piece::First => match transport::read::<F>(packet) {
            Ok(Transport::Ports(ports)) => ports,
            Ok(Transport::Error) => return error::<F>(packet, ip, eni),
            Ok(Transport::None) | Err(_) => return Ok(to_stack(packet, Verdict::NotForPod)),
        },
        Piece::Later => match fragment::recall(ip) {
            Some(ports) => ports,
            None => return Ok(to_stack(packet, Verdict::NotForPod)),
        },
    };
    if !nat::in_range(ports.destination) {
        return Ok(to_stack(packet, Verdict::NotForPod));
    }
    let (remote, port) = (ports.source, ports.destination);
    let key = FlowKey::new(eni, ports.protocol, ip.source, remote, port);
    let Some(inside) = nat::answered::<F>(&key, ports.tcp_flags) else {
        return Ok(to_stack(packet, Verdict::NotForPod));
    };
    fragment::note(ip, &ports)?;
    if inside.is_host() {
        if inside.port != port {
            let address = ip.destination;
            rewrite::<F>(packet, &ports, Side::Destination, address, inside.port)?;
        }
        return Ok(to_stack(packet, Verdict::HostReturned));
    }
    let endpoint = endpoint(inside)?;
    rewrite::<F>(packet, &ports, Side::Destination, inside.pod, inside.port)?;
    into_pod::<F>(packet, ip, endpoint, eni, Arrival::of(inside))
}

/// Translates back an ICMP error about a translated flow: the packet that it quotes is one that we
/// sent.
#[inline(always)]
fn error<F: Tables>(packet: &mut Packet, ip: &Ip, eni: u8) -> Result<Verdict, DropReason> {
    let Ok(Some(inner)) = icmp_error::inner::<F>(packet) else {
        return Ok(to_stack(packet, Verdict::NotForPod));
    };
    if inner.source != ip.destination || !nat::in_range(inner.source_port) {
        return Ok(to_stack(packet, Verdict::NotForPod));
    }
    let key = FlowKey::new(
        eni,
        inner.protocol,
        inner.destination,
        inner.destination_port,
        inner.source_port,
    );
    let Some(inside) = nat::peek_answered::<F>(&key) else {
        return Ok(to_stack(packet, Verdict::NotForPod));
    };
    if inside.is_host() {
        if inside.port != inner.source_port {
            let (address, port) = (ip.destination, inside.port);
            icmp_error::rewrite_error::<F>(packet, Side::Source, address, port, None)?;
        }
        return Ok(to_stack(packet, Verdict::HostReturned));
    }
    let endpoint = endpoint(inside)?;
    let (side, port, outer) = (Side::Source, inside.port, Some(Side::Destination));
    icmp_error::rewrite_error::<F>(packet, side, inside.pod, port, outer)?;
    into_pod::<F>(packet, ip, endpoint, eni, Arrival::of(inside))
}

/// The endpoint whose flow it is. The next one with the address has no part in it.
#[inline(always)]
fn endpoint(inside: Inside) -> Result<&'static AddressEntry, DropReason> {
    maps::address(inside.pod)
        .filter(|entry| entry.is_endpoint())
        .filter(|entry| entry.identity() == inside.endpoint || fault::has(Fault::FormerPodsFlow))
        .ok_or(DropReason::NoEndpoint)
}

/// Hands a packet to the stack; on a secondary ENI with that ENI's mark, so that what the node
/// forwards or answers leaves the way it came.
#[inline(always)]
fn to_stack(packet: &mut Packet, verdict: Verdict) -> Verdict {
    let device = packet.ifindex();
    // The primary, which carries most of the host's traffic, pays no hash look-up.
    let is_primary = maps::eni(PRIMARY).is_some_and(|primary| primary.ifindex() == device);
    if !is_primary && let Some(number) = maps::secondary_eni(device) {
        packet.set_mark(ingress_mark(number));
    }
    verdict
}

/// The mark of what an ENI received: the primary's traffic stays unmarked and takes the host's own
/// routes.
#[inline(always)]
fn ingress_mark(number: u8) -> Mark {
    if number == PRIMARY {
        Mark::NONE
    } else {
        Mark::eni(number)
    }
}
