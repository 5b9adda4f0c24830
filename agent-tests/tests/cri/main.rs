//! Pods that real container runtimes make, on the fabric's node: containerd by CRI, podman, and the
//! procedure of the CNI specification for running plugins.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod agent_addresses;
mod bench;
mod bursts;
mod census;
mod chain;
mod cnitool;
mod containers;
mod driver;
mod kills;
mod kills_by_containerd;
mod mishaps;
mod podman;
mod points;
mod readiness;
mod scene;
mod self_check;
mod soak;
mod table;
mod versions;
mod wait;
