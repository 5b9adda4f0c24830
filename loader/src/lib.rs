//! The lower half of Towpath's agent: brings a node's kernel to an intent, and keeps it so.
//!
//! Data flows in one direction; see ARCHITECTURE.md:
//!
//! ```text
//! Intent -> Desired -> plan(Desired, Observed) -> apply -> kernel
//! ```

pub mod bpf;
pub mod constants;
pub mod desired;
pub mod intent;
pub mod kernel;
pub mod netfilter;
pub mod netlink;
pub mod observation;
pub mod plan;
pub mod reconcile;
pub mod stamp;
