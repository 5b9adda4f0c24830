//! Relation of the node to its cluster.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Relation of the node to its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClusterStatus {
    /// Service destinations that the configuration names.
    pub configured_services: Vec<IpNet>,
    /// Service CIDRs that the cluster reports.
    pub service_cidrs: Vec<IpNet>,
    /// Number of external and load balancer addresses of Services that count as destinations.
    pub service_addresses: usize,
    /// `NetworkPolicy` objects that select pods of the node while `datapath.path` is `direct`, so that
    /// policy engines of netfilter do not see these pods' packets.
    pub unenforced_policies: Vec<UnenforcedPolicy>,
    /// Notes.
    pub notes: Vec<String>,
}

/// A `NetworkPolicy` that may not be enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UnenforcedPolicy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The pods of the node that it selects.
    pub pods: Vec<String>,
}
