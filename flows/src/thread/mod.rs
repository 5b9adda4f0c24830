//! The sweeper's thread: its start, its pace, requests to it, and its report.

pub(super) mod handle;
pub(super) mod pace;
pub(super) mod report;
pub(super) mod runner;
