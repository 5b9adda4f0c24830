//! Endpoints that are in the kernel and whose records are lost: *orphans*.
//!
//! If the state folder is empty, lacks a record or has an unreadable one, a complete device still
//! has a pod. The device is served like any endpoint, and keeps its addresses. It is removed when
//! its owner is deleted, when the runtime does not know it any more, or with a clean-up. Orphans
//! are searched once, before the first pass: from then on the agent itself knows its endpoints.
//! Nothing of an orphan is recorded, so a record that comes back is the endpoint again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use api::ids::EndpointId;
use loader::constants;
use loader::intent::{Endpoint, EndpointMeta};
use loader::kernel::{MapEntry, NextHop, Observed};
use loader::netlink;
use loader::observation::ownership::finished_device;

use crate::actor::Actor;
use crate::host::kernel::Host;

impl<K: Host> Actor<K> {
    /// Adopts the endpoints whose records are lost, once; true if that is done. Before it is, no
    /// plan may be made: it would remove them.
    pub(crate) async fn take_orphans(&mut self) -> bool {
        if self.records.has_orphans {
            return true;
        }
        let observed = match self.reconciler.kernel_mut().observe().await {
            Ok(observed) => observed,
            Err(error) => {
                tracing::warn!("the kernel could not be read: {error:#}");
                return false;
            }
        };
        let endpoints = &self.intent.endpoints;
        let is_known =
            |id: &EndpointId| endpoints.contains_key(id) || self.records.store.is_deleted(*id);
        let taken = endpoints.values().flat_map(|endpoint| &endpoint.addresses);
        let orphans = find(&observed, is_known, taken.copied().collect());
        let namespaces = match orphans[..] {
            [] => BTreeMap::new(),
            _ => netlink::namespaces_by_mac(),
        };
        for mut orphan in orphans {
            let netns = namespaces.get(&orphan.id().pod_mac());
            orphan.netns = netns.cloned().unwrap_or_default();
            self.take_orphan(orphan);
        }
        self.records.has_orphans = true;
        true
    }

    fn take_orphan(&mut self, orphan: Endpoint) {
        let Endpoint {
            owner, addresses, ..
        } = &orphan;
        let cooling = |address: &IpAddr| self.addresses.is_cooling(*address);
        if !addresses.is_empty() && addresses.iter().all(cooling) {
            // Its delete was recorded, and not completed.
            return;
        }
        tracing::warn!(
            device = owner.interface,
            ?addresses,
            "an endpoint has no record: it is served, and its addresses are kept"
        );
        if let Err(error) = self.addresses.adopt(owner, addresses) {
            tracing::error!(
                device = owner.interface,
                "cannot keep an address of the endpoint: {error}"
            );
        }
        self.intent.endpoints.insert(orphan.id(), orphan);
    }

    /// Number of endpoints without a record.
    pub(crate) fn orphans(&self) -> usize {
        let endpoints = self.intent.endpoints.values();
        endpoints.filter(|endpoint| endpoint.is_orphan()).count()
    }

    /// Problems of the state that has to outlive the agent: records and pins.
    pub(crate) fn record_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let orphans = self.orphans();
        if orphans > 0 {
            problems.push(format!(
                "{orphans} of {} endpoints are orphaned: their records are lost, so they are served \
                 until their pods are deleted",
                self.intent.endpoints.len()
            ));
        }
        problems.extend(self.records.unsaved.as_ref().map(|error| {
            format!(
                "the records of endpoints are missing, and a restart would orphan them: {error}"
            )
        }));
        problems.extend(self.records.store.unsynced().map(str::to_owned));
        let kernel = self.reconciler.kernel();
        problems.extend(kernel.unpinned().map(str::to_owned));
        problems.extend(kernel.untracked().problem().map(str::to_owned));
        problems.extend(self.records.corrupt.values().map(|path| {
            format!(
                "an endpoint's record cannot be read, so it is served as an orphan, and the record stays \
                 until its pod is deleted: {}",
                path.display()
            )
        }));
        problems
    }
}

/// The endpoints whose devices are there and whose ids are not known, with what the kernel has of
/// their addresses: what an endpoint with a record has is not theirs.
fn find(
    observed: &Observed,
    is_known: impl Fn(&EndpointId) -> bool,
    mut taken: BTreeSet<IpAddr>,
) -> Vec<Endpoint> {
    let mut addresses = addresses(observed);
    let unknown = observed.links.values().filter_map(|link| {
        let id = finished_device(link).filter(|id| !is_known(id))?;
        Some((id, link))
    });
    let orphan = |(id, link): (EndpointId, &loader::kernel::Link)| {
        let mut own = addresses.remove(&link.ifindex).unwrap_or_default();
        own.retain(|address| taken.insert(*address));
        Endpoint {
            owner: id.unknown_owner(),
            netns: PathBuf::new(),
            addresses: own,
            mtu: link.mtu,
            about: EndpointMeta::default(),
        }
    };
    unknown.map(orphan).collect()
}

/// The addresses of each device: by the datapath's entries, by routes, by neighbours.
fn addresses(observed: &Observed) -> BTreeMap<u32, BTreeSet<IpAddr>> {
    let mut addresses: BTreeMap<u32, BTreeSet<IpAddr>> = BTreeMap::new();
    let mut put = |ifindex: u32, address: IpAddr| {
        addresses.entry(ifindex).or_default().insert(address);
    };
    for entry in observed.maps.values() {
        if let MapEntry::Address(address, entry) = entry
            && entry.is_endpoint()
        {
            put(entry.ifindex(), *address);
        }
    }
    for route in &observed.routes {
        let net = route.destination;
        let is_single = net.prefix_len() == net.max_prefix_len();
        if let NextHop::Device(ifindex) = route.next_hop
            && route.table == constants::TABLE_PODS
            && is_single
        {
            put(ifindex, net.addr());
        }
    }
    for neighbour in &observed.neighbours {
        put(neighbour.ifindex, neighbour.address);
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use loader::kernel::fixture::{host, id, intent};
    use loader::reconcile::Reconciler;
    use loader::reconcile::model::ModelKernel;

    #[test]
    fn every_source_of_an_address_is_enough() {
        let mut reconciler = Reconciler::new(ModelKernel::new(host()), std::time::Instant::now);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        assert!(
            runtime
                .unwrap()
                .block_on(reconciler.pass(&intent()))
                .is_clean()
        );
        let whole = reconciler.into_kernel().state;
        let none = |_: &EndpointId| false;
        let all = find(&whole, none, BTreeSet::new());
        assert_eq!(all.len(), 3);
        for source in ["maps", "routes", "neighbours"] {
            let mut alone = whole.clone();
            if source != "maps" {
                alone.maps.clear();
            }
            if source != "routes" {
                alone.routes.clear();
            }
            if source != "neighbours" {
                alone.neighbours.clear();
            }
            assert_eq!(find(&alone, none, BTreeSet::new()), all, "{source}");
        }
        let known = |one: &EndpointId| *one == id("a");
        let others = find(&whole, known, ["10.0.2.66".parse().unwrap()].into());
        let addresses: Vec<_> = others.iter().map(|one| one.addresses.len()).collect();
        assert_eq!(addresses.iter().sum::<usize>(), 2, "{others:?}");
        for orphan in &others {
            assert!(orphan.is_orphan());
            assert_eq!(EndpointId::of(&orphan.owner), orphan.id());
        }
    }
}
