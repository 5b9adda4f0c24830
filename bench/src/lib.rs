//! Measurements of real traffic, for the benchmark `towpath-bench` and for the test that every one
//! of them can be made.

pub mod live;
