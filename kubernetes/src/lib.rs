//! Towpath's side of Cilium's resources, read and written, as values: no I/O, no clock, no client.
//!
//! * [`creation`]: the `CiliumNode` that a node begins with.
//! * [`parameters`]: what the node asks of whoever gives it ENIs and addresses.
//! * [`publication`]: what the node asks for and keeps, in `spec.ipam.pools`.
//! * [`pace`]: when that is written.
//! * [`flat`]: single addresses (`ipam.mode: crd`), and [`handshake`]: how they are given back.
//! * [`choice`]: which pool a pod is of.
//! * [`unanswered`]: what is asked for and does not come.
//! * [`arrival`]: what keeps pods off the node until it is ready.
//! * [`exhaustion`]: the Node's condition that says that pools have no address left.
//! * [`holder`]: another operator that gives addresses.
//! * [`ingress`]: the addresses of the node's agent, in `spec.ingress`.
//! * [`lease`]: a Lease, and whether its holder lives.
//! * [`policies`]: which network policies select which pods.
//! * [`refusals`]: which refused entries an event is due about.
//! * [`reports`]: events about objects, and when they are written.
//! * [`restriction`]: which pods a pool admits.
//! * [`operation`]: an operator's side of the `CiliumNode`.
//! * [`services`]: what the service proxy translates.

pub mod arrival;
pub mod choice;
pub mod creation;
pub mod exhaustion;
pub mod flat;
pub mod handshake;
pub mod holder;
pub mod ingress;
pub mod lease;
pub mod marks;
pub mod operation;
pub mod pace;
pub mod parameters;
pub mod policies;
pub mod publication;
pub mod refusals;
pub mod reports;
pub mod restriction;
mod selector;
pub mod services;
pub mod unanswered;

pub use self::selector::{Selector, SelectorError};
