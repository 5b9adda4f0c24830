//! The agent: one task owns the node's state, and everything else asks it.

mod admission;
mod lock;
mod netns;
mod pacer;
mod store;

pub use lock::Lock;
