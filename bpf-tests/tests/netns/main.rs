//! Namespace tests: the agent on a node in a VPC of network namespaces, with real traffic.
//!
//! Every fabric drops and counts packets that leave by an ENI that does not own their source, and
//! every test ends with none.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod addresses;
mod adversary_hosts;
mod adversary_ipv6;
mod adversary_marks;
mod adversary_numbers;
mod attach;
mod chaos;
mod cleanup;
mod damage;
mod demo;
mod device;
mod documents;
mod endpoints;
mod exclusion;
mod fixtures;
mod flows;
mod kills;
mod mtu;
mod neighbours;
mod options;
mod repair;
mod replacement;
mod self_check;
mod socket;
mod support;
mod ttl;
