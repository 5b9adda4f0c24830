//! What the stack sends to the VPC.
//!
//! Pods' packets come this way when the stack had to answer for them, fragment them or look at
//! their options.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{AddressEntry, DestinationClass};
use datapath_common::fault::Fault;
use datapath_common::headers::{Ethernet, ether_type};
use datapath_common::outcome::{DropReason, Verdict};

use crate::egress::{self, Origin};
use crate::family::{Family, Ip, Piece, V4, V6};
use crate::fault;
use crate::host;
use crate::maps;
use crate::packet::Packet;
use crate::verdict::Code;
use crate::work::{self, Step, global};

/// Decides on a frame that leaves by an ENI.
#[inline(always)]
pub(crate) fn run(packet: &mut Packet) -> Result<Code, DropReason> {
    if packet.has_vlan_tag() {
        return Ok(Verdict::FromHost.into());
    }
    match packet.header::<Ethernet>(0)?.ether_type.get() {
        ether_type::IPV4 => Ok(ip::<V4>(packet)),
        ether_type::IPV6 => Ok(ip::<V6>(packet)),
        _ => Ok(Verdict::FromHost.into()),
    }
}

/// Decides on an IP packet that leaves by an ENI.
#[inline(always)]
fn ip<F: Family>(packet: &Packet) -> Code {
    match decided::<F>(packet.skb()) {
        Step::LEAVE => egress::leave::<F>(packet, Origin::Stack),
        Step::HOST => host::send::<F>(packet),
        number => Code::from_register(number),
    }
}

global! {
    #[doc = "The number of the next step."]
    decided(skb: *mut __sk_buff) = from_stack_v4, from_stack_v6: run_decided;
}

#[inline(always)]
fn run_decided<F: Family>(skb: *mut __sk_buff) -> u32 {
    Step::to_number(decide::<F>(&mut Packet::new(TcContext::new(skb))))
}

/// Finds out whose packet it is; what is none of a pod's goes on.
#[inline(always)]
fn decide<F: Family>(packet: &mut Packet) -> Result<Step, DropReason> {
    // What the host makes up is its own business.
    let Ok(ip) = F::parse(packet) else {
        return Ok(Step::Done(Verdict::FromHost));
    };
    let ip = work::keep(ip)?;
    if ip.destination.is_multicast_or_broadcast() {
        return Ok(Step::Done(Verdict::FromHost));
    }
    // What no device received is the host's own, and pays for no look-up unless its port is in
    // our range. A fragment that the stack makes of an IPv6 packet has lost its device, but not
    // its mark (`ip6_copy_metadata` in `net/ipv6/ip6_output.c`).
    if packet.ingress_ifindex() == 0 && !packet.is_marked() {
        return Ok(Step::Host);
    }
    match maps::address(ip.source) {
        Some(source) if source.is_endpoint() => pod::<F>(ip, source),
        Some(_host) => Ok(Step::Host),
        None if is_sent_back(packet, ip) => Err(DropReason::ForeignSource),
        None => Ok(Step::Done(Verdict::FromHost)),
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

/// Decides on a pod's packet that the stack carried.
#[inline(always)]
fn pod<F: Family>(ip: &Ip, source: &AddressEntry) -> Result<Step, DropReason> {
    let class = maps::destination(ip.destination);
    // The cloud has no use for a service's address.
    if class.contains(DestinationClass::SERVICE) {
        return Err(DropReason::ServiceNotTranslated);
    }
    let owner = maps::eni(source.eni()).ok_or(DropReason::EniNotReady)?;
    egress::prepare::<F>(source, owner, class).map(|()| Step::Leave)
}
