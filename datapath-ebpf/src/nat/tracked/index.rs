//! Look-up of flow marks, which each new flow needs, and which most often finds none.
//!
//! Marks are counted per group of flows, and a group with a count of zero needs no look-up. The
//! counts are more likely in the processor's caches than the slots of a table. User space adds
//! marks, too, and disables the count of their group before.

use datapath_common::abi::PodTuple;

use crate::nat::tables::{Refusal, Table, epoch};

/// The note of a tuple.
#[inline(always)]
pub(in crate::nat) fn find<V>(table: &impl Table<PodTuple, V>, tuple: &PodTuple) -> Option<*mut V> {
    if epoch::has_notes(tuple) {
        table.find(tuple)
    } else {
        None
    }
}

/// Puts in a new note.
#[inline(always)]
pub(in crate::nat) fn claim<V>(
    table: &impl Table<PodTuple, V>,
    tuple: &PodTuple,
    note: &V,
) -> Result<(), Refusal> {
    // It is counted first: a count of zero is then always right.
    epoch::note_comes(tuple);
    let claimed = table.claim(tuple, note);
    if claimed.is_err() {
        epoch::note_is_gone(tuple);
    }
    claimed
}

/// Removes the note of a tuple, if it is there.
#[inline(always)]
pub(in crate::nat) fn forget<V>(table: &impl Table<PodTuple, V>, tuple: &PodTuple) {
    if table.forget(tuple) {
        epoch::note_is_gone(tuple);
    }
}
