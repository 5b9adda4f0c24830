//! Services of the cluster itself.

use anyhow::Result;

use super::Cluster;
use crate::kubernetes::documents;

/// `CoreDNS` as clusters have it: two pods behind the service `kube-dns`.
const COREDNS: &str = include_str!("coredns.yaml");

/// Starts the cluster's DNS service, and waits until it answers.
pub(super) fn dns(cluster: &Cluster) -> Result<()> {
    cluster.apply(&documents(COREDNS)?)?;
    cluster.rolled_out("kube-system", "deployment/coredns")
}
