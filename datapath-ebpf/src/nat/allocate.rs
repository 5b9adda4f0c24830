//! Opening a flow: the slow path, once for each.
//!
//! It has three steps, each a global function, called one after the other. Nested calls would take
//! more stack than a program may have.

use aya_ebpf::bindings::__sk_buff;
use datapath_common::abi::{Addr, PodTuple};
use datapath_common::counter::{NatStat, nat_at_once_slot};
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;

use super::claim::{Attempt, attempt, claim_first};
use super::request::Request;
use super::tables::{FLOWS, Refusal, Table as _};
use super::{Mapping, Sender, blocks, flow, moved, quota, share, stats};
use crate::work;

/// Result of the first step.
pub(super) enum First {
    /// There is a flow, this one or that of another CPU.
    Open(Mapping),
    /// The port is taken: another one is to be searched for, and [`settle`] comes then.
    Taken,
}

/// Opens a flow without a flow mark, which is most likely new, at its first candidate port. There
/// is no look-up before: if the flow exists, its port is taken.
///
/// If a new flow is refused for a reason that need not apply to an existing one, nothing is done or
/// counted. `ends` returns the flow as the pod sees it, and the translation address of the ENI. It
/// is called when they are written, so that they need no stack.
#[inline(always)]
pub(crate) fn open_at_once(
    skb: *mut __sk_buff,
    sender: Sender,
    tcp_flags: u8,
    ends: impl FnOnce() -> (PodTuple, Addr),
) -> Option<Mapping> {
    if super::may_be_elsewhere() {
        return None;
    }
    let attempt = attempt()?;
    quota::take(sender.endpoint).ok()?;
    let (tuple, snat) = ends();
    attempt.prepare(&tuple, sender, snat, tcp_flags, true);
    let candidate = attempt.candidate();
    if claim_first(skb, candidate) == 0 {
        return Some(Mapping::new(sender.policy, candidate));
    }
    quota::give_back(sender.endpoint);
    None
}

/// The first step, for a flow that was looked up before: claims the first candidate port.
#[inline(always)]
pub(super) fn first(skb: *mut __sk_buff, request: &Request) -> Result<First, DropReason> {
    if let Err(reason) = quota::take(request.endpoint) {
        count_failed(request);
        return Err(reason);
    }
    try_first(skb, request).map_err(|reason| refuse(request, reason))
}

#[inline(always)]
fn try_first(skb: *mut __sk_buff, request: &Request) -> Result<First, DropReason> {
    let tuple = &request.tuple;
    let snat = work::copied(&request.snat);
    let (sender, flags) = (request.sender(), request.tcp_flags);
    let is_taken = request.taken != 0;
    let attempt = attempt().ok_or(DropReason::HelperFailed)?;
    attempt.prepare(tuple, sender, snat, flags, !is_taken);
    let candidate = attempt.candidate();
    // The checksum covers the ports, and to change it takes all of the packet.
    let must_keep = tuple.protocol == protocol::SCTP;
    if must_keep && candidate != tuple.pod_port {
        return Err(DropReason::SctpPortTaken);
    }
    if is_taken {
        attempt.tries = 1;
        return taken(must_keep);
    }
    let mapping = request.at(candidate);
    match Refusal::of(claim_first(skb, candidate)) {
        Ok(()) => return Ok(First::Open(mapping)),
        Err(Refusal::Exists) => {}
        Err(refusal) => return Err(refusal.reason(DropReason::FlowsFull)),
    }
    // Another CPU was faster, or a socket of the host has the port.
    let found = flow::nat_refresh(Mapping::to_register(Some(mapping)));
    if let Some(mapping) = Mapping::from_register(found) {
        quota::give_back(request.endpoint);
        return Ok(First::Open(mapping));
    }
    taken(must_keep)
}

/// Result for a taken port.
#[inline(always)]
fn taken(must_keep: bool) -> Result<First, DropReason> {
    if must_keep {
        Err(DropReason::SctpPortTaken)
    } else {
        Ok(First::Taken)
    }
}

/// The last step, with what the search's last insertion gave: notes where the flow is.
#[inline(always)]
pub(super) fn settle(request: &Request, result: i32) -> Result<Mapping, DropReason> {
    let port = attempt().map_or(0, |attempt| attempt.key.port);
    match Refusal::of(result) {
        Ok(()) => {}
        Err(Refusal::Exists) => return Err(refuse(request, DropReason::NoPort)),
        Err(refusal) => return Err(refuse(request, refusal.reason(DropReason::FlowsFull))),
    }
    let mapping = request.at(port);
    let noted = moved::note(request, mapping);
    match noted {
        Ok(at) if at.port() == mapping.port() && at.eni() == mapping.eni() => {
            let _done = nat_opened();
            noted
        }
        Ok(faster) => {
            undo();
            quota::give_back(request.endpoint);
            // It is to know of this packet, too.
            let _is_there = flow::nat_refresh(Mapping::to_register(Some(faster)));
            noted
        }
        Err(reason) => {
            undo();
            Err(refuse(request, reason))
        }
    }
}

/// Removes a flow that was just opened off its first candidate port. No note leads to it, so no
/// other packet has seen it.
#[inline(always)]
fn undo() {
    if let Some(attempt) = attempt() {
        FLOWS.forget(&attempt.key);
        blocks::give_back(&attempt.key);
        if attempt.in_reserve {
            share::give_back_attempt();
        }
    }
}

/// Counts a flow that could not be opened.
#[inline(always)]
fn refuse(request: &Request, reason: DropReason) -> DropReason {
    quota::give_back(request.endpoint);
    count_failed(request);
    reason
}

#[inline(always)]
fn count_failed(request: &Request) {
    let _done = nat_failed(request.tuple.remote.is_v4().into());
}

// Counting has global functions of its own, since several places need it. The time that the kernel
// takes to verify a program grows with its look-ups of array entries.

/// Counts a flow that could not be opened; gives 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_failed(is_v4: u32) -> u32 {
    stats::count(NatStat::Failed, is_v4 != 0);
    0
}

/// Counts the flow of the attempt, which got its port; gives 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_opened() -> u32 {
    if let Some(attempt) = attempt() {
        count_opened(attempt);
    }
    0
}

/// Counts the flow of an attempt, which got its port.
#[inline(always)]
pub(super) fn count_opened(attempt: &Attempt) {
    let is_v4 = attempt.key.remote.is_v4();
    let is_first = attempt.tries <= 1;
    if is_first && attempt.has_own_port() && !attempt.is_host {
        return stats::count_in(nat_at_once_slot(is_v4));
    }
    stats::count(NatStat::Allocated, is_v4);
    if attempt.has_own_port() {
        stats::count(NatStat::Kept, is_v4);
    }
    if attempt.is_host {
        stats::count(NatStat::Host, is_v4);
    }
    let needed = match attempt.tries {
        0..=1 => NatStat::Tries1,
        2..=5 => NatStat::Tries5,
        6..=16 => NatStat::Tries16,
        17..=32 => NatStat::Tries32,
        _ => NatStat::TriesMore,
    };
    stats::count(needed, is_v4);
}
