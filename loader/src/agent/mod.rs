//! The agent: one task owns the node's state, and everything else asks it.

mod actor;
mod admission;
mod cleanup;
mod commands;
mod facts;
mod kernel;
mod lock;
mod masquerade;
mod memory;
mod nat;
mod netns;
mod pacer;
mod policy;
mod report;
mod reservation;
mod run;
mod service_nat;
mod store;
mod traces;

pub use cleanup::{CleanUp, cleanup};
pub use lock::Lock;
pub use run::run;
