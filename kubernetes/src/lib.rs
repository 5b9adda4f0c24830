//! Towpath's side of Cilium's resources, read and written, as values: no I/O, no clock, no client.
//!
//! * [`node_template`]: the `CiliumNode` that a node begins with.
//! * [`parameters`]: the node's parameters for its operator.
//! * [`node_pools`]: the node's demand and blocks, in `spec.ipam.pools`.
//! * [`write_pacing`]: the times of its writes.
//! * [`crd_mode`]: single addresses (`ipam.mode: crd`), and [`handshake`]: how they are given back.
//! * [`pool_selection`]: selection of a pod's pool.
//! * [`unmet_demand`]: demand that the operator does not meet.
//! * [`node_ready`]: marks that keep pods off the node until it is ready.
//! * [`exhaustion`]: the Node's condition that says that pools have no address left.
//! * [`holder`]: another operator that gives addresses.
//! * [`ingress`]: the addresses of the node's agent, in `spec.ingress`.
//! * [`lease`]: a Lease, and whether its holder lives.
//! * [`policies`]: which network policies select which pods.
//! * [`refusals`]: which refused entries an event is due about.
//! * [`events`]: events about objects, and the times of their writes.
//! * [`restriction`]: which pods a pool admits.
//! * [`operation`]: an operator's side of the `CiliumNode`.
//! * [`services`]: the addresses that the service proxy translates.

pub mod crd_mode;
pub mod events;
pub mod exhaustion;
pub mod handshake;
pub mod holder;
pub mod ingress;
pub mod lease;
pub mod marks;
pub mod node_pools;
pub mod node_ready;
pub mod node_template;
pub mod operation;
pub mod parameters;
pub mod policies;
pub mod pool_selection;
pub mod refusals;
pub mod restriction;
mod selector;
pub mod services;
pub mod unmet_demand;
pub mod write_pacing;

pub use self::selector::{Selector, SelectorError};
