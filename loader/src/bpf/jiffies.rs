//! How long a jiffy is on this kernel, and what the time is in jiffies.
//!
//! The programs take the time in jiffies. `CONFIG_HZ` is told nowhere that is always readable, so
//! it is measured.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::sys::run::{self, JIFFIES_HIGH, JIFFIES_LOW};

/// The values that `CONFIG_HZ` can have on x86 and arm64 (`kernel/Kconfig.hz`).
const POSSIBLE: [u32; 4] = [100, 250, 300, 1000];
/// How long is measured: 5 jiffies between the closest two of [`POSSIBLE`].
const MEASURED: Duration = Duration::from_millis(100);
/// Most jiffies by which a measurement may be off: a fraction at either end, and how long the
/// calls take.
const TOLERANCE: f64 = 1.5;
/// Measurements before giving up. One fails when the thread is kept from running.
const ATTEMPTS: u32 = 20;

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

/// Jiffies in a second, measured once in a process.
///
/// # Errors
/// When the kernel does not run programs, or no measurement succeeds.
pub fn jiffies_per_second() -> Result<u32> {
    static FOUND: OnceLock<u32> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let found = measure()?;
    Ok(*FOUND.get_or_init(|| found))
}

fn measure() -> Result<u32> {
    let clock = Jiffies::open().context("cannot load the program that reads jiffies")?;
    let mut last = 0;
    for _attempt in 0..ATTEMPTS {
        let (start, first) = (Instant::now(), clock.now()?);
        thread::sleep(MEASURED);
        let (took, second) = (start.elapsed(), clock.now()?);
        last = second.saturating_sub(first);
        if let Some(hertz) = snap(last, took) {
            return Ok(hertz);
        }
    }
    bail!("cannot find out how long a jiffy is: {last} passed in about {MEASURED:?}");
}

/// The possible value that a measurement shows; none when it shows none or more than one.
fn snap(jiffies: u64, took: Duration) -> Option<u32> {
    let jiffies = f64::from(u32::try_from(jiffies).ok()?);
    let fits = |hertz: &u32| {
        let expected = f64::from(*hertz) * took.as_secs_f64();
        (jiffies - expected).abs() <= TOLERANCE
    };
    let mut fitting = POSSIBLE.into_iter().filter(fits);
    let hertz = fitting.next()?;
    fitting.next().is_none().then_some(hertz)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_shows_a_value_or_nothing() {
        for hertz in POSSIBLE {
            let passed = u64::from(hertz / 10);
            for passed in [passed - 1, passed, passed + 1] {
                assert_eq!(snap(passed, MEASURED), Some(hertz));
            }
        }
        assert_eq!(snap(50, MEASURED), None);
        // Too short to tell 250 from 300.
        assert_eq!(snap(5, Duration::from_millis(18)), None);
        assert_eq!(snap(0, MEASURED), None);
    }
}
