//! The start: what was written down against the endpoints that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::EndpointId;
use ipam::node::Pools;
use ipam::{Claim, Lease, Manager, Owner, SeenEndpoint, Settings, State};
use loader::intent;
use loader::intent::{About, Endpoint};

use super::ledger::Found;
use super::{Addresses, Pods, SkipsMasquerade, allocation};

/// What a start came to.
pub(super) struct Restoration {
    /// The allocator; it gives nothing yet.
    pub(super) manager: Manager<Pods>,
    /// What is known of owners that have addresses and no endpoint.
    pub(super) owners: BTreeMap<Owner, About>,
    /// Of whom a record cannot be read that holds nothing: what it had is known from elsewhere.
    pub(super) settled: Vec<EndpointId>,
    /// What people should know.
    pub(super) conflicts: Vec<String>,
}

/// Compares what was written down with the endpoints.
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
            // Nothing is of the future but what is of another boot.
            since: lease.since.min(now),
            ..lease
        }));
        seen.push(SeenEndpoint {
            owner: endpoint.owner.clone(),
            addresses: endpoint.addresses.clone(),
        });
    }
    let of_endpoints: BTreeSet<Owner> = seen.iter().map(|one| one.owner.clone()).collect();
    let mut owners = BTreeMap::new();
    for about in &found.owners {
        let Some(owner) = about.leases.first().map(|lease| lease.owner.clone()) else {
            continue;
        };
        let is_claimed = |lease: &Lease| lease.claim == Claim::Claimed;
        if about.leases.iter().any(is_claimed) && !of_endpoints.contains(&owner) {
            // It lives until it is said to be gone: its endpoint is somebody else's.
            let addresses = about.leases.iter().map(|lease| lease.address);
            seen.push(SeenEndpoint {
                owner: owner.clone(),
                addresses: addresses.collect(),
            });
        }
        let known = About {
            leases: Vec::new(),
            ..about.clone()
        };
        owners.insert(owner, known);
    }
    let (unknown, settled) = unknown(&found, &seen);
    seen.extend(unknown);
    let state = state(found, leases);
    let no_policy_yet: SkipsMasquerade = Box::new(|_| None);
    let kind = allocation::kind(Pools::default(), of_node, no_policy_yet);
    let (manager, restored) = Manager::restore(kind, settings, state, Some(&seen), now);
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
    let has_any = |owner: &Owner| manager.allocator().held_by(owner).next().is_some();
    owners.retain(|owner, _| has_any(owner) && !of_endpoints.contains(owner));
    Restoration {
        owners,
        settled,
        conflicts: restored.conflicts.iter().map(ToString::to_string).collect(),
        manager,
    }
}

/// Owners of whom only an id is known, with what they have: what nobody else is known to have. And those
/// that have nothing of the kind.
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

/// The leases and all the rest, as the allocator takes it.
fn state(found: Found, of_endpoints: Vec<Lease>) -> State {
    let mut leases: BTreeMap<IpAddr, Lease> = BTreeMap::new();
    let own = found.owners.into_iter().flat_map(|about| about.leases);
    // What stands first counts: an endpoint has its addresses, whatever else was written down.
    for lease in of_endpoints.into_iter().chain(own) {
        leases.entry(lease.address).or_insert(lease);
    }
    let mut cooling = found.cooling;
    // Of an owner whose delete did not get to its record.
    cooling.retain(|cooling| !leases.contains_key(&cooling.address));
    State {
        leases: leases.into_values().collect(),
        cooling,
        released: found.released,
    }
}
