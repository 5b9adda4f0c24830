//! Packets that the VPC delivers.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{AddressEntry, DestinationClass};
use datapath_common::headers::{Ethernet, protocol};
use datapath_common::masquerade::FlowRole;
use datapath_common::masquerade::PoolPolicy;
use datapath_common::outcome::{DropReason, Verdict};

use super::step::Step;
use crate::base::code::Code;
use crate::base::mark::Mark;
use crate::base::{PRIMARY_ENI, maps};
use crate::nat::{self, Direction};
use crate::packet::Packet;
use crate::packet::transport::{self, Transport};
use crate::path::deliver::{self, Arrival, Ingress};
use crate::path::reply;
use crate::path::stack::{self, ForwardPath};
use crate::policy;
use crate::scratch::{FragmentKind, Ip, Ports, ScratchRef, Sender, Version, scratch};

/// Decides on a frame from an ENI.
#[inline(always)]
pub(crate) fn run(packet: &mut Packet) -> Result<Code, DropReason> {
    // Promiscuous mode brings others' frames; a VLAN tag makes it another network's.
    if !packet.is_for_host() || packet.has_vlan_tag() {
        return Ok(Verdict::ForeignFrame.into());
    }
    let number = packet.header::<Ethernet>(0)?.ether_type.get();
    match Version::of_ether_type(number) {
        Some(version) => Ok(ip(packet, version)),
        None => Ok(Verdict::ForeignFrame.into()),
    }
}

/// Decides on an IP packet from an ENI.
#[inline(always)]
fn ip(packet: &mut Packet, version: Version) -> Code {
    let mut number = from_vpc(packet.skb(), version.to_register());
    if let Some(eni) = Step::answered_eni(number) {
        number = reply::decided(packet, eni);
    }
    let code = Code::from_register(number);
    if is_for_stack(code) {
        mark_for_stack(packet);
    }
    code
}

/// The number of the next step.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn from_vpc(skb: *mut __sk_buff, version: u32) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    Step::to_number(decide(&mut packet, Version::from_register(version)))
}

/// Finds out for whom a packet is; brings a pod's there.
#[inline(always)]
fn decide(packet: &mut Packet, version: Version) -> Result<Step, DropReason> {
    let ip = version.parse(packet)?;
    if ip.destination.is_multicast_or_broadcast() {
        return Ok(Step::Done(Verdict::Multicast));
    }
    // No map holds a link-local IPv6 address.
    if ip.destination.is_v6_link_local() {
        return Ok(Step::Done(Verdict::NotForPod));
    }
    match maps::address(&ip.destination) {
        Some(entry) if entry.is_endpoint() => to_endpoint(packet, ip, entry).map(Step::Done),
        Some(entry) if entry.is_translation() => Ok(Step::Answer(entry.eni())),
        Some(_host) => Ok(Step::Done(Verdict::NotForPod)),
        None if maps::destination(&ip.destination).contains(DestinationClass::BLOCK) => {
            Err(DropReason::NoEndpoint)
        }
        None => Ok(Step::Done(Verdict::NotForPod)),
    }
}

/// Delivers to a pod what its owner ENI received. The cloud delivers nothing for the pod by
/// another one.
#[inline(always)]
fn to_endpoint(
    packet: &mut Packet,
    ip: &Ip,
    endpoint: &AddressEntry,
) -> Result<Verdict, DropReason> {
    let owner = endpoint.eni_ifindex();
    // It is unknown if this is the owner. The reason is not `WrongEni`, which stands for a fault
    // outside the node.
    if owner == 0 {
        return Err(DropReason::EniNotReady);
    }
    if owner != packet.ifindex() {
        return Err(DropReason::WrongEni);
    }
    if is_unroutable(ip) {
        return Err(DropReason::UnroutableSource);
    }
    let mark = Mark::of_ingress(endpoint.eni());
    let path = stack::of(packet, endpoint, Direction::ToPod)?;
    if matches!(path, ForwardPath::Stack(_)) {
        packet.set_mark(mark);
        return Ok(Verdict::StackFlow);
    }
    // The first fragment of a reordered datagram has the ports, and opens its flow from the outside
    // as any other packet does.
    inbound(packet, ip, endpoint)?;
    if matches!(path, ForwardPath::Reordered) {
        packet.set_mark(mark.exception());
        return Ok(Verdict::Reordered);
    }
    let ingress = Ingress {
        eni: endpoint.eni(),
        arrival: Arrival::Own,
    };
    deliver::into_pod(packet, ip, endpoint, ingress)
}

