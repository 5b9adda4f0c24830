//! Flows that take the host's stack both ways, because service NAT there may have translated them.
//!
//! Noted where the stack sends a packet on, to a pod or by an ENI, after its NAT: the tuple is the
//! one that the answer has turned round. What finds its note goes up the stack instead of past it.

use core::ptr;

use datapath_common::abi::{Note, PodTuple};
use datapath_common::counter::NatStat;
use datapath_common::fault::Fault;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use datapath_common::progress;

use super::Came;
use super::note::{self, Side};
use super::request::Request;
use super::tables::{Refusal, Table as _};
use super::{noted, stats};
use crate::cache;
use crate::clock;
use crate::fault;
use crate::maps::STACK;

/// After how many seconds conntrack takes what goes both ways for a stream.
const STREAM_AFTER: u32 = 2;

/// The ENI whose mark the packets of a flow get, or none, if the flow has a mark; keeps that alive.
#[inline(always)]
pub(super) fn known(request: &Request, side: Side) -> Option<Came> {
    let tuple = &request.tuple;
    let found = noted::find(&STACK, tuple)?;
    let shown = shown(found, tuple, request.tcp_flags);
    note::refresh(found, tuple, request.endpoint, (side, shown)).then(|| mark(found))
}

/// The ENI whose mark the packets of a flow get, or none, if there is a note of it; does not
/// refresh the note.
#[inline(always)]
pub(super) fn peek(request: &Request) -> Option<Came> {
    let tuple = &request.tuple;
    let found = noted::find(&STACK, tuple)?;
    let is_own = note::is_alive(found, tuple) && note::is_owned_by(found, request.endpoint);
    is_own.then(|| mark(found))
}

/// Notes a flow, or keeps the note alive that there is.
#[inline(always)]
pub(super) fn note(request: &Request, side: Side) -> Result<(), DropReason> {
    let tuple = &request.tuple;
    let found = STACK.find(tuple);
    if let Some(found) = found {
        let shown = shown(found, tuple, request.tcp_flags);
        if note::refresh(found, tuple, request.endpoint, (side, shown)) {
            return Ok(());
        }
    }
    let noted = anew(found, request, side);
    if noted.is_err() {
        stats::count(NatStat::StackFailed, tuple.pod.is_v4());
    }
    if fault::has(Fault::StackFullPassed) {
        return Ok(());
    }
    noted
}

/// Notes a flow that the endpoint does not have, in place of a former one's if there is one.
#[inline(always)]
fn anew(found: Option<*mut Note>, request: &Request, side: Side) -> Result<(), DropReason> {
    let tuple = &request.tuple;
    let shown = progress::of_packet(tuple.protocol, request.tcp_flags);
    let (out, inward) = match side {
        Side::Pod => (shown, 0),
        Side::Outside => (0, shown),
    };
    let mut value = Note::new(tuple, clock::now(), request.endpoint, out);
    value.progress_in = inward;
    value.eni = request.eni;
    value.unmarked = request.unmarked;
    if let Some(found) = found
        && note::take_over(found, tuple, &value).is_some()
    {
        cache::epoch::advance(tuple);
        return Ok(());
    }
    match noted::claim(&STACK, tuple, &value) {
        Ok(()) => {
            cache::epoch::advance(tuple);
            stats::count(NatStat::StackNoted, tuple.pod.is_v4());
            Ok(())
        }
        // Another CPU was faster, or the note is just being removed. In the latter case the next
        // packet makes it again.
        Err(Refusal::Exists) => Ok(()),
        Err(refusal) => Err(refusal.reason(DropReason::StackFull)),
    }
}

/// Removes the note of a tuple, if its last packet passed at `last_seen`, or in any case. Returns
/// true if it did.
#[inline(always)]
pub(crate) fn retire(tuple: &PodTuple, last_seen: u64) -> bool {
    let is_gone = note::retire(&STACK, tuple, last_seen).is_some();
    if is_gone {
        stats::count(NatStat::StackRemoved, tuple.pod.is_v4());
    }
    is_gone
}

/// Progress bits that a packet shows of its flow.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the low word of the time is kept"
)]
fn shown(found: *const Note, tuple: &PodTuple, tcp_flags: u8) -> u8 {
    let shown = progress::of_packet(tuple.protocol, tcp_flags);
    if tuple.protocol == protocol::TCP || fault::has(Fault::StreamIgnored) {
        return shown;
    }
    // SAFETY: `found` is a map's value, which stays readable while the program runs.
    let (made, both) = unsafe {
        let out = ptr::read_volatile(&raw const (*found).progress_out);
        let inward = ptr::read_volatile(&raw const (*found).progress_in);
        (ptr::read_volatile(&raw const (*found).made), out & inward)
    };
    let age = (clock::now() as u32).wrapping_sub(made);
    if both & progress::DATA != 0 && u64::from(age) > clock::seconds(STREAM_AFTER) {
        shown | progress::STREAM
    } else {
        shown
    }
}

#[inline(always)]
fn mark(found: *const Note) -> Came {
    // SAFETY: as for `shown`.
    let (eni, unmarked) = unsafe {
        (
            ptr::read_volatile(&raw const (*found).eni),
            ptr::read_volatile(&raw const (*found).unmarked),
        )
    };
    if unmarked == 0 {
        Came::Eni(eni)
    } else {
        Came::Elsewhere
    }
}
