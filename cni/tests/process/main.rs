//! The binary, called as a runtime calls it, against an agent that is played.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of a helper is a failure of the test"
)]

mod delegate;
mod edges;
mod faults;
mod queue;
mod status;
mod support;
mod transcripts;
