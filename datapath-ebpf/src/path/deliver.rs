//! Delivery into the namespace of a local endpoint, and what cannot be redirected.
//!
//! A packet that bypasses the host's stack gets none of its services: a lower TTL, fragmentation,
//! ICMP errors. The TTL is lowered here, and packets that need the others are found here.

use datapath_common::abi::{AddressEntry, DestinationClass};
use datapath_common::headers::{Ethernet, protocol};
use datapath_common::masquerade::MetadataPolicy;
use datapath_common::outcome::{DropReason, Verdict};

use super::record;
use super::redirect::{self, source_mac};
use crate::base::mark::Mark;
use crate::base::settings;
use crate::nat::Inside;
use crate::packet::{IP_OFFSET, Packet};
use crate::scratch::Ip;

/// Why a packet cannot be redirected onto a link of this MTU and must go to the stack; `None`
/// when it can.
#[inline(always)]
pub(crate) fn exception(packet: &Packet, ip: &Ip, mtu: u32) -> Result<Option<Verdict>, DropReason> {
    Ok(if ip.ttl <= 1 {
        Some(Verdict::TtlExpired)
    } else if ip.has_options {
        Some(Verdict::IpOptions)
    } else if largest_packet(packet, ip)? > mtu as usize {
        Some(Verdict::TooBig)
    } else {
        None
    })
}

/// Length of the largest IP packet that goes on the wire for this one. The inner headers of a
/// pod's own tunnel are not counted; the tunnel's MTU in the pod sees to these.
#[inline(always)]
fn largest_packet(packet: &Packet, ip: &Ip) -> Result<usize, DropReason> {
    /// Length of a UDP header (RFC 768).
    const UDP_HEADER: usize = 8;
    /// Length of the longest TCP header (RFC 9293). Stands for what is not known as well: the
    /// stack, which gets some packets too many, looks closer.
    const MAX_TCP_HEADER: usize = 60;

    let segment = packet.gso_size();
    if segment == 0 {
        return Ok(packet.ip_room());
    }
    let transport = match ip.protocol {
        protocol::TCP => {
            let data_offset = ip.transport + 12;
            usize::from(packet.copy::<u8>(data_offset)? >> 4) * 4
        }
        protocol::UDP => UDP_HEADER,
        _ => MAX_TCP_HEADER,
    };
    Ok(ip.transport - IP_OFFSET + transport + segment)
}

/// True if an endpoint's packets take the host's stack: because those of all pods do, or because
/// foreign programs shape or inspect them there.
#[inline(always)]
pub(crate) fn is_via_stack(endpoint: &AddressEntry) -> bool {
    settings::takes_stack() || endpoint.is_via_stack()
}

/// True if what pods send to a destination takes the host's stack, because it is the metadata
/// service.
#[inline(always)]
pub(crate) fn is_metadata_via_stack(class: DestinationClass) -> bool {
    matches!(settings::metadata_policy(), MetadataPolicy::Stack)
        && class.contains(DestinationClass::METADATA)
}

/// Destination address with which a packet for a pod arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
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
    pub(crate) fn of(inside: Inside) -> Self {
        if inside.stack && settings::notes_stack() {
            Self::OfStack
        } else {
            Self::Translated
        }
    }
}

/// From where a packet for a pod arrived.
#[derive(Clone, Copy)]
pub(crate) struct Ingress {
    /// Number of the ENI.
    pub(crate) eni: u8,
    pub(crate) arrival: Arrival,
}

/// Delivers to a pod, or hands to the stack what cannot be, or all with the path through the stack.
#[inline(always)]
pub(crate) fn into_pod(
    packet: &mut Packet,
    ip: &Ip,
    endpoint: &AddressEntry,
    ingress: Ingress,
) -> Result<Verdict, DropReason> {
    let Ingress { eni, arrival } = ingress;
    if is_via_stack(endpoint) {
        packet.set_mark(Mark::of_ingress(eni));
        return Ok(match arrival {
            Arrival::Own => Verdict::Stack,
            Arrival::Translated | Arrival::OfStack => Verdict::StackReturned,
        });
    }
    if matches!(arrival, Arrival::OfStack) {
        packet.set_mark(Mark::of_ingress(eni));
        return Ok(Verdict::StackFlowReturned);
    }
    if let Some(exception) = exception(packet, ip, endpoint.mtu())? {
        packet.set_mark(Mark::of_ingress(eni).exception());
        return Ok(exception);
    }
    to_endpoint(packet, ip, endpoint)?;
    Ok(match arrival {
        Arrival::Own => Verdict::Local,
        Arrival::Translated | Arrival::OfStack => Verdict::Returned,
    })
}

/// Delivers into the namespace of a local endpoint.
#[inline(always)]
pub(crate) fn to_endpoint(
    packet: &mut Packet,
    ip: &Ip,
    endpoint: &AddressEntry,
) -> Result<(), DropReason> {
    ip.version.decrement_ttl(packet)?;
    let header: &mut Ethernet = packet.header_mut(0)?;
    header.destination = lanes(endpoint.pod_mac());
    header.source = lanes(&source_mac(endpoint));
    record::stays(endpoint);
    redirect::to_peer(packet, endpoint.ifindex())
}

/// A MAC as 16-bit lanes: an assignment of six bytes becomes a call to a byte loop.
#[inline(always)]
fn lanes(mac: &[u8; 6]) -> [u16; 3] {
    [
        u16::from_ne_bytes([mac[0], mac[1]]),
        u16::from_ne_bytes([mac[2], mac[3]]),
        u16::from_ne_bytes([mac[4], mac[5]]),
    ]
}
