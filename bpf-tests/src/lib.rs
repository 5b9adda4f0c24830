//! Test support: the namespace fabric, packet builders, counters.

pub mod fabric;
