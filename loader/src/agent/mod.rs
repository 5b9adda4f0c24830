//! The agent: one task owns the node's state, and everything else asks it.

mod actor;
mod address_commands;
mod admission;
mod allocation;
mod check;
mod checked;
mod cleanup;
mod cluster;
mod collect;
mod commands;
mod durable;
mod facts;
mod figures;
mod kernel;
mod leasing;
mod lock;
mod masquerade;
mod memory;
mod nat;
mod netns;
mod other_cni;
mod pacer;
mod pending;
mod policy;
mod report;
mod reservation;
mod run;
mod service_nat;
mod sources;
mod store;
mod traces;

pub(crate) use checked::check;
pub use cleanup::{CleanUp, cleanup};
pub use lock::Lock;
pub use run::run;
