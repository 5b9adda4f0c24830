//! Results of all kernels, as one table or one JSON array.

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::kernel::Kernel;
use crate::console;
use crate::ebpf::Measured;
use crate::test::{Counts, Failure, Results};

/// Results of one kernel.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    /// The kernel's series, such as `6.12`; for a kernel that did not boot, its name in the matrix.
    pub(super) kernel: String,
    /// The number of eBPF programs that it accepted.
    pub(super) programs_loaded: usize,
    /// Tests that passed.
    pub(super) passed: u64,
    /// Tests that failed.
    pub(super) failed: u64,
    /// Optional features of the agent that this kernel lacks.
    pub(super) missing_features: Vec<String>,
}

/// Results of the matrix.
#[derive(Default)]
pub(crate) struct Outcome {
    rows: Vec<Row>,
    /// The tests that failed, of all kernels.
    pub(crate) failures: Vec<Failure>,
}

impl Outcome {
    /// Adds the results of a kernel; without `measured` it did not boot, or reported nothing.
    pub(super) fn add(&mut self, kernel: &Kernel, measured: Option<&Measured>, results: Results) {
        self.rows.push(Row {
            kernel: measured.map_or_else(|| kernel.name.to_owned(), Measured::series),
            programs_loaded: measured.map_or(0, |measured| measured.programs.len()),
            passed: results.counts.passed,
            failed: results.counts.failed,
            missing_features: measured
                .map(|measured| measured.missing_features.clone())
                .unwrap_or_default(),
        });
        self.failures.extend(results.failures);
    }

    /// Tests of all kernels.
    pub(crate) fn counts(&self) -> Counts {
        let counts = self.rows.iter().map(|row| Counts {
            passed: row.passed,
            failed: row.failed,
        });
        counts.fold(Counts::default(), |sum, counts| sum + counts)
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let header = [
            "kernel",
            "programs loaded",
            "passed",
            "failed",
            "missing features",
        ];
        let rows = self.rows.iter().map(|row| {
            let missing = match row.missing_features.as_slice() {
                [] => "none".to_owned(),
                names => names.join(", "),
            };
            vec![
                row.kernel.clone(),
                row.programs_loaded.to_string(),
                row.passed.to_string(),
                row.failed.to_string(),
                missing,
            ]
        });
        console::table(&header, &rows.collect::<Vec<_>>())
    }

    /// For programs: one array, an object for each kernel.
    pub(crate) fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(&self.rows).context("the results cannot be written as JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, Outcome, Row};

    fn outcome() -> Outcome {
        let row = |kernel: &str, failed, missing: &[&str]| Row {
            kernel: kernel.to_owned(),
            programs_loaded: 4,
            passed: 20,
            failed,
            missing_features: missing.iter().map(|name| (*name).to_owned()).collect(),
        };
        Outcome {
            rows: vec![row("5.10", 1, &["tcx", "jit"]), row("6.18", 0, &[])],
            failures: Vec::new(),
        }
    }

    #[test]
    fn is_a_line_for_each_kernel() {
        let expected = "\
kernel  programs loaded  passed  failed  missing features
5.10                  4      20       1          tcx, jit
6.18                  4      20       0              none";
        assert_eq!(outcome().table(), expected);
        let counts = outcome().counts();
        assert_eq!([counts.passed, counts.failed], [40, 1]);
        assert_eq!(Outcome::default().counts(), Counts::default());
    }

    #[test]
    fn is_one_array() {
        let json: serde_json::Value = serde_json::from_str(&outcome().json().unwrap()).unwrap();
        let first = serde_json::json!({
            "kernel": "5.10", "programs_loaded": 4, "passed": 20, "failed": 1,
            "missing_features": ["tcx", "jit"],
        });
        assert_eq!(json[0], first);
        assert_eq!(json.as_array().unwrap().len(), 2);
    }
}
