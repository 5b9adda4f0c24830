//! Creation of the entry for a pod's packet before it is sent. The headers that the cache has read
//! are sufficient for the decision, unless the packet takes the host's stack.

use core::hint;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{Addr, DestinationClass, EniEntry, PodTuple, may_be_noted};
use datapath_common::counter::Program;
use datapath_common::headers::lanes;
use datapath_common::outcome::{DropReason, Verdict};
use datapath_common::progress::tcp;

use super::entry::{Entry, edit};
use super::keep::{self, Pending, Target, Translation};
use crate::deliver;
use crate::egress::{self, Asked};
use crate::maps;
use crate::nat::{self, Mapping};
use crate::packet::Packet;
use crate::verdict::Code;
use crate::work::{self, Parts, work};

/// The packet takes the slow path.
pub(super) const LOOK: u32 = 0;
/// The entry is made. All other numbers but [`ASK`] are those of drop reasons.
pub(super) const MADE: u32 = 1;
/// The packet's flow has to be found or opened.
const ASK: u32 = 2;

/// Makes the entry that waits for a packet: [`LOOK`], [`MADE`], or the number of a drop reason.
///
/// It handles no notes of flows: a packet whose group has any takes the slow path, and so does one
/// that accepts a connection, which may need a note.
#[inline(always)]
pub(super) fn sent(skb: *mut __sk_buff) -> u32 {
    let answer = cache_sent(skb);
    if answer != ASK {
        return answer;
    }
    hint::cold_path();
    cache_asked(skb)
}

/// Makes the entry that waits for a packet, as [`sent`]; [`ASK`] for a flow that is not opened at
/// once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cache_sent(skb: *mut __sk_buff) -> u32 {
    let answer = cache_decided();
    if answer != ASK {
        return answer;
    }
    let Ok(work) = work() else {
        return LOOK;
    };
    let Some(entry) = keep::awaited(work) else {
        return LOOK;
    };
    let Some((mapping, exit)) = at_once(skb, entry, work) else {
        return ASK;
    };
    translate(entry, work, mapping, exit);
    MADE
}