/// True if nothing that a network routes has the source of a packet. The few bits that all of these
/// have in common save the others a look-up.
#[inline(always)]
fn is_unroutable(ip: &Ip) -> bool {
    ip.source.is_multicast_or_broadcast()
        || (ip.source.may_be_unroutable()
            && maps::destination(&ip.source).contains(DestinationClass::UNROUTABLE))
}

/// Marks a flow from a source to which the pod's own packets would be translated, so that its
/// answers are not. TCP is marked once the pod accepts, so a scan leaves no state.
#[inline(always)]
fn inbound(packet: &mut Packet, ip: &Ip, endpoint: &AddressEntry) -> Result<(), DropReason> {
    if !ip.version.is_masqueraded() || !matches!(endpoint.pool(), PoolPolicy::Masquerade) {
        return Ok(());
    }
    let scratch = scratch()?;
    let is_tcp = ip.protocol == protocol::TCP;
    let ports = if is_tcp {
        last_word(packet, ip)
    } else {
        role(packet, scratch, ip)
    };
    let Some(ports) = ports else {
        return Ok(());
    };
    let tuple = nat::received(ip, &ports);
    let sender = Sender {
        endpoint: endpoint.identity(),
        policy: endpoint.eni(),
        owner: endpoint.eni(),
    };
    nat::ask(scratch, tuple, sender, ports.tcp_flags);
    if is_tcp {
        nat::see_inbound(packet, endpoint);
        Ok(())
    } else {
        nat::note_inbound()
    }
}

/// The ports of a packet from the outside that opens a flow.
#[inline(always)]
fn role(packet: &mut Packet, scratch: ScratchRef, ip: &Ip) -> Option<Ports> {
    let may_open = matches!(ip.fragment, FragmentKind::Whole | FragmentKind::First)
        && policy::is_translated(ip.source);
    if !may_open {
        return None;
    }
    match transport::read(packet, scratch) {
        Ok(Transport::Ports(ports)) if matches!(ports.role, FlowRole::New) => Some(ports),
        _ => None,
    }
}

/// The ports of a TCP segment that says something of its connection which no answer of the pod
/// does. A segment with data has one; without it may have none: the handshake's last, after which
/// both sides may be silent for long, and the last of all.
#[inline(always)]
fn last_word(packet: &Packet, ip: &Ip) -> Option<Ports> {
    let is_whole = matches!(ip.fragment, FragmentKind::Whole);
    is_whole.then(|| transport::last_word(packet, ip)).flatten()
}

/// True if the stack gets a packet that is for no pod.
#[inline(always)]
fn is_for_stack(code: Code) -> bool {
    code.is(Verdict::Multicast) || code.is(Verdict::NotForPod) || code.is(Verdict::HostReturned)
}

/// Marks a packet from a secondary ENI with that ENI, so that the node forwards or answers it by
/// the same ENI.
#[inline(always)]
fn mark_for_stack(packet: &mut Packet) {
    let device = packet.ifindex();
    // The primary, which carries most of the host's traffic, pays no hash look-up.
    let is_primary = maps::eni(PRIMARY_ENI).is_some_and(|primary| primary.ifindex() == device);
    if !is_primary && let Some(number) = maps::secondary_eni(device) {
        packet.set_mark(Mark::of_ingress(number));
    }
}
