//! Opening a flow: the slow path, once for each.
//!
//! It has three steps, each a global function that the program itself calls: one inside of another,
//! they would take more stack than a program may have.

use aya_ebpf::bindings::__sk_buff;
use datapath_common::abi::HOST;
use datapath_common::counter::NatStat;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;

use super::claim::{Attempt, attempt, claim};
use super::request::Request;
use super::tables::{Refusal, Table as _, Tables};
use super::{Mapping, blocks, flow, moved, ports, quota, stats};

/// What the first step came to.
pub(super) enum First {
    /// There is a flow, this one or that of another CPU.
    Open(Mapping),
    /// The port is taken: another one is to be searched for, and [`settle`] comes then.
    Taken,
}

/// The first step: claims the first candidate port.
#[inline(always)]
pub(super) fn first<F: Tables>(
    skb: *mut __sk_buff,
    request: &Request,
) -> Result<First, DropReason> {
    if let Err(reason) = quota::take(request.endpoint) {
        stats::count::<F>(NatStat::Failed);
        return Err(reason);
    }
    claim_first::<F>(skb, request).map_err(|reason| refuse::<F>(request, reason))
}

#[inline(always)]
fn claim_first<F: Tables>(skb: *mut __sk_buff, request: &Request) -> Result<First, DropReason> {
    let tuple = &request.tuple;
    let candidate = ports::candidate_of(request);
    // The checksum covers the ports, and to change it takes all of the packet.
    let must_keep = tuple.protocol == protocol::SCTP;
    if must_keep && candidate != tuple.pod_port {
        return Err(DropReason::SctpPortTaken);
    }
    Attempt::prepare(request).ok_or(DropReason::HelperFailed)?;
    let mapping = request.at(candidate);
    match Refusal::of(claim::<F>(skb, candidate)) {
        Ok(()) => {
            count::<F>(request, candidate);
            return Ok(First::Open(mapping));
        }
        Err(Refusal::Exists) => {}
        Err(refusal) => return Err(refusal.reason(DropReason::FlowsFull)),
    }
    // Another CPU was faster.
    if flow::refreshed_at::<F>(request, Mapping::to_register(Some(mapping))) != 0 {
        quota::give_back(request.endpoint);
        return Ok(First::Open(mapping));
    }
    if must_keep {
        return Err(DropReason::SctpPortTaken);
    }
    Ok(First::Taken)
}

/// The last step, with what the search's last insertion gave: notes where the flow is.
#[inline(always)]
pub(super) fn settle<F: Tables>(request: &Request, result: i32) -> Result<Mapping, DropReason> {
    let port = attempt().map_or(0, |attempt| attempt.key.port);
    match Refusal::of(result) {
        Ok(()) => {}
        Err(Refusal::Exists) => return Err(refuse::<F>(request, DropReason::NoPort)),
        Err(refusal) => return Err(refuse::<F>(request, refusal.reason(DropReason::FlowsFull))),
    }
    let mapping = request.at(port);
    let noted = moved::note::<F>(request, mapping);
    match noted {
        Ok(at) if at.port == mapping.port && at.eni == mapping.eni => {
            count::<F>(request, port);
            noted
        }
        Ok(_faster) => {
            undo::<F>();
            quota::give_back(request.endpoint);
            noted
        }
        Err(reason) => {
            undo::<F>();
            Err(refuse::<F>(request, reason))
        }
    }
}

/// Takes back a flow that was just opened off its first candidate port. No note leads to it, so
/// nobody else has seen it.
#[inline(always)]
fn undo<F: Tables>() {
    if let Some(attempt) = attempt() {
        F::flows().forget(&attempt.key);
        blocks::give_back(&attempt.key);
    }
}

/// Counts a flow that could not be opened.
#[inline(always)]
fn refuse<F: Tables>(request: &Request, reason: DropReason) -> DropReason {
    quota::give_back(request.endpoint);
    stats::count::<F>(NatStat::Failed);
    reason
}

/// Counts a flow that got a port.
#[inline(always)]
fn count<F: Tables>(request: &Request, port: u16) {
    stats::count::<F>(NatStat::Allocated);
    if port == request.tuple.pod_port {
        stats::count::<F>(NatStat::Kept);
    }
    if request.endpoint == HOST {
        stats::count::<F>(NatStat::Host);
    }
    let tries = attempt().map_or(0, |attempt| attempt.tries);
    stats::count::<F>(match tries {
        0..=1 => NatStat::Tries1,
        2..=5 => NatStat::Tries5,
        6..=16 => NatStat::Tries16,
        17..=32 => NatStat::Tries32,
        _ => NatStat::TriesMore,
    });
}
