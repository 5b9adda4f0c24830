//! The lock in a map's value.
//!
//! The verifier allows for no call of any kind while it is held, and for no return.

use aya_ebpf::bindings;
use aya_ebpf::helpers::generated::{bpf_spin_lock, bpf_spin_unlock};
use datapath_common::abi;

/// Takes a lock.
///
/// # Safety
/// The lock is a map's value's.
#[inline(always)]
pub(in crate::nat) unsafe fn lock(lock: *mut abi::bpf_spin_lock) {
    // SAFETY: by the caller.
    unsafe { bpf_spin_lock(lock.cast::<bindings::bpf_spin_lock>()) };
}

/// Gives a lock back.
///
/// # Safety
/// As for [`lock`], which was called before.
#[inline(always)]
pub(in crate::nat) unsafe fn unlock(lock: *mut abi::bpf_spin_lock) {
    // SAFETY: by the caller.
    unsafe { bpf_spin_unlock(lock.cast::<bindings::bpf_spin_lock>()) };
}
