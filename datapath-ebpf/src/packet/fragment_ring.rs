//! Slots of the records of fragmented datagrams.
//!
//! Each endpoint has a few slots in each direction, which its datagrams take in turn. A flood of
//! fragments therefore evicts records of the flooding endpoint only.
//!
//! The count has no lock, because a value of an LRU map cannot have one. If two CPUs take the same
//! slot at the same time, one of the records stays until it is the oldest of the map.

use core::ptr;

use aya_ebpf::bindings::BPF_NOEXIST;
use datapath_common::abi::{Datagram, DatagramKey, FragmentRing};

use crate::base::maps::{FRAGMENT_RINGS, FRAGMENTS};
use crate::scratch;

/// An endpoint's first value. The stack has no room for it.
static EMPTY: FragmentRing = FragmentRing::EMPTY;

/// Takes the next slot of a ring for a datagram, and removes the record of the datagram that had
/// the slot.
#[inline(always)]
pub(super) fn take(ring: u32, datagram: &DatagramKey) -> u8 {
    let Some(ring) = find(ring) else {
        return Datagram::NO_SLOT;
    };
    // SAFETY: `ring` is a map's value, which stays readable and writable while the program runs.
    // If it is evicted at this very moment, another endpoint's datagram loses its record.
    unsafe {
        let count = &raw mut (*ring).count;
        let number = ptr::read_volatile(count);
        ptr::write_volatile(count, number.wrapping_add(1));
        let slot = FragmentRing::slot(number);
        let place = (&raw mut (*ring).slots)
            .cast::<DatagramKey>()
            .add(slot as usize);
        #[expect(clippy::cast_possible_truncation, reason = "a ring has fewer slots")]
        let slot = slot as u8;
        remove(&*place, slot);
        place.write(scratch::copied(datagram));
        slot
    }
}

/// The ring with a key.
#[inline(always)]
fn find(key: u32) -> Option<*mut FragmentRing> {
    FRAGMENT_RINGS.get_ptr_mut(key).or_else(|| {
        #[expect(
            clippy::needless_borrows_for_generic_args,
            reason = "the ring is larger than the stack has room for"
        )]
        // Another CPU may be faster.
        let _exists = FRAGMENT_RINGS.insert(key, &EMPTY, u64::from(BPF_NOEXIST));
        FRAGMENT_RINGS.get_ptr_mut(key)
    })
}

/// Removes the record of a datagram, unless the datagram has taken a later slot since.
#[inline(always)]
fn remove(datagram: &DatagramKey, slot: u8) {
    // SAFETY: if the entry is evicted at this very moment, nothing is removed, or a record of
    // another datagram of the same slot, whose later fragments are dropped.
    let has_slot = unsafe { FRAGMENTS.get(datagram) }.is_some_and(|record| record.slot == slot);
    if has_slot {
        // It may have been evicted since.
        let _gone = FRAGMENTS.remove(datagram);
    }
}
