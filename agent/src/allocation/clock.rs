//! The clock of leases and cooldowns.

use std::fs;

use anyhow::{Context as _, Result};
use ipam::Time;
use nix::time::{ClockId, clock_gettime};

/// File with the kernel's id of this boot (Documentation/admin-guide/sysctl/kernel.rst).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[cfg(test)]
thread_local! {
    /// Offset of a test's clock from the machine's.
    static AHEAD: std::cell::Cell<std::time::Duration> = const { std::cell::Cell::new(std::time::Duration::ZERO) };
}

/// Advances the clock of this thread.
#[cfg(test)]
pub(super) fn pass(time: std::time::Duration) {
    AHEAD.set(AHEAD.get() + time);
}

/// The time since the machine booted. It cannot be set, goes on while the machine sleeps, and
/// survives restarts of the agent. Records of another boot have another boot id.
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
