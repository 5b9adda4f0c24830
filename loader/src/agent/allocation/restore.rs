//! The start: what was written down against the endpoints that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipam::node::Pools;
use ipam::{Claim, Lease, Manager, Owner, SeenEndpoint, Settings, Time};

use super::ledger::Entries;
use super::{Addresses, Pods, SkipsMasquerade, allocation};
use crate::intent::{About, Endpoint};

/// What a start came to.
pub(super) struct Restoration {
    /// The allocator; it gives nothing yet.
    pub(super) manager: Manager<Pods>,
    /// What is known of owners that have addresses and no endpoint.
    pub(super) owners: BTreeMap<Owner, About>,
    /// Whether the file does not say what is so.
    pub(super) is_stale: bool,
    /// What people should know.
    pub(super) conflicts: Vec<String>,
}

/// Compares what was written down with the endpoints.
pub(super) fn restore<'a>(
    settings: Settings,
    plain_is_native: bool,
    mut entries: Entries,
    is_of_another_boot: bool,
    endpoints: impl Iterator<Item = &'a Endpoint>,
) -> Restoration {
    let now = Addresses::now();
    let mut leases: Vec<Lease> = Vec::new();
    let mut seen: Vec<SeenEndpoint> = Vec::new();
    for endpoint in endpoints {
        leases.extend(endpoint.about.leases.iter().cloned());
        seen.push(SeenEndpoint {
            owner: endpoint.owner.clone(),
            addresses: endpoint.addresses.clone(),
        });
    }
    let of_endpoints: BTreeSet<Owner> = seen.iter().map(|one| one.owner.clone()).collect();
    let mut owners = BTreeMap::new();
    for about in &entries.owners {
        let Some(owner) = about.leases.first().map(|lease| lease.owner.clone()) else {
            continue;
        };
        let is_claimed = |lease: &Lease| lease.claim == Claim::Claimed;
        if about.leases.iter().all(is_claimed) && !of_endpoints.contains(&owner) {
            // It lives until it is said to be gone: its endpoint is somebody else's.
            let addresses = about.leases.iter().map(|lease| lease.address);
            seen.push(SeenEndpoint {
                owner: owner.clone(),
                addresses: addresses.collect(),
            });
        }
        let known = About {
            leases: Vec::new(),
            since: if is_of_another_boot {
                Some(now)
            } else {
                about.since
            },
            ..about.clone()
        };
        owners.insert(owner, known);
    }
    if is_of_another_boot {
        let cooldown = now.after(settings.cooldown);
        for cooling in &mut entries.cooling {
            cooling.until = cooldown;
        }
        let of_owners = entries
            .owners
            .iter_mut()
            .flat_map(|about| &mut about.leases);
        let all = of_owners.chain(&mut leases);
        all.for_each(|lease| age(lease, now));
    }
    let state = entries.into_state(leases.into_iter());
    let no_policy_yet: SkipsMasquerade = Box::new(|_| None);
    let kind = allocation::kind(Pools::default(), plain_is_native, no_policy_yet);
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
        is_stale: !restored.dropped.is_empty() || is_of_another_boot,
        conflicts: restored.conflicts.iter().map(ToString::to_string).collect(),
        manager,
    }
}

/// A lease of an earlier boot, in the time of this one.
fn age(lease: &mut Lease, now: Time) {
    lease.since = now;
    if let Claim::Unclaimed { until } = &mut lease.claim {
        // What is left of its time is not known; the allocator shortens it to the whole.
        *until = now.after(Duration::MAX);
    }
}
