//! Flows opened from outside the exempt destinations, whose answers are not translated.

use core::ptr;

use datapath_common::abi::{Inbound, PodTuple, ReapFlow};
use datapath_common::counter::NatStat;
use datapath_common::fault::Fault;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use datapath_common::progress;

use super::lock::{lock, unlock};
use super::tables::{Refusal, Table as _};
use super::{quota, stats};
use crate::clock;
use crate::fault;
use crate::maps::INBOUND;

/// From which side a packet is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Pod,
    Outside,
}

/// Whether a packet of an endpoint belongs to an inbound flow; keeps that alive.
#[inline(always)]
pub(crate) fn known(tuple: &PodTuple, endpoint: u32, tcp_flags: u8) -> bool {
    let shown = progress::of_packet(tuple.protocol, tcp_flags);
    INBOUND
        .find(tuple)
        .is_some_and(|found| refresh(found, tuple, endpoint, (Side::Pod, shown)))
}

/// A segment from the outside, if it is one of an endpoint's inbound flow: keeps that alive, and
/// notes what it shows.
#[inline(always)]
pub(super) fn seen(tuple: &PodTuple, endpoint: u32, tcp_flags: u8) {
    if let Some(found) = INBOUND.find(tuple) {
        let shown = progress::of_packet(protocol::TCP, tcp_flags) & !progress::SYN;
        refresh(found, tuple, endpoint, (Side::Outside, shown));
    }
}

/// Whether an endpoint has an inbound flow; leaves it as it is.
#[inline(always)]
pub(crate) fn peek(tuple: &PodTuple, endpoint: u32) -> bool {
    INBOUND
        .find(tuple)
        .is_some_and(|found| is_alive(found, tuple) && is_owned_by(found, endpoint))
}

/// Notes an inbound flow of an endpoint, or keeps the one alive that there is. TCP's come with the
/// pod's answer, others with what arrives, which shows nothing of the pod.
#[inline(always)]
pub(super) fn note(tuple: &PodTuple, endpoint: u32, tcp_flags: u8) -> Result<(), DropReason> {
    let shown = if tuple.protocol == protocol::TCP {
        progress::of_packet(protocol::TCP, tcp_flags)
    } else {
        0
    };
    let found = INBOUND.find(tuple);
    if let Some(found) = found
        && refresh(found, tuple, endpoint, (Side::Pod, shown))
    {
        return Ok(());
    }
    let noted = anew(found, tuple, endpoint, shown);
    if noted.is_err() {
        stats::count_of(NatStat::InboundFailed, tuple.pod.is_v4());
    }
    noted
}

/// Notes a flow that the endpoint does not have, in place of a former one's if there is one.
#[inline(always)]
fn anew(
    found: Option<*mut Inbound>,
    tuple: &PodTuple,
    endpoint: u32,
    shown: u8,
) -> Result<(), DropReason> {
    quota::take_inbound(endpoint)?;
    if let Some(found) = found
        && let Some(former) = take_over(found, tuple, endpoint, shown)
    {
        quota::give_back_inbound(former);
        return Ok(());
    }
    let put = INBOUND.claim(tuple, &Inbound::new(tuple, clock::now(), endpoint, shown));
    if put.is_err() {
        quota::give_back_inbound(endpoint);
    }
    match put {
        Ok(()) => {
            stats::count_of(NatStat::InboundNoted, tuple.pod.is_v4());
            Ok(())
        }
        // Another CPU was faster, or the flow is just being removed; then the next packet makes it
        // anew.
        Err(Refusal::Exists) => Ok(()),
        Err(refusal) => Err(refusal.reason(DropReason::InboundFull)),
    }
}

/// Gives an endpoint the flow that the former one with its address has left behind; whose it was.
///
/// In place, and not by removing it: only the reaper removes.
#[inline(always)]
fn take_over(found: *mut Inbound, tuple: &PodTuple, endpoint: u32, shown: u8) -> Option<u32> {
    // No helper may be called under the lock.
    let now = clock::now();
    // SAFETY: `found` is a map's value, which stays readable and writable while the program runs.
    unsafe {
        lock(&raw mut (*found).lock);
        let former = ptr::read_volatile(&raw const (*found).endpoint);
        let is_left_behind = is_alive(found, tuple) && former != endpoint;
        if is_left_behind {
            ptr::write_volatile(&raw mut (*found).endpoint, endpoint);
            ptr::write_volatile(&raw mut (*found).last_seen, now);
            ptr::write_volatile(&raw mut (*found).progress_out, shown);
            ptr::write_volatile(&raw mut (*found).progress_in, 0);
        }
        unlock(&raw mut (*found).lock);
        is_left_behind.then_some(former)
    }
}

