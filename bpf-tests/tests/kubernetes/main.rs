//! Beside a real API server of Kubernetes.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod agent;
mod cluster;
mod manifests;
mod privileges;
mod resources;
mod scene;
