//! What the stack sends to the VPC.
//!
//! Pods' packets come this way when the stack had to answer for them, fragment them or look at
//! their options; the host's own share the ENIs' addresses with translation, and so the ports.

use datapath_common::abi::{AddressEntry, DestinationClass, HOST, PodTuple};
use datapath_common::fault::Fault;
use datapath_common::headers::{Ethernet, ether_type};
use datapath_common::masquerade::Opening;
use datapath_common::outcome::{DropReason, Verdict};

use crate::egress::{self, Origin};
use crate::family::{Ip, Piece, V4, V6};
use crate::fault;
use crate::fragment;
use crate::icmp_error;
use crate::maps;
use crate::mark::Mark;
use crate::nat::{self, PRIMARY, Sender, Tables};
use crate::packet::Packet;
use crate::redirect;
use crate::rewrite::{Side, rewrite};
use crate::transport::{self, Ports, Transport};
use crate::work;

/// Decides on a frame that leaves by an ENI.
#[inline(always)]
pub(crate) fn run(packet: &mut Packet) -> Result<Verdict, DropReason> {
    if packet.has_vlan_tag() {
        return Ok(Verdict::FromHost);
    }
    match packet.header::<Ethernet>(0)?.ether_type.get() {
        ether_type::IPV4 => ip::<V4>(packet),
        ether_type::IPV6 => ip::<V6>(packet),
        _ => Ok(Verdict::FromHost),
    }
}

/// Decides on an IP packet that leaves by an ENI.
#[inline(always)]
fn ip<F: Tables>(packet: &mut Packet) -> Result<Verdict, DropReason> {
    // What the host makes up is its own business.
    let Ok(ip) = F::parse(packet) else {
        return Ok(Verdict::FromHost);
    };
    let ip = work::keep(ip)?;
    if ip.destination.is_multicast_or_broadcast() {
        return Ok(Verdict::FromHost);
    }
    // What no device received is the host's own, and pays for no look-up unless its port is in
    // our range. A fragment that the stack makes of an IPv6 packet has lost its device, but not
    // its mark (`ip6_copy_metadata` in `net/ipv6/ip6_output.c`).
    if packet.ingress_ifindex() == 0 && !packet.is_marked() {
        let verdict = host::<F>(packet, ip)?;
        if is_primarys_own::<F>(packet, ip) {
            return Ok(verdict);
        }
        return match maps::address(ip.source) {
            Some(source) => by_owner::<F>(packet, source, verdict),
            None => Ok(verdict),
        };
    }
    match maps::address(ip.source) {
        Some(source) if source.is_endpoint() => pod::<F>(packet, ip, source),
        Some(source) => {
            let verdict = host::<F>(packet, ip)?;
            by_owner::<F>(packet, source, verdict)
        }
        None if is_sent_back(packet, ip) => Err(DropReason::ForeignSource),
        None => Ok(Verdict::FromHost),
    }
}

/// Whether the stack sends a packet, of nobody's address here, by the secondary ENI that received it.
/// Its mark of that ENI, which is for answers, would lead it there whatever the host's routes say. The
/// primary's packets have no mark: there the host may be a router. For fragments see [`ip`].
#[inline(always)]
fn is_sent_back(packet: &Packet, ip: &Ip) -> bool {
    packet.is_marked()
        && match packet.ingress_ifindex() {
            0 => !matches!(ip.fragment, Piece::Whole),
            device => device == packet.ifindex(),
        }
        && !fault::has(Fault::SentBack)
}

/// Whether a packet has the primary's address and leaves by it, as most of the host's do: what needs
/// no look-up to be known as right.
#[inline(always)]
fn is_primarys_own<F: Tables>(packet: &Packet, ip: &Ip) -> bool {
    maps::eni(PRIMARY).is_some_and(|primary| {
        primary.ifindex() == packet.ifindex() && F::addresses(primary).snat == ip.source
    })
}

/// Sends out of an ENI what carries its translation address. Netfilter gives the answer of a pod or
/// of a socket of the host the address that was asked (a node port's), after the stack has chosen the
/// ENI that owns the answer's own.
#[inline(always)]
fn by_owner<F: Tables>(
    packet: &mut Packet,
    source: &AddressEntry,
    verdict: Verdict,
) -> Result<Verdict, DropReason> {
    if !source.is_translation() || fault::has(Fault::HostNotMoved) {
        return Ok(verdict);
    }
    match maps::eni(source.eni()) {
        Some(owner) if owner.ifindex() != packet.ifindex() => {
            packet.set_mark(Mark::done());
            redirect::to_neighbour(owner.ifindex(), &F::next_hop(owner))?;
            Ok(Verdict::HostMoved)
        }
        Some(_) | None => Ok(verdict),
    }
}

