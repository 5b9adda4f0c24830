//! What the VPC delivers.

use datapath_common::abi::{AddressEntry, DestinationClass};
use datapath_common::headers::{Ethernet, ether_type};
use datapath_common::outcome::{DropReason, Verdict};

use crate::deliver;
use crate::family::{Family, Ip, V4, V6};
use crate::maps;
use crate::mark::Mark;
use crate::packet::Packet;

/// Number of the primary ENI.
const PRIMARY: u8 = 0;

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
fn ip<F: Family>(packet: &mut Packet) -> Result<Verdict, DropReason> {
    let ip = F::parse(packet)?;
    if ip.destination.is_multicast_or_broadcast() {
        return Ok(to_stack(packet, Verdict::Multicast));
    }
    // No map holds a link-local IPv6 address.
    if ip.destination.is_v6_link_local() {
        return Ok(to_stack(packet, Verdict::NotForPod));
    }
    match maps::address(ip.destination) {
        Some(entry) if entry.is_endpoint() => to_endpoint::<F>(packet, &ip, entry),
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
fn to_endpoint<F: Family>(
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
    if owner != packet.ifindex() {
        return Err(DropReason::WrongEni);
    }
    match deliver::exception(packet, ip, endpoint.mtu())? {
        Some(verdict) => {
            packet.set_mark(ingress_mark(endpoint.eni()).exception());
            Ok(verdict)
        }
        None => deliver::to_endpoint::<F>(packet, endpoint),
    }
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
