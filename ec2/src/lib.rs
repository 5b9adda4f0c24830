//! The calls of EC2 that the operator makes.
//!
//! [`Ec2`] is the rim: a step or a page of a read is one call, which is sent once. Budgets and
//! repetitions are the caller's.
//!
//! The feature `sdk` has the client by the SDK of AWS.

mod check;
#[cfg(feature = "sdk")]
mod client;
mod meter;
#[cfg(feature = "sdk")]
mod shape;

use std::future::Future;
use std::pin::Pin;

use cloud::Failure;
use cloud::call::query::{Page, Query, What};
use cloud::node::{Outcome, Step};

pub use self::check::{Right, Verdict, check};
#[cfg(feature = "sdk")]
pub use self::client::{Client, ConnectError, Settings};
pub use self::meter::{Count, Meter};

/// A call in flight.
pub type Call<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// EC2. Every function makes one call at most, and ends within the time limit of a call.
pub trait Ec2: Send + Sync {
    /// Makes the call of a step. A failure without an answer leaves its effect unknown.
    fn step<'a>(&'a self, step: &'a Step) -> Call<'a, Outcome>;

    /// Reads a page. A query of any number of names is split into pages as EC2 takes them.
    fn read<'a>(&'a self, query: &'a Query) -> Call<'a, Result<Page, Failure>>;

    /// Asks EC2 for its verdict on a step, without carrying the step out.
    fn try_step<'a>(&'a self, step: &'a Step) -> Call<'a, Verdict>;

    /// Asks EC2 for its verdict on a read, without carrying the read out.
    fn try_read<'a>(&'a self, what: &'a What) -> Call<'a, Verdict>;

    /// The calls that were made.
    fn meter(&self) -> &Meter;
}
