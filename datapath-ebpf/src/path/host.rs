//! Packets that the stack sends to the VPC with an address of the host.
//!
//! The host shares the ENIs' addresses with translation, and so the ports.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{AddressEntry, FragmentRing, HOST, TransportAddr};
use datapath_common::masquerade::FlowRole;
use datapath_common::outcome::{DropReason, Verdict};

use super::{egress, redirect};
use crate::base::code::Code;
use crate::base::mark::Mark;
use crate::base::{PRIMARY_ENI, maps};
use crate::nat;
use crate::packet::rewrite::{Translation, rewrite};
use crate::packet::transport::{self, Transport};
use crate::packet::{Packet, fragment, icmp_error};
use crate::policy;
use crate::scratch::{self, AddrField, FragmentKind, Ip, Ports, ScratchRef, Sender, scratch};

/// Decides on a packet of the host, or on one that netfilter translated to an address of the host.
/// Uses the saved IP header.
#[inline(always)]
pub(crate) fn send(packet: &Packet) -> Code {
    Code::from_register(sent_by_host(packet.skb()))
}

/// The number of what became of a packet of the host.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sent_by_host(skb: *mut __sk_buff) -> u32 {
    Code::of(decide(&mut Packet::new(TcContext::new(skb)))).to_register()
}

#[inline(always)]
fn decide(packet: &mut Packet) -> Result<Verdict, DropReason> {
    let scratch = scratch()?;
    let ip = scratch::read(scratch.ip());
    let verdict = with_ports(packet, scratch, ip)?;
    if is_primarys_own(packet, ip) {
        return Ok(verdict);
    }
    match maps::address(&ip.source) {
        Some(source) => by_owner(packet, ip, source, verdict),
        None => Ok(verdict),
    }
}

/// Decides on a packet by its ports.
#[inline(always)]
fn with_ports(packet: &mut Packet, scratch: ScratchRef, ip: &Ip) -> Result<Verdict, DropReason> {
    let ports = match ip.fragment {
        FragmentKind::Whole | FragmentKind::First => match transport::read(packet, scratch) {
            Ok(Transport::Ports(ports)) => ports,
            Ok(Transport::Error) => return host_error(packet, scratch, ip),
            Ok(Transport::None) | Err(_) => return Ok(Verdict::FromHost),
        },
        FragmentKind::Later => match fragment::recall() {
            Some(ports) => ports,
            None => return Ok(Verdict::FromHost),
        },
    };
    if !nat::in_range(ports.source) {
        return Ok(Verdict::FromHost);
    }
    match maps::address(&ip.source) {
        Some(source) if source.is_translation() && may_collide(ip) => {
            claim(packet, scratch, source.eni(), &ports)
        }
        Some(_) | None => Ok(Verdict::FromHost),
    }
}

/// True if a pod's flow may have the port of a packet of the host. There are no such flows towards
/// an exempt destination, unless it became exempt later. So most packets of the host within the
/// VPC, such as an overlay's, need no entry in the table.
#[inline(always)]
fn may_collide(ip: &Ip) -> bool {
    policy::is_translated(ip.destination) || nat::may_be_exempt()
}

/// Holds the host's port against pods' flows, or gives its packet another port if one of these has
/// it.
#[inline(always)]
fn claim(
    packet: &mut Packet,
    scratch: ScratchRef,
    eni: u8,
    ports: &Ports,
) -> Result<Verdict, DropReason> {
    let ip = scratch::read(scratch.ip());
    let tuple = nat::sent(ip, ports);
    fragment::note(ip, ports, FragmentRing::sent(HOST))?;
    let sender = Sender {
        endpoint: HOST,
        policy: eni,
        owner: eni,
    };
    nat::ask(scratch, tuple, sender, ports.tcp_flags);
    let mapping = match nat::known() {
        Some(mapping) => mapping,
        // An answer comes from a socket that is bound to the port, which no pod's flow gets then.
        None if !matches!(ports.role, FlowRole::New) => return Ok(Verdict::FromHost),
        None => match nat::open(scratch, packet, ip.source) {
            Ok(mapping) => mapping,
            // There is no room to claim the port, but no flow has it. So the host loses no answers
            // to pods.
            Err(_full) if nat::is_own_port_free() => return Ok(Verdict::FromHost),
            Err(reason) => return Err(reason),
        },
    };
    if mapping.port() == ports.source {
        return Ok(Verdict::HostClaimed);
    }
    let translation = Translation {
        side: AddrField::Source,
        to: TransportAddr::new(ip.source, mapping.port()),
    };
    rewrite(packet, scratch, ports, translation)?;
    Ok(Verdict::HostTranslated)
}

/// Decides on an ICMP error of the host. About a translated flow, it quotes a packet that we have
/// translated back; the receiver knows the flow by its translation.
#[inline(always)]
fn host_error(packet: &mut Packet, scratch: ScratchRef, ip: &Ip) -> Result<Verdict, DropReason> {
    let Ok(Some(inner)) = icmp_error::inner(packet, scratch) else {
        return Ok(Verdict::FromHost);
    };
    let Some(pod) = maps::address(&inner.destination).filter(|entry| entry.is_endpoint()) else {
        return Ok(Verdict::FromHost);
    };
    let Some(owner) = maps::eni(pod.eni()) else {
        return Ok(Verdict::FromHost);
    };
    let tuple = inner.answered();
    let sender = Sender {
        endpoint: pod.identity(),
        policy: ip.version.addresses(owner).external,
        owner: pod.eni(),
    };
    nat::ask(scratch, tuple, sender, 0);
    let Some(mapping) = nat::peek() else {
        return Ok(Verdict::FromHost);
    };
    let (_, snat) = egress::exit(ip.version, mapping.eni())?;
    let translation = Translation {
        side: AddrField::Destination,
        to: TransportAddr::new(snat, mapping.port()),
    };
    icmp_error::rewrite_error(packet, scratch, translation, None)?;
    Ok(Verdict::HostTranslated)
}

/// True if a packet has the primary's address and leaves by it, as most of the host's do: what
/// needs no look-up to be known as right.
#[inline(always)]
fn is_primarys_own(packet: &Packet, ip: &Ip) -> bool {
    maps::eni(PRIMARY_ENI).is_some_and(|primary| {
        primary.ifindex() == packet.ifindex() && ip.version.addresses(primary).snat == ip.source
    })
}

/// Sends a packet with the translation address of an ENI out of that ENI. Netfilter restores the
/// requested address, such as a node port's, in the answer of a pod or of a socket of the host. By
/// then the stack has already chosen the ENI that owns the answer's own address.
#[inline(always)]
fn by_owner(
    packet: &mut Packet,
    ip: &Ip,
    source: &AddressEntry,
    verdict: Verdict,
) -> Result<Verdict, DropReason> {
    if !source.is_translation() {
        return Ok(verdict);
    }
    match maps::eni(source.eni()) {
        Some(owner) if owner.ifindex() != packet.ifindex() => {
            packet.set_mark(Mark::done());
            redirect::to_neighbour(owner.ifindex(), &ip.version.next_hop(owner))?;
            Ok(Verdict::HostMoved)
        }
        Some(_) | None => Ok(verdict),
    }
}
