//! Counting what translation does.

use datapath_common::counter::NatStat;

use crate::base::maps::NAT_STATS;

/// Counts one.
#[inline(always)]
pub(crate) fn count(stat: NatStat, is_v4: bool) {
    count_in(stat.slot(is_v4));
}

/// Counts one in a slot.
#[inline(always)]
pub(in crate::nat) fn count_in(slot: u32) {
    if let Some(slot) = NAT_STATS.get_ptr_mut(slot) {
        // SAFETY: the slot is this CPU's own, and no other reference to it exists.
        unsafe { *slot = (*slot).wrapping_add(1) };
    }
}
