//! The library from the outside: what a caller meets.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of a helper is a failure of the test"
)]

mod bed;
mod crash;
mod scale;
mod scenarios;
mod steps;
mod table;
mod vectors;
