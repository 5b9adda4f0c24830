//! Room for flows: quotas of endpoints, crowded tables, shortages of ports.

pub(super) mod crowd;
pub(super) mod greedy;
pub(super) mod pressed;
pub(super) mod pressure;
pub(super) mod quota;
pub(super) mod rooms;
pub(super) mod shortages;
