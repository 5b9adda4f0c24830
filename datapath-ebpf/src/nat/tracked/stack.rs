//! Flows that take the host's stack both ways, because service NAT there may have translated them.
//!
//! Noted where the stack sends a packet on, to a pod or by an ENI, after its NAT: the tuple is the
//! one that the answer has turned round. What finds its note goes up the stack instead of past it.

use core::ptr;

use datapath_common::abi::{PodTuple, SharedTable, TrackedFlow};
use datapath_common::counter::NatStat;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use datapath_common::progress;

use super::{entry, index};
use crate::base::clock;
use crate::base::maps::STACK;
use crate::nat::tables::{Refusal, Table as _, epoch, room, stats};
use crate::nat::{Direction, IngressEni};
use crate::scratch::FlowQuery;

/// After how many seconds conntrack takes what goes both ways for a stream.
const STREAM_AFTER: u32 = 2;

/// The ENI whose mark the packets of a flow get, or none, if the flow has a mark; keeps that alive.
#[inline(always)]
pub(in crate::nat) fn known(request: &FlowQuery, side: Direction) -> Option<IngressEni> {
    let tuple = &request.tuple;
    let found = index::find(&STACK, tuple)?;
    let progress = shown(found, tuple, request.tcp_flags);
    entry::refresh(
        found,
        tuple,
        request.endpoint,
        entry::Shown { side, progress },
    )
    .then(|| mark(found))
}

/// The ENI whose mark the packets of a flow get, or none, if there is a note of it; does not
/// refresh the note.
#[inline(always)]
pub(in crate::nat) fn peek(request: &FlowQuery) -> Option<IngressEni> {
    let tuple = &request.tuple;
    let found = index::find(&STACK, tuple)?;
    let is_own = entry::is_alive(found, tuple) && entry::is_owned_by(found, request.endpoint);
    is_own.then(|| mark(found))
}

/// Notes a flow, or keeps the note alive that there is.
#[inline(always)]
pub(in crate::nat) fn note(request: &FlowQuery, side: Direction) -> Result<(), DropReason> {
    let tuple = &request.tuple;
    let found = STACK.find(tuple);
    if let Some(found) = found {
        let progress = shown(found, tuple, request.tcp_flags);
        if entry::refresh(
            found,
            tuple,
            request.endpoint,
            entry::Shown { side, progress },
        ) {
            return Ok(());
        }
    }
    let noted = anew(found, request, side);
    if noted.is_err() {
        stats::count(NatStat::StackFailed, tuple.pod.is_v4());
    }
    noted
}

/// Notes a flow that the endpoint does not have, in place of a former one's if there is one.
#[inline(always)]
fn anew(
    found: Option<*mut TrackedFlow>,
    request: &FlowQuery,
    side: Direction,
) -> Result<(), DropReason> {
    let tuple = &request.tuple;
    let shown = progress::of_packet(tuple.protocol, request.tcp_flags);
    let (out, inward) = match side {
        Direction::FromPod => (shown, 0),
        Direction::ToPod => (0, shown),
    };
    let mut value = TrackedFlow::new(tuple, clock::now(), request.endpoint, out);
    value.progress_in = inward;
    value.eni = request.eni;
    value.unmarked = request.unmarked;
    if let Some(found) = found
        && entry::take_over(found, tuple, &value).is_some()
    {
        epoch::advance(tuple);
        return Ok(());
    }
    if !room::take(SharedTable::Stack, request.endpoint) {
        return Err(DropReason::StackFull);
    }
    let claimed = index::claim(&STACK, tuple, &value);
    if claimed.is_err() {
        room::give_back(SharedTable::Stack, request.endpoint);
    }
    match claimed {
        Ok(()) => {
            epoch::advance(tuple);
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
    let Some(endpoint) = entry::retire(&STACK, tuple, last_seen) else {
        return false;
    };
    room::give_back(SharedTable::Stack, endpoint);
    stats::count(NatStat::StackRemoved, tuple.pod.is_v4());
    true
}

/// Progress bits that a packet shows of its flow.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the low word of the time is kept"
)]
fn shown(found: *const TrackedFlow, tuple: &PodTuple, tcp_flags: u8) -> u8 {
    let shown = progress::of_packet(tuple.protocol, tcp_flags);
    if tuple.protocol == protocol::TCP {
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
fn mark(found: *const TrackedFlow) -> IngressEni {
    // SAFETY: as for `shown`.
    let (eni, unmarked) = unsafe {
        (
            ptr::read_volatile(&raw const (*found).eni),
            ptr::read_volatile(&raw const (*found).unmarked),
        )
    };
    if unmarked == 0 {
        IngressEni::Eni(eni)
    } else {
        IngressEni::Elsewhere
    }
}