/// Whether a flow is this endpoint's.
#[inline(always)]
fn is_owned_by(found: *const Inbound, endpoint: u32) -> bool {
    // SAFETY: a map's value stays readable while the program runs.
    let of = unsafe { ptr::read_volatile(&raw const (*found).endpoint) };
    of == endpoint || fault::has(Fault::FormerPodsFlow)
}

/// Whether a value is the flow of its tuple still.
#[inline(always)]
fn is_alive(found: *const Inbound, tuple: &PodTuple) -> bool {
    // SAFETY: as for `is_owned_by`. `dead` is read first: who gives the slot to another flow clears
    // it together with the rest.
    unsafe { ptr::read_volatile(&raw const (*found).dead) == 0 && (*found).is_of(tuple) }
}

/// Removes the flow of a tuple, if its last packet passed at `last_seen`, or in any case
/// ([`ReapFlow::ALWAYS`]). Tells whether it did.
#[inline(always)]
pub(crate) fn retire(tuple: &PodTuple, last_seen: u64) -> bool {
    let Some(found) = INBOUND.find(tuple) else {
        return false;
    };
    // SAFETY: `found` is a map's value, which stays readable and writable while the program runs.
    let (is_mine, endpoint) = unsafe {
        lock(&raw mut (*found).lock);
        let is_idle = last_seen == ReapFlow::ALWAYS
            || last_seen == ptr::read_volatile(&raw const (*found).last_seen);
        let is_mine = is_idle && is_alive(found, tuple);
        let endpoint = ptr::read_volatile(&raw const (*found).endpoint);
        if is_mine {
            ptr::write_volatile(&raw mut (*found).dead, 1);
        }
        unlock(&raw mut (*found).lock);
        (is_mine, endpoint)
    };
    if is_mine {
        INBOUND.forget(tuple);
        quota::give_back_inbound(endpoint);
        stats::count_of(NatStat::InboundRemoved, tuple.pod.is_v4());
    }
    is_mine
}

/// Keeps an endpoint's flow alive, as [`super::flow`] does it, with what a side shows; tells whether
/// it lives.
#[inline(always)]
fn refresh(
    found: *mut Inbound,
    tuple: &PodTuple,
    endpoint: u32,
    (side, shown): (Side, u8),
) -> bool {
    if !is_owned_by(found, endpoint) {
        return false;
    }
    let now = clock::now();
    // SAFETY: `found` is a map's value, which stays readable and writable while the program runs.
    // Others write it at the same time; every field is read and written once, as a word.
    unsafe {
        let last_seen = ptr::read_volatile(&raw const (*found).last_seen);
        if now.saturating_sub(last_seen) >= clock::seconds(1) {
            lock(&raw mut (*found).lock);
            let lives = is_alive(found, tuple);
            if lives {
                ptr::write_volatile(&raw mut (*found).last_seen, now);
            }
            unlock(&raw mut (*found).lock);
            if !lives {
                return false;
            }
        } else if !(*found).is_of(tuple) {
            return false;
        }
        let out = ptr::read_volatile(&raw const (*found).progress_out);
        let inward = ptr::read_volatile(&raw const (*found).progress_in);
        let (out_after, inward_after) = match side {
            Side::Outside => (out, inward | shown),
            // The pod's SYN begins anew what stood there.
            Side::Pod if shown & progress::SYN != 0 => (shown, 0),
            // A pod that goes on has not believed the reset.
            Side::Pod if shown & progress::RST == 0 => (out | shown, inward & !progress::RST),
            Side::Pod => (out | shown, inward),
        };
        if out_after != out {
            ptr::write_volatile(&raw mut (*found).progress_out, out_after);
        }
        if inward_after != inward {
            ptr::write_volatile(&raw mut (*found).progress_in, inward_after);
        }
    }
    true
}
