//! The library from the outside: what a caller meets.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of a helper is a failure of the test"
)]

mod bindings;
mod blocks;
mod cluster;
mod cost;
mod kinds;
mod leases;
mod properties;
mod reclaim;
mod restart;
mod support;
mod table;
mod vectors;
mod waiting;
