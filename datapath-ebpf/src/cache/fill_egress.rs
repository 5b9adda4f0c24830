//! Creation of the entry for a pod's packet before it is sent. The headers that the cache has read
//! are sufficient for the decision, unless the packet takes the host's stack.

use core::hint;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{
    Addr, DestinationClass, EniEntry, PodTuple, TransportAddr, may_be_noted,
};
use datapath_common::counter::Program;
use datapath_common::headers::lanes;
use datapath_common::outcome::{DropReason, Verdict};
use datapath_common::progress::tcp;

use super::fill::{self, Translation};
use crate::base::code::Code;
use crate::base::maps;
use crate::nat::{self, Mapping};
use crate::packet::Packet;
use crate::path::egress::{self, EgressPolicy, SentFlow};
use crate::path::record::ExitEni;
use crate::path::{deliver, record};
use crate::scratch::{self, CacheFill, Entry, RedirectTarget, ScratchRef, edit, scratch};

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
    let Ok(scratch) = scratch() else {
        return LOOK;
    };
    let Some(entry) = record::awaited(scratch) else {
        return LOOK;
    };
    let Some((mapping, exit)) = at_once(skb, entry, scratch) else {
        return ASK;
    };
    translate(entry, scratch, mapping, exit);
    MADE
}

/// Opens the flow of a packet that opens a connection and has no entry in the slot. Such a flow
/// rarely exists already.
#[inline(always)]
fn at_once(
    skb: *mut __sk_buff,
    entry: &Entry,
    scratch: ScratchRef,
) -> Option<(Mapping, (&'static EniEntry, Addr))> {
    let pending = scratch::read(scratch.pending());
    if pending.tcp_flags & tcp::SYN == 0 || pending.is_known != 0 {
        return None;
    }
    let sender = nat::asked_for(scratch);
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
    match filled(skb) {
        Ok(answer) => answer,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn filled(skb: *mut __sk_buff) -> Result<u32, DropReason> {
    let scratch = scratch()?;
    let Some(entry) = record::awaited(scratch) else {
        return Ok(LOOK);
    };
    let version = entry.version();
    let packet = Packet::new(TcContext::new(skb));
    let tcp_flags = scratch::read(scratch.pending()).tcp_flags;
    let sent = SentFlow {
        version,
        sender: nat::asked_for(scratch),
        tuple: tuple(entry),
        tcp_flags,
    };
    let Some(mapping) = egress::flow(&packet, scratch, sent)? else {
        return Ok(LOOK);
    };
    let exit = egress::exit(version, mapping.eni())?;
    translate(entry, scratch, mapping, exit);
    Ok(MADE)
}

/// The packet's flow, as the pod sees it.
#[inline(always)]
fn tuple(entry: &Entry) -> PodTuple {
    let (source, destination) = entry.ends();
    let [source_port, destination_port] = lanes(entry.key.ports());
    PodTuple::new(
        entry.protocol(),
        TransportAddr::new(source, source_port),
        TransportAddr::new(destination, destination_port),
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
    scratch().ok().and_then(decide).unwrap_or(LOOK)
}

/// Makes the entry for a packet that is not translated, or asks for the flow of one that is.
#[inline(always)]
fn decide(scratch: ScratchRef) -> Option<u32> {
    let entry = record::awaited(scratch)?;
    let &CacheFill {
        largest,
        tcp_flags,
        now,
        ..
    } = scratch::read(scratch.pending());
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
            scratch,
            Verdict::Local,
            &RedirectTarget::of(receiver),
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
        EgressPolicy::Exempt => {
            let eni = ExitEni {
                number: pod.eni(),
                entry: owner,
            };
            let target = RedirectTarget::by(eni, version, limit, now);
            Some(keep_as_it_is(entry, scratch, Verdict::Eni, &target))
        }
        EgressPolicy::Flow(sender) => {
            nat::ask_for(scratch, sender);
            // SAFETY: this CPU's own part of the scratch space; no other reference to it exists.
            unsafe { (*scratch.pending()).limit = limit };
            Some(ASK)
        }
    }
}

/// Makes an entry for packets that are not translated.
#[inline(always)]
fn keep_as_it_is(
    entry: &mut Entry,
    scratch: ScratchRef,
    verdict: Verdict,
    target: &RedirectTarget,
) -> u32 {
    let counter = Code::from(verdict).slot(Program::FromEndpoint);
    let tcp_flags = scratch::read(scratch.pending()).tcp_flags;
    fill::go(entry, counter, target, tcp_flags);
    fill::begin(entry, scratch);
    MADE
}

/// Makes an entry for a translated flow: the ENI by which it leaves, and its address. The address
/// is the one that was read: user space may have replaced or removed it since.
#[inline(always)]
fn translate(
    entry: &mut Entry,
    scratch: ScratchRef,
    mapping: Mapping,
    (eni, snat): (&EniEntry, Addr),
) {
    let &CacheFill {
        tcp_flags,
        now,
        limit,
        ..
    } = scratch::read(scratch.pending());
    let counter = Code::from(Verdict::Translated).slot(Program::FromEndpoint);
    let eni = ExitEni {
        number: mapping.eni(),
        entry: eni,
    };
    let target = RedirectTarget::by(eni, entry.version(), limit, now);
    fill::go(entry, counter, &target, tcp_flags);
    let translation = Translation {
        edit: edit::SOURCE,
        to: snat,
        to_port: mapping.port(),
        eni: mapping.eni(),
    };
    fill::translate(entry, &translation, tcp_flags);
    fill::begin(entry, scratch);
}
