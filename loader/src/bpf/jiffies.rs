//! Length of a jiffy on this kernel, and the time in jiffies.
//!
//! The programs measure time in jiffies. No file that is always readable has `CONFIG_HZ` itself,
//! but the resolution of the coarse clocks is one jiffy.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getres};

use crate::bpf::sys::run::{self, JIFFIES_HIGH, JIFFIES_LOW};

/// Nanoseconds in a second.
const SECOND: i64 = 1_000_000_000;

/// The clock of the programs: `bpf_jiffies64`. A program's run gives back 32 bits, so it takes two
/// programs.
pub(super) struct Jiffies {
    low: OwnedFd,
    high: OwnedFd,
}

impl Jiffies {
    /// Opens the clock.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self {
            low: run::load(JIFFIES_LOW)?,
            high: run::load(JIFFIES_HIGH)?,
        })
    }

    /// The time, in jiffies.
    pub(super) fn now(&self) -> io::Result<u64> {
        let mut high = part(&self.high)?;
        loop {
            let low = part(&self.low)?;
            let after = part(&self.high)?;
            if high == after {
                return Ok(u64::from(high) << 32 | u64::from(low));
            }
            high = after;
        }
    }
}

fn part(program: &OwnedFd) -> io::Result<u32> {
    // The kernel takes no packet shorter than an Ethernet header.
    run::test_run(program.as_fd(), &[0; 64])
}

/// Jiffies in a second.
///
/// # Errors
/// When the kernel has no coarse clock.
pub fn jiffies_per_second() -> Result<u32> {
    // `posix_get_coarse_res` in kernel/time/posix-timers.c answers with `TICK_NSEC`.
    let tick =
        clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).context("read the length of a jiffy")?;
    hertz(tick.tv_sec(), tick.tv_nsec())
        .context("a jiffy is shorter than a second, and not nothing")
}

/// Number of times that a duration fits into a second, to the nearest: the kernel rounds a jiffy's
/// length (`TICK_NSEC` in include/linux/jiffies.h).
fn hertz(seconds: i64, nanoseconds: i64) -> Option<u32> {
    let length = (seconds == 0 && nanoseconds > 0).then_some(nanoseconds)?;
    u32::try_from((SECOND + length / 2) / length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_of_a_jiffy_shows_its_frequency() {
        // Frequencies of x86 and arm64 (kernel/Kconfig.hz).
        for possible in [100, 250, 300, 1000] {
            let length = (SECOND + i64::from(possible) / 2) / i64::from(possible);
            assert_eq!(hertz(0, length), u32::try_from(possible).ok());
        }
        assert_eq!(hertz(0, 0), None);
        assert_eq!(hertz(1, 0), None);
    }
}
