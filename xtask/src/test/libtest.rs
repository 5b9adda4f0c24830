//! Reading what libtest prints.

use std::ops::Add;

/// The number of tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed, programs that died, and tests that were ignored.
    pub(crate) failed: u64,
}

impl Counts {
    /// One failure, of something that is no test.
    pub(crate) const FAILURE: Self = Self {
        passed: 0,
        failed: 1,
    };

    /// Tests in all.
    pub(crate) fn total(self) -> u64 {
        self.passed + self.failed
    }

    /// Reads a line such as
    /// `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; ...`.
    /// A test that is ignored counts as failed: nothing is skipped silently.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (_, numbers) = line.split_once("test result: ")?.1.split_once(". ")?;
        let mut counts = Self::default();
        for part in numbers.split("; ") {
            let Some((number, word)) = part.split_once(' ') else {
                continue;
            };
            match (number.parse::<u64>(), word) {
                (Ok(number), "passed") => counts.passed += number,
                (Ok(number), "failed" | "ignored") => counts.failed += number,
                _ => {}
            }
        }
        Some(counts)
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn reads_a_summary() {
        let line = "test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; \
                    5 filtered out; finished in 0.31s";
        assert_eq!(
            Counts::parse(line),
            Some(Counts {
                passed: 12,
                failed: 2
            })
        );
    }

    #[test]
    fn an_ignored_test_is_a_failure() {
        let line = "test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out";
        assert_eq!(
            Counts::parse(line),
            Some(Counts {
                passed: 1,
                failed: 3
            })
        );
    }

    #[test]
    fn other_lines_are_none() {
        assert_eq!(Counts::parse("test a ... ok"), None);
    }
}
