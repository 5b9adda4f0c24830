//! Which flows have changed: a counter for each of some thousand groups of flows.

#[cfg(target_arch = "bpf")]
use core::arch::asm;

use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use datapath_common::abi::{CACHE_GROUPS, PodTuple};
use datapath_common::fault::Fault;

use crate::fault;

#[btf_map]
static CACHE_EPOCHS: Array<u64, { CACHE_GROUPS as usize }> = Array::new();

const _: () = assert!(CACHE_GROUPS.is_power_of_two());

/// The group of a flow, from what both of its directions have: the words that source and destination
/// have not in common, and the same of the ports.
#[inline(always)]
pub(super) fn group(addresses: u32, ports: u16) -> u32 {
    /// 2^32 divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3,
    /// section 6.4).
    const MULTIPLIER: u32 = 0x9e37_79b9;
    let mixed = (addresses ^ u32::from(ports)).wrapping_mul(MULTIPLIER);
    mixed >> (u32::BITS - CACHE_GROUPS.trailing_zeros())
}

/// The group of a flow.
#[inline(always)]
pub(super) fn group_of(tuple: &PodTuple) -> u32 {
    let addresses = tuple.pod.fold() ^ tuple.remote.fold();
    group(addresses, tuple.pod_port ^ tuple.remote_port)
}

/// How often a flow of the group has changed.
#[inline(always)]
pub(super) fn of(group: u32) -> u64 {
    CACHE_EPOCHS
        .get_ptr(group)
        // SAFETY: a map's value stays readable while the program runs.
        .map_or(0, |epoch| unsafe { epoch.read_volatile() })
}

/// Says that what is known of a flow has changed. To be called behind the change.
#[inline(always)]
pub(crate) fn advance(tuple: &PodTuple) {
    if fault::has(Fault::StaleFlow) {
        return;
    }
    if let Some(epoch) = CACHE_EPOCHS.get_ptr_mut(group_of(tuple)) {
        // core has no atomic operations for this target.
        // SAFETY: a map's value stays readable and writable while the program runs, and all access
        // is by words.
        #[cfg(target_arch = "bpf")]
        unsafe {
            asm!(
                "lock *(u64 *)({epoch} + 0) += {one}",
                epoch = in(reg) epoch,
                one = in(reg) 1_u64,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(not(target_arch = "bpf"))]
        let _ = epoch;
    }
}
