//! CPU time of this process, and of the kernel's work for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// The CPU that all measurements run on, and its clocks.
///
/// A softirq that interrupts a thread counts in that thread's time, unless the kernel accounts
/// interrupts separately (`CONFIG_IRQ_TIME_ACCOUNTING`). The time of softirqs in `ksoftirqd` is
/// added. With separate accounting, CPU time lacks the receiving side of every packet. The ratio of
/// wall to CPU time, which is reported with the results, is then far from 1.
#[derive(Debug)]
pub struct Clock {
    cpu: usize,
    softirqd: Option<PathBuf>,
}

/// The clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    cpu: Duration,
    softirqd: Duration,
    wall: Instant,
}

/// Duration of an operation, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Took {
    /// CPU time.
    pub cpu: f64,
    /// Wall time.
    pub wall: f64,
}

impl Clock {
    /// Chooses the last CPU that this process may run on: interrupts of devices are mostly served by
    /// the first.
    ///
    /// # Errors
    /// When the kernel does not report the CPUs.
    pub fn new() -> Result<Self> {
        let allowed = sched_getaffinity(Pid::from_raw(0))?;
        let cpu = (0..CpuSet::count())
            .rev()
            .find(|cpu| allowed.is_set(*cpu).unwrap_or(false))
            .context("no CPU that this process may run on")?;
        Ok(Self {
            cpu,
            softirqd: softirqd(cpu),
        })
    }

    /// Pins the calling thread to the CPU.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pin(&self) -> Result<()> {
        let mut only = CpuSet::new();
        only.set(self.cpu)?;
        sched_setaffinity(Pid::from_raw(0), &only).context("cannot pin a thread to a CPU")
    }

    /// The clocks now.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn now(&self) -> Result<Stamp> {
        let softirqd = self.softirqd.as_deref().map(run_time).transpose()?;
        Ok(Stamp {
            softirqd: softirqd.unwrap_or_default(),
            cpu: clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into(),
            wall: Instant::now(),
        })
    }

    /// Time since then, divided by a number of operations.
    ///
    /// # Errors
    /// As [`Self::now`].
    pub fn since(&self, then: Stamp, count: u32) -> Result<Took> {
        let wall = then.wall.elapsed();
        let cpu = Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?);
        let softirqd = self.softirqd.as_deref().map(run_time).transpose()?;
        let softirqd = softirqd.unwrap_or_default().saturating_sub(then.softirqd);
        let cpu = cpu.saturating_sub(then.cpu) + softirqd;
        let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(count);
        Ok(Took {
            cpu: each(cpu),
            wall: each(wall),
        })
    }
}

/// Path of the scheduler's statistics of a CPU's softirq thread, where the kernel has them.
fn softirqd(cpu: usize) -> Option<PathBuf> {
    let name = format!("ksoftirqd/{cpu}");
    let mut processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let found = processes.find(|process| {
        let comm = fs::read_to_string(process.path().join("comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    })?;
    Some(found.path().join("schedstat")).filter(|path| path.exists())
}

/// The first number of a `schedstat`: nanoseconds on a CPU.
fn run_time(schedstat: &Path) -> Result<Duration> {
    let text = fs::read_to_string(schedstat)?;
    let first = text.split_whitespace().next().context("a schedstat")?;
    Ok(Duration::from_nanos(first.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_and_waiting_does_not() {
        let clock = Clock::new().unwrap();
        let then = clock.now().unwrap();
        let mut sum = 0_u64;
        while then.wall.elapsed() < Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 1);
        }
        let took = clock.since(then, 10).unwrap();
        assert!(took.cpu > 0.0, "{took:?}");
        assert!(took.wall >= 2e6, "{took:?}");
    }
}
