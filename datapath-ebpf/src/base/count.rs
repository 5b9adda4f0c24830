//! Counting outcomes.

use super::maps;

/// Counts a packet of `bytes` bytes in a slot.
#[inline(always)]
pub(crate) fn slot(slot: u32, bytes: u32) {
    if let Some(counter) = maps::counter(slot) {
        // SAFETY: the slot is this CPU's own, and a program is not interrupted by another one on
        // its hook; no other reference to it exists.
        let counter = unsafe { &mut *counter };
        counter.packets = counter.packets.wrapping_add(1);
        counter.bytes = counter.bytes.wrapping_add(u64::from(bytes));
    }
}
