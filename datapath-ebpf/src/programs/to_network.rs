//! Packets that the stack sends to the VPC.
//!
//! Pods' packets take this path when the stack had to answer for them, fragment them or process
//! their options.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{AddressEntry, DestinationClass};
use datapath_common::headers::Ethernet;
use datapath_common::outcome::{DropReason, Verdict};

use super::step::Step;
use crate::base::code::Code;
use crate::base::maps;
use crate::packet::Packet;
use crate::path::egress::{self, Origin};
use crate::path::host;
use crate::scratch::{FragmentKind, Ip, Version};

/// Decides on a frame that leaves by an ENI.
#[inline(always)]
pub(crate) fn run(packet: &mut Packet) -> Result<Code, DropReason> {
    if packet.has_vlan_tag() {
        return Ok(Verdict::FromHost.into());
    }
    let number = packet.header::<Ethernet>(0)?.ether_type.get();
    match Version::of_ether_type(number) {
        Some(version) => Ok(ip(packet, version)),
        None => Ok(Verdict::FromHost.into()),
    }
}

/// Decides on an IP packet that leaves by an ENI.
#[inline(always)]
fn ip(packet: &Packet, version: Version) -> Code {
    match from_stack(packet.skb(), version.to_register()) {
        Step::LEAVE => egress::leave(packet, Origin::Stack),
        Step::HOST => host::send(packet),
        number => Code::from_register(number),
    }
}

/// The number of the next step.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn from_stack(skb: *mut __sk_buff, version: u32) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    Step::to_number(decide(&mut packet, Version::from_register(version)))
}

/// Finds out whose packet it is; what is none of a pod's goes on.
#[inline(always)]
fn decide(packet: &mut Packet, version: Version) -> Result<Step, DropReason> {
    // A packet that cannot be parsed is left to the host.
    let Ok(ip) = version.parse(packet) else {
        return Ok(Step::Done(Verdict::FromHost));
    };
    if ip.destination.is_multicast_or_broadcast() {
        return Ok(Step::Done(Verdict::FromHost));
    }
    // A packet without an ingress device is the host's own. It costs no look-up unless its port is
    // in our range. A fragment that the stack makes of an IPv6 packet has lost its device, but not
    // its mark (`ip6_copy_metadata` in `net/ipv6/ip6_output.c`).
    if packet.ingress_ifindex() == 0 && !packet.is_marked() {
        return Ok(Step::Host);
    }
    match maps::address(&ip.source) {
        Some(source) if source.is_endpoint() => pod(ip, source),
        Some(_host) => Ok(Step::Host),
        None if is_sent_back(packet, ip) => Err(DropReason::ForeignSource),
        None => Ok(Step::Done(Verdict::FromHost)),
    }
}

/// True if the stack sends a packet, of no address of this node, by the secondary ENI that received
/// it. The stack's mark of that ENI, which is for replies, would lead it there whatever the host's
/// routes are. The primary's packets have no mark: there the host may be a router. For fragments
/// see [`decide`].
#[inline(always)]
fn is_sent_back(packet: &Packet, ip: &Ip) -> bool {
    packet.is_marked()
        && match packet.ingress_ifindex() {
            0 => !matches!(ip.fragment, FragmentKind::Whole),
            device => device == packet.ifindex(),
        }
}

/// Decides on a pod's packet that the stack carried.
#[inline(always)]
fn pod(ip: &Ip, source: &AddressEntry) -> Result<Step, DropReason> {
    let class = maps::destination(&ip.destination);
    // The cloud has no use for a service's address.
    if class.contains(DestinationClass::SERVICE) {
        return Err(DropReason::ServiceNotTranslated);
    }
    let owner = maps::eni(source.eni()).ok_or(DropReason::EniNotReady)?;
    egress::prepare(ip.version, source, owner, class).map(|()| Step::Leave)
}
