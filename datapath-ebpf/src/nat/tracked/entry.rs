//! Marks of untranslated flows: the common part of those opened from the outside and those of the
//! host's stack.

use core::ptr;

use datapath_common::abi::{PodTuple, ReapFlow, TrackedFlow};
use datapath_common::progress;

use super::index;
use crate::base::clock;
use crate::nat::Direction;
use crate::nat::tables::Table;
use crate::nat::tables::lock::{lock, unlock};

/// Assigns a flow of the former endpoint with the address to the present one; returns the former
/// owner.
///
/// The entry is changed in place and not removed, since only garbage collection removes entries.
#[inline(always)]
pub(super) fn take_over(
    found: *mut TrackedFlow,
    tuple: &PodTuple,
    to: &TrackedFlow,
) -> Option<u32> {
    // SAFETY: `found` is a map's value, which stays readable and writable while the program runs.
    unsafe {
        lock(&raw mut (*found).lock);
        let former = ptr::read_volatile(&raw const (*found).endpoint);
        let is_left_behind = is_alive(found, tuple) && former != to.endpoint;
        if is_left_behind {
            ptr::write_volatile(&raw mut (*found).endpoint, to.endpoint);
            ptr::write_volatile(&raw mut (*found).last_seen, to.last_seen);
            ptr::write_volatile(&raw mut (*found).made, to.made);
            ptr::write_volatile(&raw mut (*found).progress_out, to.progress_out);
            ptr::write_volatile(&raw mut (*found).progress_in, to.progress_in);
            ptr::write_volatile(&raw mut (*found).eni, to.eni);
            ptr::write_volatile(&raw mut (*found).unmarked, to.unmarked);
        }
        unlock(&raw mut (*found).lock);
        is_left_behind.then_some(former)
    }
}

/// True if a flow is this endpoint's.
#[inline(always)]
pub(super) fn is_owned_by(found: *const TrackedFlow, endpoint: u32) -> bool {
    // SAFETY: a map's value stays readable while the program runs.
    let of = unsafe { ptr::read_volatile(&raw const (*found).endpoint) };
    of == endpoint
}

/// True if a value is the flow of its tuple still.
#[inline(always)]
pub(super) fn is_alive(found: *const TrackedFlow, tuple: &PodTuple) -> bool {
    // SAFETY: as for `is_owned_by`. `dead` is read first: who gives the slot to another flow clears
    // it together with the rest.
    unsafe { ptr::read_volatile(&raw const (*found).dead) == 0 && (*found).is_of(tuple) }
}

/// Removes the flow of a tuple, if its last packet passed at `last_seen`, or in any case
/// ([`ReapFlow::ALWAYS`]). Returns its owner, if it did.
#[inline(always)]
pub(super) fn retire(
    table: &impl Table<PodTuple, TrackedFlow>,
    tuple: &PodTuple,
    last_seen: u64,
) -> Option<u32> {
    let found = table.find(tuple)?;
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
    is_mine.then(|| {
        index::forget(table, tuple);
        endpoint
    })
}

/// Progress that a packet shows, and its direction.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) side: Direction,
    pub(super) progress: u8,
}

impl Shown {
    /// Progress that a packet of the pod shows.
    #[inline(always)]
    pub(super) fn of_pod(progress: u8) -> Self {
        let side = Direction::FromPod;
        Self { side, progress }
    }

    /// Progress that a packet of the remote shows.
    #[inline(always)]
    pub(super) fn of_remote(progress: u8) -> Self {
        let side = Direction::ToPod;
        Self { side, progress }
    }
}

/// Keeps an endpoint's flow alive, as [`flow`](crate::nat::flow) does it, and records the progress
/// of a side; returns true if the flow is alive.
#[inline(always)]
pub(super) fn refresh(
    found: *mut TrackedFlow,
    tuple: &PodTuple,
    endpoint: u32,
    shown: Shown,
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
        let Shown {
            side,
            progress: shown,
        } = shown;
        let (out_after, inward_after) = match side {
            Direction::ToPod => (out, progress::goes_on(shown, inward) | shown),
            // The pod's SYN restarts the progress.
            Direction::FromPod if shown & progress::SYN != 0 => (shown, 0),
            // A pod that goes on has not believed the reset, or what may have ended the connection.
            Direction::FromPod if shown & progress::RST == 0 => {
                (out | shown, inward & !(progress::RST | progress::DOUBT))
            }
            Direction::FromPod => (out | shown, inward),
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
