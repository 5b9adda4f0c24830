//! Opening a flow: the slow path, once for each.
//!
//! It has three steps, each a global function, called one after the other. Nested calls would take
//! more stack than a program may have.

mod claim;
mod count;
pub(super) mod search;

use aya_ebpf::bindings::__sk_buff;
use datapath_common::abi::{Addr, PodTuple};
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;

use super::Mapping;
use super::attempt::{Opening, attempt};
use super::flow::{self, moved};
use super::ports::{blocks, share};
use super::tables::{FLOWS, Refusal, Table as _, quota};
use crate::scratch::{self, FlowQuery, Sender};

use claim::{candidate, claim_first};
use count::{count_attempt, count_failed};

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
    let (tuple, snat) = ends();
    let opening = Opening {
        tcp_flags,
        is_vacant: true,
    };
    attempt.prepare(&tuple, sender, snat, opening);
    let is_v4 = attempt.key.remote.is_v4();
    quota::take(sender.endpoint, is_v4).ok()?;
    let candidate = candidate(attempt);
    if claim_first(skb, candidate) == 0 {
        return Some(Mapping::new(sender.policy, candidate));
    }
    quota::give_back(sender.endpoint, is_v4);
    None
}

/// The first step, for a flow that was looked up before: claims the first candidate port.
#[inline(always)]
pub(super) fn first(skb: *mut __sk_buff, request: &FlowQuery) -> Result<First, DropReason> {
    if let Err(reason) = quota::take(request.endpoint, request.tuple.remote.is_v4()) {
        count_failed(&request.tuple);
        return Err(reason);
    }
    try_first(skb, request).map_err(|reason| refuse(request, reason))
}

#[inline(always)]
fn try_first(skb: *mut __sk_buff, request: &FlowQuery) -> Result<First, DropReason> {
    let tuple = &request.tuple;
    let snat = scratch::copied(&request.snat);
    let (sender, flags) = (request.sender(), request.tcp_flags);
    let is_taken = request.taken != 0;
    let attempt = attempt().ok_or(DropReason::HelperFailed)?;
    let opening = Opening {
        tcp_flags: flags,
        is_vacant: !is_taken,
    };
    attempt.prepare(tuple, sender, snat, opening);
    let candidate = candidate(attempt);
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
        give_back(request);
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
pub(super) fn settle(request: &FlowQuery, result: i32) -> Result<Mapping, DropReason> {
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
            count_attempt();
            noted
        }
        Ok(faster) => {
            undo();
            give_back(request);
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
fn refuse(request: &FlowQuery, reason: DropReason) -> DropReason {
    give_back(request);
    count_failed(&request.tuple);
    reason
}

/// Counts a flow less that was not opened.
#[inline(always)]
fn give_back(request: &FlowQuery) {
    quota::give_back(request.endpoint, request.tuple.remote.is_v4());
}
