//! Time in jiffies: the cheapest clock that a program of 5.10 has.

use aya_ebpf::Global;
use aya_ebpf::helpers::generated::bpf_jiffies64;

/// The kernel's `CONFIG_HZ`, which user space sets. The default is Debian's.
#[unsafe(no_mangle)]
static JIFFIES_PER_SECOND: Global<u32> = Global::new(250);

/// The time.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper takes nothing.
    unsafe { bpf_jiffies64() }
}

/// So many seconds in jiffies.
#[inline(always)]
pub(crate) fn seconds(seconds: u32) -> u64 {
    u64::from(seconds) * u64::from(JIFFIES_PER_SECOND.load())
}
