//! Towpath's side of Cilium's resources, read and written, as values: no I/O, no clock, no client.
//!
//! * [`node::node_template`]: the `CiliumNode` that a node begins with.
//! * [`node::parameters`]: the node's parameters for its operator.
//! * [`node::node_pools`]: the node's demand and blocks, in `spec.ipam.pools`.
//! * [`node::write_pacing`]: the times of its writes.
//! * [`node::crd_mode`]: single addresses (`ipam.mode: crd`), and [`node::handshake`]: how they are
//!   given back.
//! * [`pool::pool_selection`]: selection of a pod's pool.
//! * [`node::unmet_demand`]: demand that the operator does not meet.
//! * [`node::node_ready`]: marks that keep pods off the node until it is ready.
//! * [`report::exhaustion`]: the Node's condition that says that pools have no address left.
//! * [`holder`]: another operator that gives addresses.
//! * [`node::ingress`]: the addresses of the node's agent, in `spec.ingress`.
//! * [`lease`]: a Lease, and whether its holder lives.
//! * [`policies`]: which network policies select which pods.
//! * [`report::refusals`]: which refused entries an event is due about.
//! * [`report::events`]: events about objects, and the times of their writes.
//! * [`pool::restriction`]: which pods a pool admits.
//! * [`operation`]: an operator's side of the `CiliumNode`.
//! * [`services`]: the addresses that the service proxy translates.

pub mod holder;
pub mod lease;
pub mod node;
pub mod operation;
pub mod policies;
pub mod pool;
pub mod report;
pub mod services;

pub use self::pool::selector::{Selector, SelectorError};
