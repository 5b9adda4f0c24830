//! Test support: the namespace fabric, packet builders, counters.

pub mod packet;
pub mod raw;
pub mod testrun;
