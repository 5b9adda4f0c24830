//! Counts of opened flows, and of those that could not be opened.

use datapath_common::abi::PodTuple;
use datapath_common::counter::{NatStat, nat_at_once_slot};

use crate::nat::attempt::attempt;
use crate::nat::tables::stats;
use crate::scratch::PortClaim;

// Counting has global functions of its own, since several places need it. The time that the kernel
// takes to verify a program grows with its look-ups of array entries.

/// Counts a flow that could not be opened.
#[inline(always)]
pub(super) fn count_failed(tuple: &PodTuple) {
    let _done = nat_failed(tuple.remote.is_v4().into());
}

/// Counts the flow of the attempt, which got its port.
#[inline(always)]
pub(super) fn count_attempt() {
    let _done = nat_opened();
}

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
pub(super) fn count_opened(attempt: &PortClaim) {
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
