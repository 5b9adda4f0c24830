//! Counts of tests, with the failures among them.

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
    /// The failed tests.
    pub(crate) failures: Vec<Failure>,
}

impl Results {
    /// The result of one test, which is a function of xtask and no program; a failure is printed.
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

    /// One failure outside of a test; it is printed.
    pub(crate) fn failure(name: &str, message: &str) -> Self {
        eprintln!("error: {name}: {message}");
        Self {
            counts: Counts::FAILURE,
            failures: vec![Failure::new(name, message)],
        }
    }

    /// Results in a test program's output.
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
