//! Restoring the allocator at the start, from the ledger and the endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::EndpointId;
use ipam::node::Pools;
use ipam::{Allocator, Claim, Lease, Manager, Owner, Restored, SeenEndpoint, Settings, State};
use loader::intent;
use loader::intent::{Endpoint, EndpointMeta};

use super::ledger::Found;
use super::{Addresses, Pods, SkipsMasquerade, allocation};

/// Result of restoring the allocator.
pub(super) struct Restoration {
    /// The allocator, which does not allocate yet.
    pub(super) manager: Manager<Pods>,
    /// Records of the owners that have addresses and no endpoint.
    pub(super) owners: BTreeMap<Owner, EndpointMeta>,
    /// Owners of unreadable records whose addresses are all known from other records.
    pub(super) settled: Vec<EndpointId>,
    /// Conflicts between endpoints, for the status.
    pub(super) conflicts: Vec<String>,
}

/// Restores the allocator from the records and the endpoints.
pub(super) fn restore<'a>(
    settings: Settings,
    of_node: &intent::Settings,
    found: Found,
    endpoints: impl Iterator<Item = &'a Endpoint>,
) -> Restoration {
    let now = Addresses::now();
    let mut leases: Vec<Lease> = Vec::new();
    let mut seen: Vec<SeenEndpoint> = Vec::new();
    for endpoint in endpoints {
        leases.extend(endpoint.about.leases.iter().cloned().map(|lease| Lease {
            // Only a time of another boot can be in the future.
            since: lease.since.min(now),
            ..lease
        }));
        seen.push(SeenEndpoint {
            owner: endpoint.owner.clone(),
            addresses: endpoint.addresses.clone(),
        });
    }
    let of_endpoints: BTreeSet<Owner> = seen.iter().map(|one| one.owner.clone()).collect();
    let (mut owners, of_others) = owners(&found, &of_endpoints);
    seen.extend(of_others);
    let (unknown, settled) = unknown(&found, &seen);
    seen.extend(unknown);
    let state = state(found, leases);
    let no_policy_yet: SkipsMasquerade = Box::new(|_| None);
    let kind = allocation::kind(Pools::default(), of_node, no_policy_yet);
    let (allocator, restored) = Allocator::restore(settings, state, Some(&seen), now);
    let manager = Manager::new(kind, allocator);
    log(&restored);
    let has_any = |owner: &Owner| manager.allocator().held_by(owner).next().is_some();
    owners.retain(|owner, _| has_any(owner) && !of_endpoints.contains(owner));
    Restoration {
        owners,
        settled,
        conflicts: restored.conflicts.iter().map(ToString::to_string).collect(),
        manager,
    }
}

/// Records of the ledger's owners, and the owners among them whose endpoint a foreign plugin made: a
/// claimed lease stays until its owner is deleted.
fn owners(
    found: &Found,
    of_endpoints: &BTreeSet<Owner>,
) -> (BTreeMap<Owner, EndpointMeta>, Vec<SeenEndpoint>) {
    let (mut owners, mut of_others) = (BTreeMap::new(), Vec::new());
    for about in &found.owners {
        let Some(owner) = about.leases.first().map(|lease| lease.owner.clone()) else {
            continue;
        };
        let is_claimed = |lease: &Lease| lease.claim == Claim::Claimed;
        if about.leases.iter().any(is_claimed) && !of_endpoints.contains(&owner) {
            let addresses = about.leases.iter().map(|lease| lease.address);
            of_others.push(SeenEndpoint {
                owner: owner.clone(),
                addresses: addresses.collect(),
            });
        }
        let known = EndpointMeta {
            leases: Vec::new(),
            ..about.clone()
        };
        owners.insert(owner, known);
    }
    (owners, of_others)
}

fn log(restored: &Restored) {
    tracing::info!(
        kept = restored.kept,
        unclaimed = restored.unclaimed,
        adopted = restored.adopted.len(),
        dropped = restored.dropped.len(),
        "leases restored"
    );
    for dropped in &restored.dropped {
        let Lease { address, owner, .. } = &dropped.lease;
        tracing::info!(%address, %owner, "lease dropped: {}", dropped.why);
    }
    for conflict in &restored.conflicts {
        tracing::error!("{conflict}");
    }
}

/// Owners of which only the id is known, with the addresses that no other owner has. The second
/// list has those without such an address.
fn unknown(found: &Found, seen: &[SeenEndpoint]) -> (Vec<SeenEndpoint>, Vec<EndpointId>) {
    let of_owners = found.owners.iter().flat_map(|about| &about.leases);
    let of_owners = of_owners.map(|lease| lease.address);
    let of_endpoints = seen.iter().flat_map(|one| one.addresses.iter().copied());
    let known: BTreeSet<IpAddr> = of_owners.chain(of_endpoints).collect();
    let mut unknown = Vec::new();
    let mut settled = Vec::new();
    for (id, addresses) in &found.unreadable {
        let addresses: BTreeSet<IpAddr> = addresses.difference(&known).copied().collect();
        if addresses.is_empty() {
            settled.push(*id);
        } else {
            let owner = id.unknown_owner();
            unknown.push(SeenEndpoint { owner, addresses });
        }
    }
    (unknown, settled)
}

/// The state that the allocator is restored from.
fn state(found: Found, of_endpoints: Vec<Lease>) -> State {
    let mut leases: BTreeMap<IpAddr, Lease> = BTreeMap::new();
    let own = found.owners.into_iter().flat_map(|about| about.leases);
    // The first lease of an address wins: an endpoint's record overrides the ledger.
    for lease in of_endpoints.into_iter().chain(own) {
        leases.entry(lease.address).or_insert(lease);
    }
    let mut cooling = found.cooling;
    // The delete of an owner with a lease was interrupted before its record was removed.
    cooling.retain(|cooling| !leases.contains_key(&cooling.address));
    State {
        leases: leases.into_values().collect(),
        cooling,
        released: found.released,
    }
}
