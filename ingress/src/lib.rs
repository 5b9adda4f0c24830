//! The agent's own addresses, for listeners of a gateway on each node, if a delegated IPAM plugin
//! manages the addresses.
//!
//! The agent calls the plugin as a runtime would call it for a pod, with a constant container id. A
//! request is on disk before the plugin is called ([`Record`]). So after a crash at any moment a
//! DEL is sent for each address. [`Keeper`] takes one step after the other.

mod answer;
mod backoff;
mod file;
mod keeper;
mod namespace;
mod network;
mod output;
mod plugin;
mod record;
mod request;

pub use self::keeper::{Keeper, Moment, Progress, Refusal, User};
pub use self::network::{Network, Unusable, network};
pub use self::record::{Entry, Record, State};
pub use self::request::Request;
