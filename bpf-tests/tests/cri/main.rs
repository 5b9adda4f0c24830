//! Pods that a real container runtime makes, on the fabric's node.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod self_check;
