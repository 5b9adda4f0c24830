//! Packets that the stack sends to a pod, after its NAT.
//!
//! Packets from elsewhere are noted, and those that the host sends with a foreign source. The pod's
//! replies then take the stack too: only there are they translated back.

use datapath_common::abi::{AddressEntry, DestinationClass};
use datapath_common::headers::Ethernet;
use datapath_common::outcome::{DropReason, Verdict};

use crate::base::code::Code;
use crate::base::{PRIMARY_ENI, maps, settings};
use crate::nat::{self, Direction, IngressEni};
use crate::packet::Packet;
use crate::packet::transport::{self, Transport};
use crate::scratch::{FragmentKind, Ip, Ports, ScratchRef, Sender, Version, scratch};

/// Decides on a frame to a pod.
#[inline(always)]
pub(crate) fn run(packet: &mut Packet) -> Result<Code, DropReason> {
    // An exception's flow bypasses the stack.
    if !settings::notes_stack() || packet.is_exception() {
        return Ok(Verdict::ToPod.into());
    }
    let number = packet.header::<Ethernet>(0)?.ether_type.get();
    match Version::of_ether_type(number) {
        Some(version) => ip(packet, version).map(Code::from),
        None => Ok(Verdict::ToPod.into()),
    }
}

/// Decides on an IP packet to a pod.
#[inline(always)]
fn ip(packet: &mut Packet, version: Version) -> Result<Verdict, DropReason> {
    let Ok(ip) = version.parse(packet) else {
        return Ok(Verdict::ToPod);
    };
    // Packets of the host itself need no flow mark: answers to the host's and to link-local
    // addresses take the stack in any case.
    if is_hosts(packet) && (ip.source.is_v6_link_local() || is_of_host(ip)) {
        return Ok(Verdict::FromHost);
    }
    let Some(pod) = maps::address(&ip.destination).filter(|entry| is_of(entry, packet)) else {
        return Ok(Verdict::ToPod);
    };
    // A service's answer is translated back already, and what the pod sends to a service takes the
    // stack without a note.
    if maps::destination(&ip.source).contains(DestinationClass::SERVICE) {
        return Ok(Verdict::ToPod);
    }
    let scratch = scratch()?;
    let Some(ports) = ports(packet, scratch, ip) else {
        return Ok(Verdict::ToPod);
    };
    let tuple = nat::received(ip, &ports);
    let sender = Sender {
        endpoint: pod.identity(),
        policy: pod.eni(),
        owner: pod.eni(),
    };
    nat::ask(scratch, tuple, sender, ports.tcp_flags);
    nat::note_stack(scratch, Direction::ToPod, ingress(packet))?;
    Ok(Verdict::Noted)
}

/// True if the host made a packet. A fragment that the stack makes of an IPv6 packet has lost its
/// device, but not its mark.
#[inline(always)]
fn is_hosts(packet: &Packet) -> bool {
    packet.ingress_ifindex() == 0 && !packet.is_marked()
}

/// True if a packet of the host has the source that the host gave it. Netfilter may have put any
/// address in its place, and has to see the answer.
#[inline(always)]
fn is_of_host(ip: &Ip) -> bool {
    maps::address(&ip.source).is_some_and(|entry| !entry.is_endpoint())
}

/// True if an address is one of the endpoint's that the device is of.
#[inline(always)]
fn is_of(entry: &AddressEntry, packet: &Packet) -> bool {
    entry.is_endpoint() && entry.ifindex() == packet.ifindex()
}

/// The ports of a packet of a flow. A later fragment's flow has been noted with the first.
#[inline(always)]
fn ports(packet: &mut Packet, scratch: ScratchRef, ip: &Ip) -> Option<Ports> {
    match ip.fragment {
        FragmentKind::Whole | FragmentKind::First => match transport::read(packet, scratch) {
            Ok(Transport::Ports(ports)) => Some(ports),
            Ok(Transport::Error | Transport::None) | Err(_) => None,
        },
        FragmentKind::Later => None,
    }
}

/// Device that received a packet: the reply leaves by it. If that is no ENI and the host's own
/// routes lead to the VPC, `to_network` sends the reply by the owner ENI.
#[inline(always)]
fn ingress(packet: &Packet) -> IngressEni {
    let device = packet.ingress_ifindex();
    if maps::eni(PRIMARY_ENI).is_some_and(|primary| primary.ifindex() == device) {
        return IngressEni::Eni(PRIMARY_ENI);
    }
    maps::secondary_eni(device).map_or(IngressEni::Elsewhere, IngressEni::Eni)
}
