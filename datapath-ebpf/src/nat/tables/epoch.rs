//! Changes of flows, and counts of flow marks: a word for each of some thousand groups of flows.

#[cfg(target_arch = "bpf")]
use core::arch::asm;

use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use datapath_common::abi::{CACHE_GROUPS, GROUP_NOTE, PodTuple, group_of, may_be_noted};

#[btf_map]
static CACHE_EPOCHS: Array<u64, { CACHE_GROUPS as usize }> = Array::new();

/// A group's word, which is another one when a flow of it has changed.
#[inline(always)]
pub(crate) fn of(group: u32) -> u64 {
    CACHE_EPOCHS
        .get_ptr(group)
        // SAFETY: a map's value stays readable while the program runs.
        .map_or(0, |word| unsafe { word.read_volatile() })
}

/// Invalidates the cache entries of a flow's group. Must be called after the change of the flow.
#[inline(always)]
pub(crate) fn advance(tuple: &PodTuple) {
    add(tuple, 1);
}

/// True if a flow may have a note.
#[inline(always)]
pub(crate) fn has_notes(tuple: &PodTuple) -> bool {
    may_be_noted(of(group_of(tuple)))
}

/// Says that a flow is about to get a note.
#[inline(always)]
pub(crate) fn note_comes(tuple: &PodTuple) {
    add(tuple, GROUP_NOTE);
}

/// Says that a note of a flow is gone, or has not come.
#[inline(always)]
pub(crate) fn note_is_gone(tuple: &PodTuple) {
    add(tuple, GROUP_NOTE.wrapping_neg());
}

/// Adds to the word of a flow's group.
#[inline(always)]
fn add(tuple: &PodTuple, summand: u64) {
    if let Some(word) = CACHE_EPOCHS.get_ptr_mut(group_of(tuple)) {
        // core has no atomic operations for this target.
        // SAFETY: a map's value stays readable and writable while the program runs, and all access
        // is by words.
        #[cfg(target_arch = "bpf")]
        unsafe {
            asm!(
                "lock *(u64 *)({word} + 0) += {summand}",
                word = in(reg) word,
                summand = in(reg) summand,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(not(target_arch = "bpf"))]
        let _ = (word, summand);
    }
}
