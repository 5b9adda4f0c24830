//! The clock that leases and cooldowns go by.

use std::fs;

use anyhow::{Context as _, Result};
use ipam::Time;
use nix::time::{ClockId, clock_gettime};

/// This boot, as the kernel names it (Documentation/admin-guide/sysctl/kernel.rst).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[cfg(test)]
thread_local! {
    /// By how much a test is ahead of the machine.
    static AHEAD: std::cell::Cell<std::time::Duration> = const { std::cell::Cell::new(std::time::Duration::ZERO) };
}

/// Has so much time be over for this thread.
#[cfg(test)]
pub(super) fn pass(time: std::time::Duration) {
    AHEAD.set(AHEAD.get() + time);
}

/// The time since the machine has booted. Nobody can set it, it goes on while the machine sleeps,
/// and it outlives the agent; what was written down in another boot is known by the boot's id.
pub(super) fn now() -> Result<Time> {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).context("read the time since boot")?;
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec() / 1_000_000).unwrap_or(0);
    let now = Time::from_millis(seconds * 1000 + millis);
    #[cfg(test)]
    let now = now.after(AHEAD.get());
    Ok(now)
}

/// The id of this boot.
pub(crate) fn boot_id() -> Result<String> {
    let text = fs::read_to_string(BOOT_ID).with_context(|| format!("read {BOOT_ID}"))?;
    Ok(text.trim().to_owned())
}
