//! Counting what translation does.

use datapath_common::counter::NatStat;

use super::tables::Tables;
use crate::maps::NAT_STATS;

/// Counts one.
#[inline(always)]
pub(crate) fn count<F: Tables>(stat: NatStat) {
    count_of(stat, F::IS_V4);
}

/// Counts one, of a family that only run time knows.
#[inline(always)]
pub(crate) fn count_of(stat: NatStat, is_v4: bool) {
    if let Some(slot) = NAT_STATS.get_ptr_mut(stat.slot(is_v4)) {
        // SAFETY: the slot is this CPU's own, and no other reference to it exists.
        unsafe { *slot = (*slot).wrapping_add(1) };
    }
}
