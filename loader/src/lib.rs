//! Towpath's node agent: brings the node's ENIs, routes, rules and eBPF programs to what the node
//! document and the endpoints ask for, and keeps them so.
//!
//! Data moves one way; see ARCHITECTURE.md:
//!
//! ```text
//! node document, socket -> Intent -> Desired -> plan(Desired, Observed) -> apply -> kernel
//! ```

pub mod agent;
mod allocation;
pub mod bpf;
mod bypassed;
pub mod cli;
mod cluster;
pub mod cni;
pub mod config;
mod connections;
pub mod conntrack;
pub mod desired;
mod exposition;
pub mod faults;
#[cfg(test)]
mod fixture;
pub mod follow;
mod gateways;
pub mod instance;
pub mod intent;
mod kept;
pub mod kernel;
pub mod masquerade;
pub mod netlink;
pub mod node;
pub mod numbers;
pub mod object;
mod periodic;
pub mod plan;
mod pod_routes;
pub mod recognise;
pub mod reconcile;
pub mod server;
pub mod service_nat;
pub mod traces;
mod untracked;
pub mod view;
