//! A kernel's figures for the programs, as `ebpf-report` prints them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::build::artifacts::{self, Executable};
use crate::process;

/// A kernel's figures for the programs.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    /// The kernel's release.
    kernel: String,
    /// Optional features of the agent that the kernel lacks.
    pub(crate) missing_features: Vec<String>,
    /// The programs that it accepted, by name.
    pub(crate) programs: BTreeMap<String, Figures>,
}

/// Figures of the verifier for one program.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Figures {
    /// Instructions that it walked.
    pub(super) verified_instructions: u64,
    /// States that it kept, in total.
    pub(super) total_states: u64,
    /// The most states that it kept at one time.
    pub(super) peak_states: u64,
    /// The time that it took, in microseconds.
    pub(super) microseconds: u64,
}

impl Measured {
    /// Makes the running kernel verify every program of the object at `path`.
    pub(crate) fn here(executables: &[Executable], path: &Path) -> Result<Self> {
        let reporter = artifacts::binary(executables, "ebpf-report")?;
        let text = process::output(Command::new(reporter).arg(path))?;
        serde_json::from_str(&text).context("ebpf-report printed no report")
    }

    /// The series of the kernel, such as `6.12`.
    pub(crate) fn series(&self) -> String {
        let parts = self.kernel.split(['.', '-']);
        parts.take(2).collect::<Vec<_>>().join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, Measured};

    #[test]
    fn a_series_is_two_numbers() {
        for (kernel, series) in [("5.10.0-46-cloud-amd64", "5.10"), ("7.2-rc1", "7.2")] {
            let measured = Measured {
                kernel: kernel.to_owned(),
                missing_features: Vec::new(),
                programs: BTreeMap::new(),
            };
            assert_eq!(measured.series(), series);
        }
    }
}