/// Opens the flow of a packet that opens a connection and has no entry in the slot. Such a flow
/// rarely exists already.
#[inline(always)]
fn at_once(
    skb: *mut __sk_buff,
    entry: &Entry,
    work: Parts,
) -> Option<(Mapping, (&'static EniEntry, Addr))> {
    let pending = work::read(work.pending());
    if pending.tcp_flags & tcp::SYN == 0 || pending.is_known != 0 {
        return None;
    }
    let sender = nat::asked_for(work);
    let version = entry.version();
    let exit = egress::exit(version, sender.policy).ok()?;
    let ends = || (tuple(entry), exit.1);
    let mapping = nat::open_at_once(skb, sender, pending.tcp_flags, ends)?;
    Some((mapping, exit))
}

/// Makes the entry of any other flow: [`LOOK`], [`MADE`], or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cache_asked(skb: *mut __sk_buff) -> u32 {
    match asked(skb) {
        Ok(answer) => answer,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn asked(skb: *mut __sk_buff) -> Result<u32, DropReason> {
    let work = work()?;
    let Some(entry) = keep::awaited(work) else {
        return Ok(LOOK);
    };
    let version = entry.version();
    let packet = Packet::new(TcContext::new(skb));
    let tcp_flags = work::read(work.pending()).tcp_flags;
    let (sender, asked) = (nat::asked_for(work), (tuple(entry), tcp_flags));
    let Some(mapping) = egress::flow(&packet, work, version, sender, asked)? else {
        return Ok(LOOK);
    };
    let exit = egress::exit(version, mapping.eni())?;
    translate(entry, work, mapping, exit);
    Ok(MADE)
}

/// The packet's flow, as the pod sees it.
#[inline(always)]
fn tuple(entry: &Entry) -> PodTuple {
    let (source, destination) = entry.ends();
    let [source_port, destination_port] = lanes(entry.key.ports());
    PodTuple::new(
        entry.protocol(),
        source,
        source_port,
        destination,
        destination_port,
    )
}

/// The classes of destinations that are no addresses of this node, and whose packets do not leave
/// it for the VPC either.
const NOT_LEAVING: DestinationClass = DestinationClass::SERVICE
    .union(DestinationClass::BLOCK)
    .union(DestinationClass::UNROUTABLE);

/// [`LOOK`], [`MADE`] or [`ASK`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cache_decided() -> u32 {
    work().ok().and_then(decide).unwrap_or(LOOK)
}

/// Makes the entry for a packet that is not translated, or asks for the flow of one that is.
#[inline(always)]
fn decide(work: Parts) -> Option<u32> {
    let entry = keep::awaited(work)?;
    let &Pending {
        largest,
        tcp_flags,
        now,
        ..
    } = work::read(work.pending());
    let accepts = tcp_flags & tcp::SYN_ACK == tcp::SYN_ACK;
    if accepts || may_be_noted(entry.stamp.epoch) {
        return None;
    }
    let (source, destination) = entry.unchecked_ends()?;
    let device = entry.key.device();
    let pod = maps::address(&source).filter(|pod| pod.ifindex() == device)?;
    if destination.is_multicast_or_broadcast()
        || destination.is_v6_link_local()
        || deliver::is_via_stack(pod)
    {
        return None;
    }
    if let Some(receiver) = maps::address(&destination) {
        let is_direct = receiver.is_endpoint() && !deliver::is_via_stack(receiver);
        if !is_direct || largest > receiver.mtu() {
            return None;
        }
        return Some(keep_as_it_is(
            entry,
            work,
            Verdict::Local,
            &Target::of(receiver),
        ));
    }
    let class = maps::destination(&destination);
    if class.intersects(NOT_LEAVING) || deliver::is_metadata_via_stack(class) {
        return None;
    }
    let owner = maps::eni(pod.eni())?;
    let limit = owner.mtu();
    if largest > limit {
        return None;
    }
    let version = entry.version();
    match egress::ask(egress::leaving(version, pod, owner, class))? {
        Asked::Exempt => {
            let target = Target::by((pod.eni(), owner), version, limit, now);
            Some(keep_as_it_is(entry, work, Verdict::Eni, &target))
        }
        Asked::Flow(sender) => {
            nat::ask_for(work, sender);
            // SAFETY: this CPU's own part of the work; no other reference to it exists.
            unsafe { (*work.pending()).limit = limit };
            Some(ASK)
        }
    }
}

/// Makes an entry for packets that are not translated.
#[inline(always)]
fn keep_as_it_is(entry: &mut Entry, work: Parts, verdict: Verdict, target: &Target) -> u32 {
    let counter = Code::from(verdict).slot(Program::FromEndpoint);
    let tcp_flags = work::read(work.pending()).tcp_flags;
    keep::go(entry, counter, target, tcp_flags);
    keep::begin(entry, work);
    MADE
}

/// Makes an entry for a translated flow: the ENI by which it leaves, and its address. The address
/// is the one that was read: user space may have replaced or removed it since.
#[inline(always)]
fn translate(entry: &mut Entry, work: Parts, mapping: Mapping, (eni, snat): (&EniEntry, Addr)) {
    let &Pending {
        tcp_flags,
        now,
        limit,
        ..
    } = work::read(work.pending());
    let counter = Code::from(Verdict::Translated).slot(Program::FromEndpoint);
    let target = Target::by((mapping.eni(), eni), entry.version(), limit, now);
    keep::go(entry, counter, &target, tcp_flags);
    let translation = Translation {
        edit: edit::SOURCE,
        to: snat,
        to_port: mapping.port(),
        eni: mapping.eni(),
    };
    keep::translate(entry, &translation, tcp_flags);
    keep::begin(entry, work);
}
