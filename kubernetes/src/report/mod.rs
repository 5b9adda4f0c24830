//! Reports to the cluster: events, and the Node's condition.

pub mod events;
pub mod exhaustion;
pub mod refusals;
