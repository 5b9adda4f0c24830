//! Addresses that the agent itself has, for listeners of a gateway on each node, where a delegated IPAM
//! plugin manages the addresses.
//!
//! The agent calls the plugin as a runtime would call it for a pod, with a container id that stays. What
//! is asked for stands on disk before the plugin is called ([`Record`]), so a crash at any moment leaves
//! nothing that no DEL is sent for. [`Keeper`] takes one step after the other.

mod answer;
mod backoff;
mod file;
mod keeper;
mod namespace;
mod network;
mod plugin;
mod record;
mod request;

pub use self::keeper::{Keeper, Moment, Progress, Refusal, User};
pub use self::network::{Network, Unusable, network};
pub use self::record::{Entry, Record, State};
pub use self::request::Request;
