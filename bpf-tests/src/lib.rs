//! Test support: the namespace fabric, packet builders, counters.

pub mod fabric;
pub mod packet;
pub mod raw;
pub mod testrun;
