//! Settings that keep the agent's memory small: it is taken from the node's pods.

/// Makes the allocator keep one heap for all threads, and give back free memory. By default glibc
/// has one for each thread, and after the first large block that is freed it takes blocks of that
/// size out of the heap, where they leave holes.
#[cfg(target_env = "gnu")]
pub(crate) fn tune_allocator() {
    /// From this size on a block is a mapping of its own, in bytes: the default, kept.
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

/// Gives back what the start took: the kernel's types and the programs are parsed once.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back() {
    // SAFETY: the call may come at any time; it locks the heap.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do so by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back() {}
