//! The datapath: policy, translated flows, counters, explanations.

pub(super) mod explanation;
pub(super) mod masquerade;
pub(super) mod metric;
pub(super) mod nat;
