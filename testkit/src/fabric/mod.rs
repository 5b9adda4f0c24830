//! A VPC made of network namespaces, with a node in it that the agent runs on. More nodes may join.
//!
//! ```text
//!   pod ── host veth ─┐                     ┌─ eni0 ─┐
//!   pod ── host veth ─┤ node: agent, eth0 ──┤        ├─ vpc (router) ── peer
//!   pod ── host veth ─┘             eth1 ───┤  eni1  │       ├───────── outside
//!                                           └────────┘       └───────── world
//! ```
//!
//! The router drops and counts what an ENI sends with a source that is not its own, as the cloud
//! does. Every fabric shows first that it would count, and panics at its end if it did. Where there
//! is a world, the same holds for what leaves the VPC with a pod's address.

pub mod command;
pub mod counters;
mod dump;
pub mod eventually;
pub mod layout;
mod netns;
mod node;
pub mod record;
mod spec;
pub mod state;
pub mod traffic;
mod vpc;

pub use netns::Netns;
pub use node::Fabric;
pub use node::pod::{POD_INTERFACE, Place, Pod};
pub(crate) use node::reboot;
pub use node::service::Client;
pub use node::{agent, document, manager, program};
pub use spec::{Instance, Spec};
pub use vpc::{MTU_JUMBO, Vpc};
pub use vpc::{groups, room, source_check, world};
