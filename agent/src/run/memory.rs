//! Memory settings of the agent's process, which keep it small: each node pays for it.

/// Makes the allocator keep one heap for all threads, and release free memory. By default glibc has
/// one heap for each thread. After the first large block that is freed, it also takes blocks of
/// that size from the heap, where they leave holes.
#[cfg(target_env = "gnu")]
pub(crate) fn frugal() {
    /// Size from which on a block is a mapping of its own, in bytes: the default, kept.
    const LARGE: libc::c_int = 128 * 1024;

    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, LARGE)] {
        // SAFETY: the call takes two numbers, and refuses what it does not know.
        let taken = unsafe { libc::mallopt(parameter, value) };
        if taken == 0 {
            tracing::debug!(parameter, "the allocator has no such setting");
        }
    }
}

/// Other allocators do so by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn tune_allocator() {}

/// Releases the memory of the start: the kernel's types and the programs are parsed once.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back() {
    // SAFETY: the call may come at any time; it locks the heap.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do so by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back() {}
