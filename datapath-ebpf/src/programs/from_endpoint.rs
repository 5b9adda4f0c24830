//! Packets that a pod sends.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{Addr, AddressEntry, DestinationClass};
use datapath_common::headers::{Ethernet, ether_type};
use datapath_common::outcome::{DropReason, Verdict};

use super::step::Step;
use crate::base::code::Code;
use crate::base::maps;
use crate::base::mark::Mark;
use crate::nat::Direction;
use crate::packet::family::ROUTER_SOLICITATION;
use crate::packet::{IP_OFFSET, Packet, link_local};
use crate::path::deliver;
use crate::path::egress::{self, Origin};
use crate::path::stack::{self, ForwardPath};
use crate::scratch::{Ip, Version};

/// Decides on a frame from a pod.
#[inline(always)]
pub(crate) fn run(packet: &mut Packet) -> Result<Code, DropReason> {
    // The kernel would strip a priority tag after this program, and forward an unchecked packet.
    if packet.has_vlan_tag() {
        return Err(DropReason::VlanTagged);
    }
    let number = packet.header::<Ethernet>(0)?.ether_type.get();
    if let Some(version) = Version::of_ether_type(number) {
        return Ok(ip(packet, version));
    }
    match number {
        ether_type::ARP => Ok(Code::from_register(arp_decided(packet.skb()))),
        ether_type::VLAN | ether_type::SERVICE_VLAN => Err(DropReason::VlanTagged),
        _ => Err(DropReason::NotIp),
    }
}

/// The number of the outcome of an ARP packet from a pod. A function of its own, to save stack in
/// its caller.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn arp_decided(skb: *mut __sk_buff) -> u32 {
    let packet = Packet::new(TcContext::new(skb));
    Code::of(arp(&packet)).to_register()
}

/// Decides on an ARP packet from a pod. The host's neighbour table, which is one for all
/// namespaces, gets an entry for the sender that an ARP packet names.
#[inline(always)]
fn arp(packet: &Packet) -> Result<Verdict, DropReason> {
    /// Offset of the sender's address: after five fields of 8 bytes in all and its MAC (RFC 826).
    const SENDER: usize = IP_OFFSET + 8 + 6;
    let sender: u32 = packet.copy(SENDER)?;
    // A probe has no sender (RFC 5227 section 2.1.1).
    if sender == 0 {
        return Ok(Verdict::Arp);
    }
    let entry = maps::address(&Addr::from_v4_word(sender));
    let is_own = entry.is_some_and(|entry| is_of(entry, packet));
    is_own
        .then_some(Verdict::Arp)
        .ok_or(DropReason::SpoofedSource)
}

/// Decides on an IP packet from a pod.
#[inline(always)]
fn ip(packet: &Packet, version: Version) -> Code {
    match from_pod(packet.skb(), version.to_register()) {
        Step::LEAVE => egress::leave(packet, Origin::Pod),
        number => Code::from_register(number),
    }
}

/// The number of the next step.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn from_pod(skb: *mut __sk_buff, version: u32) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    Step::to_number(decide(&mut packet, Version::from_register(version)))
}

