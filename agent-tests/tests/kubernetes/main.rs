//! Beside a real API server of Kubernetes.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod absent;
mod admission;
mod agent;
mod arrival;
mod clock;
mod cluster;
mod crd;
mod deleted_pool;
mod events;
mod exhaustion;
mod faults;
mod ingress;
mod instance;
mod ipv6_only;
mod kills;
mod lists;
mod load;
mod manifests;
mod operator;
mod outage;
mod plain;
mod privileges;
mod replaced;
mod resources;
mod restriction;
mod services;
mod store;
mod strict;
mod unreachable;
