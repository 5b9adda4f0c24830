//! Nodes that carry the traffic, each set up in another manner.

pub mod by_hand;
pub mod floor;
pub mod kernel;
pub mod ours;
pub mod preload;
pub mod site;
pub mod vpc_cni;