/// Finds out where a packet goes; within the node, brings it there.
#[inline(always)]
fn decide(packet: &mut Packet, version: Version) -> Result<Step, DropReason> {
    let ip = version.parse(packet)?;
    let Some(source) = maps::address(&ip.source).filter(|entry| is_of(entry, packet)) else {
        return link_local_source(packet, ip).map(Step::Done);
    };
    let mark = Mark::eni(source.eni());
    if ip.destination.is_multicast_or_broadcast() {
        return Ok(to_stack(packet, mark, Verdict::Multicast));
    }
    if ip.destination.is_v6_link_local() {
        if !link_local::may_send_to(packet.ifindex()) {
            return Err(DropReason::LinkLocalLimit);
        }
        return Ok(to_stack(packet, mark, Verdict::LinkLocal));
    }
    if let Some(destination) = maps::address(&ip.destination) {
        // Netfilter may have put an address of the host in the place of a client's, whose answers
        // leave by the ENI that it came by.
        let path = stack::of(packet, source, Direction::FromPod)?;
        if let Some(verdict) = path.take(packet, source.eni()) {
            return Ok(Step::Done(verdict));
        }
        if !destination.is_endpoint() {
            return Ok(to_stack(packet, mark, Verdict::Host));
        }
        if deliver::is_via_stack(source) || deliver::is_via_stack(destination) {
            return Ok(to_stack(packet, mark, Verdict::Stack));
        }
        if let Some(verdict) = deliver::exception(packet, ip, destination.mtu())? {
            return Ok(to_stack(packet, mark.exception(), verdict));
        }
        deliver::to_endpoint(packet, ip, destination)?;
        return Ok(Step::Done(Verdict::Local));
    }
    let class = maps::destination(&ip.destination);
    if class.contains(DestinationClass::SERVICE) {
        return Ok(to_stack(packet, mark, Verdict::Service));
    }
    if class.contains(DestinationClass::BLOCK) {
        return Err(DropReason::NoEndpoint);
    }
    if class.contains(DestinationClass::UNROUTABLE) {
        return unroutable(packet, source);
    }
    let eni = maps::eni(source.eni()).ok_or(DropReason::EniNotReady)?;
    if deliver::is_via_stack(source) || deliver::is_metadata_via_stack(class) {
        return Ok(to_stack(packet, mark, Verdict::Stack));
    }
    match deliver::exception(packet, ip, eni.mtu())? {
        Some(verdict) => Ok(to_stack(packet, mark.exception(), verdict)),
        None => egress::prepare(ip.version, source, eni, class).map(|()| Step::Leave),
    }
}

/// Decides on a packet to an address that no network routes. Netfilter may have given a connection
/// of the host such a source, and then needs the reply to go up. Any other packet is dropped: the
/// stack would accept one to a loopback address (`route_localnet`) before any other check.
#[inline(always)]
fn unroutable(packet: &mut Packet, source: &AddressEntry) -> Result<Step, DropReason> {
    match stack::of(packet, source, Direction::FromPod)? {
        path @ ForwardPath::Stack(_) => path.take(packet, source.eni()).map(Step::Done),
        ForwardPath::Direct | ForwardPath::Reordered => None,
    }
    .ok_or(DropReason::UnroutableDestination)
}

/// True if an address is one of the endpoint's that sent the packet. No device has the index 0
/// of a host address's entry.
#[inline(always)]
fn is_of(entry: &AddressEntry, packet: &Packet) -> bool {
    entry.ifindex() == packet.ifindex()
}

/// Decides on a packet whose source is no address of the endpoint: neighbour discovery and MLD come
/// from `::` and link-local addresses, and any packets between link-local addresses may pass, such
/// as a ping of the gateway.
///
/// These packets go to the stack without a mark. The mark is for a packet that the stack may
/// forward. The stack forwards none with such a source (`ip6_forward` in `net/ipv6/ip6_output.c`),
/// and the source does not identify the owner ENI.
#[inline(always)]
fn link_local_source(packet: &Packet, ip: &Ip) -> Result<Verdict, DropReason> {
    let is_link_local = ip.source.is_v6_link_local();
    let is_on_link = is_link_local && ip.destination.is_v6_link_local();
    let discovery = if is_link_local || ip.source.is_unspecified() {
        ip.version.discovery(packet)
    } else {
        None
    };
    let verdict = match discovery {
        Some(ROUTER_SOLICITATION) => return Err(DropReason::RouterSolicitation),
        Some(_) => Verdict::NeighbourDiscovery,
        None if is_on_link => Verdict::LinkLocal,
        None => return Err(DropReason::SpoofedSource),
    };
    let ifindex = packet.ifindex();
    if (is_link_local && !link_local::may_send_from(ifindex))
        || (is_on_link && !link_local::may_send_to(ifindex))
    {
        return Err(DropReason::LinkLocalLimit);
    }
    Ok(verdict)
}

/// Hands a packet to the stack with a mark, by which the stack takes the owner's ENI if it
/// forwards the packet.
#[inline(always)]
fn to_stack(packet: &mut Packet, mark: Mark, verdict: Verdict) -> Step {
    packet.set_mark(mark);
    Step::Done(verdict)
}
