//! Figures of the kernel for a process.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Resident, pages of files included.
    pub(super) resident: u64,
    /// Resident, with shared pages divided among the processes that share them.
    pub(super) proportional: u64,
    /// Resident, without files.
    pub(super) anonymous: u64,
    /// Highest resident size so far.
    pub(super) peak: u64,
}

/// Reads the memory of a process.
pub(super) fn memory(process: u32) -> Result<Memory> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(Memory {
        resident: field(&rollup, "Rss:")?,
        proportional: field(&rollup, "Pss:")?,
        anonymous: field(&rollup, "Anonymous:")?,
        peak: field(&status, "VmHWM:")?,
    })
}

/// A field in KiB of a file in `/proc`, in bytes.
pub(super) fn field(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    let number = number.with_context(|| format!("no field {name}"))?;
    Ok(number.parse::<u64>()? * 1024)
}

/// CPU time of a process's living threads, as the scheduler counts it.
pub(super) fn cpu_time(process: u32) -> Result<Duration> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end at any time.
        if let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) {
            let time = text.split_whitespace().next();
            sum += time.context("a thread's CPU time")?.parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(sum))
}

/// Number of times that the living threads of a process have gone to sleep.
pub(super) fn wakeups(process: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end at any time.
        if let Ok(text) = fs::read_to_string(thread?.path().join("status")) {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sum += line.context("a thread's wakeups")?.trim().parse::<u64>()?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_kibibytes() {
        let text = "Rss:                1234 kB\nPss:                   5 kB\n";
        assert_eq!(field(text, "Pss:").unwrap(), 5 * 1024);
        assert!(field(text, "Swap:").is_err());
    }

    #[test]
    fn this_process_has_memory_and_used_cpu() {
        let id = std::process::id();
        let memory = memory(id).unwrap();
        assert!(memory.resident >= memory.anonymous && memory.peak >= memory.resident / 2);
        assert!(cpu_time(id).unwrap() > Duration::ZERO);
    }
}
