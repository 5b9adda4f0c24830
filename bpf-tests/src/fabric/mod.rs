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

pub mod agent;
mod arp;
mod cgroup;
pub mod command;
pub mod counters;
pub mod document;
mod dump;
pub mod eventually;
mod foreign;
mod gateway;
mod join;
pub mod layout;
pub mod manager;
mod members;
mod netns;
mod nft_set;
mod node;
mod outside;
mod places;
mod pod;
pub mod program;
pub(crate) mod reboot;
pub mod record;
pub mod room;
mod seen;
mod service;
pub mod source_check;
mod spec;
pub mod state;
pub mod traffic;
mod vpc;
pub mod world;

pub use netns::Netns;
pub use node::Fabric;
pub use pod::{POD_INTERFACE, Place, Pod};
pub use service::Client;
pub use spec::{Instance, Spec};
pub use vpc::{MTU_JUMBO, Vpc};
