//! Counts of tests beside the failures that they count.

use std::iter::Sum;
use std::ops::Add;

use anyhow::Result;

use super::failures::{Failure, Reader};
use super::libtest::Counts;

/// Results of tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    /// Numbers of passed and failed tests.
    pub(crate) counts: Counts,
    /// Those that failed.
    pub(crate) failures: Vec<Failure>,
}

impl Results {
    /// The result of one test, which is a function of ours and no program; a failure is printed.
    pub(crate) fn of(name: &str, result: Result<()>) -> Self {
        match result {
            Ok(()) => Self {
                counts: Counts {
                    passed: 1,
                    failed: 0,
                },
                failures: Vec::new(),
            },
            Err(error) => Self::failure(name, &format!("{error:#}")),
        }
    }

    /// One failure of something that is no test; it is printed.
    pub(crate) fn failure(name: &str, message: &str) -> Self {
        eprintln!("error: {name}: {message}");
        Self {
            counts: Counts::FAILURE,
            failures: vec![Failure::new(name, message)],
        }
    }

    /// The results that a test program has printed.
    pub(crate) fn read(program: &str, counts: Counts, reader: Reader) -> Self {
        let failures = reader.finish().into_iter();
        Self {
            counts,
            failures: failures.map(|failure| failure.of(program)).collect(),
        }
    }
}

impl Add for Results {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.failures.extend(other.failures);
        Self {
            counts: self.counts + other.counts,
            failures: self.failures,
        }
    }
}

impl Sum for Results {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}
