//! A node's side of its `CiliumNode`: what the agent reads of it and writes to it.

pub mod backup;
pub mod crd_mode;
pub mod handshake;
pub mod ingress;
pub mod marks;
pub mod node_pools;
pub mod node_ready;
pub mod node_template;
pub mod parameters;
pub mod unmet_demand;
pub mod write_pacing;
