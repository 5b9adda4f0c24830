//! Towpath's node agent: decides the desired state of a node's kernel, from the node document and
//! the endpoints, and answers for it. The lower half, `loader`, reconciles the kernel.
//!
//! One task owns the node's state (`actor`), and everything else sends it requests.

mod actor;
mod allocation;
pub mod cli;
mod cluster;
pub mod fault_points;
mod host;
mod report;
mod run;
pub mod server;
mod state;

pub(crate) use run::checked::check;
pub use run::cleanup::{CleanUp, cleanup};
pub use run::run;
pub use state::lock::Lock;
