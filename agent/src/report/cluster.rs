//! The cluster in the agent's status.

use api::types::{ClusterStatus, UnenforcedPolicy};
use kubernetes::policies::Selected;
use loader::desired::left_out;

use crate::actor::Actor;
use crate::host::kernel::Host;

/// The setting that is needed where the cluster's service CIDRs are unknown.
const SET_CIDRS: &str = "services.cidrs is empty; expected the cluster's service CIDRs \
    (--service-cluster-ip-range of the API server), or none";

impl<K: Host> Actor<K> {
    /// The state of the cluster; none without a cluster.
    pub(crate) fn cluster_status(&self) -> Option<ClusterStatus> {
        let cluster = self.documents.files.cluster()?;
        let source = cluster.services.borrow();
        let unenforced = cluster.unenforced.as_ref();
        let unenforced = unenforced.map(|unenforced| unenforced.borrow().clone());
        let unenforced = unenforced.unwrap_or_default();
        let settings = &self.intent.settings;
        let addresses = source.known.addresses.iter().flatten();
        let (taken, others): (Vec<_>, Vec<_>) = addresses
            .map(|address| (address, left_out(&self.intent, *address)))
            .partition(|(_, reason)| reason.is_none());
        let notes = others.into_iter().filter_map(|(address, reason)| {
            Some(format!(
                "address {address} of a Service is left to the VPC: {}",
                reason?
            ))
        });
        Some(ClusterStatus {
            service_cidrs: source.known.cidrs.iter().flatten().copied().collect(),
            service_addresses: taken.len(),
            configured_services: settings.services.configured.iter().copied().collect(),
            unenforced_policies: unenforced
                .selected
                .into_iter()
                .map(|Selected { policy, pods }| UnenforcedPolicy {
                    namespace: policy.namespace,
                    name: policy.name,
                    pods: pods.into_iter().collect(),
                })
                .collect(),
            notes: notes
                .chain(
                    unenforced
                        .error
                        .map(|error| format!("NetworkPolicy objects are not known: {error}")),
                )
                .chain(cluster.keeps_off.borrow().clone())
                .collect(),
        })
    }

    /// Why pods could not reach services.
    pub(crate) fn services_missing(&self) -> Option<String> {
        let source = self.documents.files.cluster()?.services.borrow();
        if source.known.cidrs.is_some() {
            return None;
        }
        let error = source.cidrs_error.as_deref();
        let error = error.unwrap_or("ServiceCIDR objects were not read yet");
        Some(format!(
            "no service CIDR is known: {error}, and {SET_CIDRS}"
        ))
    }

    /// The problems with the services' addresses.
    pub(crate) fn services_problems(&self) -> Vec<String> {
        let Some(cluster) = self.documents.files.cluster() else {
            return Vec::new();
        };
        let source = cluster.services.borrow();
        // Where none is known, the node waits for them.
        let cidrs = source.cidrs_error.as_ref();
        let cidrs = cidrs.filter(|_| source.known.cidrs.is_some());
        let cidrs = cidrs.map(|error| format!("keeping the known service CIDRs: {error}"));
        let addresses = source.addresses_error.as_ref();
        let addresses = addresses
            .map(|error| format!("keeping the known external addresses of services: {error}"));
        cidrs.into_iter().chain(addresses).collect()
    }
}
