//! Flows and statistics as people read them.

pub(super) mod list;
pub(super) mod protocols;
pub(super) mod refusals;
pub(super) mod stats;