/// Decides on a pod's packet that the stack carried.
#[inline(always)]
fn pod<F: Tables>(
    packet: &mut Packet,
    ip: &Ip,
    source: &AddressEntry,
) -> Result<Verdict, DropReason> {
    let class = maps::destination(ip.destination);
    // The cloud has no use for a service's address.
    if class.contains(DestinationClass::SERVICE) {
        return Err(DropReason::ServiceNotTranslated);
    }
    let owner = maps::eni(source.eni()).ok_or(DropReason::EniNotReady)?;
    egress::leave::<F>(packet, ip, source, owner, class, Origin::Stack)
}

/// Decides on a packet of the host, or one that netfilter gave an address of the host.
#[inline(always)]
fn host<F: Tables>(packet: &mut Packet, ip: &Ip) -> Result<Verdict, DropReason> {
    let ports = match ip.fragment {
        Piece::Whole | Piece::First => match transport::read::<F>(packet) {
            Ok(Transport::Ports(ports)) => ports,
            Ok(Transport::Error) => return host_error::<F>(packet),
            Ok(Transport::None) | Err(_) => return Ok(Verdict::FromHost),
        },
        Piece::Later => match fragment::recall(ip) {
            Some(ports) => ports,
            None => return Ok(Verdict::FromHost),
        },
    };
    if !nat::in_range(ports.source) || fault::has(Fault::HostIgnored) {
        return Ok(Verdict::FromHost);
    }
    match maps::address(ip.source) {
        Some(source) if source.is_translation() && may_collide::<F>(ip) => {
            claim::<F>(packet, ip, source.eni(), &ports)
        }
        Some(_) | None => Ok(Verdict::FromHost),
    }
}

/// Whether a pod's flow may have the port of a packet of the host. Towards an exempt destination
/// there are no such flows, unless it is exempt since they began; most of what the host sends within
/// the VPC (an overlay's packets, say) needs no place in the table for that.
#[inline(always)]
fn may_collide<F: Tables>(ip: &Ip) -> bool {
    egress::is_translated::<F>(ip.destination)
        || nat::may_be_exempt()
        || fault::has(Fault::HostExempt)
}

/// Holds the host's port against pods' flows, or gives its packet another port if one of these has
/// it.
#[inline(always)]
fn claim<F: Tables>(
    packet: &mut Packet,
    ip: &Ip,
    eni: u8,
    ports: &Ports,
) -> Result<Verdict, DropReason> {
    let tuple = PodTuple::new(
        ports.protocol,
        ip.source,
        ports.source,
        ip.destination,
        ports.destination,
    );
    fragment::note(ip, ports)?;
    let sender = Sender {
        endpoint: HOST,
        policy: eni,
        owner: eni,
    };
    let flags = ports.tcp_flags;
    let known = nat::known::<F>(&tuple, sender, flags)
        .or_else(|| nat::known_elsewhere::<F>(&tuple, sender, flags));
    let mapping = match known {
        Some(mapping) => mapping,
        // An answer comes from a socket that is bound to the port, which no pod's flow gets then.
        None if !matches!(ports.opening, Opening::Opens) => return Ok(Verdict::FromHost),
        None => match nat::open::<F>(packet, &tuple, sender, ip.source, flags) {
            Ok(mapping) => mapping,
            // No room to claim the port, but nobody has it: the host loses nothing to pods.
            Err(_full) if nat::is_own_port_free::<F>() => return Ok(Verdict::FromHost),
            Err(reason) => return Err(reason),
        },
    };
    if mapping.port == ports.source || fault::has(Fault::HostPortKept) {
        return Ok(Verdict::HostClaimed);
    }
    rewrite::<F>(packet, ports, Side::Source, ip.source, mapping.port)?;
    Ok(Verdict::HostTranslated)
}

/// Decides on an ICMP error of the host. About a translated flow, it quotes a packet that we have
/// translated back; the receiver knows the flow by its translation.
#[inline(always)]
fn host_error<F: Tables>(packet: &mut Packet) -> Result<Verdict, DropReason> {
    let Ok(Some(inner)) = icmp_error::inner::<F>(packet) else {
        return Ok(Verdict::FromHost);
    };
    let Some(pod) = maps::address(inner.destination).filter(|entry| entry.is_endpoint()) else {
        return Ok(Verdict::FromHost);
    };
    let Some(owner) = maps::eni(pod.eni()) else {
        return Ok(Verdict::FromHost);
    };
    let tuple = inner.answered();
    let sender = Sender {
        endpoint: pod.identity(),
        policy: F::addresses(owner).external,
        owner: pod.eni(),
    };
    let Some(mapping) = nat::peek::<F>(&tuple, sender) else {
        return Ok(Verdict::FromHost);
    };
    let (_, snat) = egress::exit::<F>(mapping.eni)?;
    let (side, port) = (Side::Destination, mapping.port);
    icmp_error::rewrite_error::<F>(packet, side, snat, port, None)?;
    Ok(Verdict::HostTranslated)
}
