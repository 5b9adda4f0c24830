//! The start: what was written down against the endpoints that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::{Lease, Manager, Owner, SeenEndpoint, Time};

use super::ledger::Found;
use super::{Addresses, KERNEL, allocation};
use crate::intent::Endpoint;

/// The container id in the name of whoever has the address of an endpoint whose record cannot be
/// read. No container has it: it does not begin with a letter or digit.
const UNREADABLE: &str = "-unreadable-";

impl Addresses {
    /// Compares what was written down with the endpoints, once. `hidden` are addresses of endpoints
    /// whose records cannot be read, with their devices: nobody else gets them.
    pub(in crate::agent) fn restore<'a>(
        &mut self,
        endpoints: impl Iterator<Item = &'a Endpoint>,
        hidden: &BTreeMap<IpAddr, String>,
    ) {
        if !self.section.enabled {
            return;
        }
        let Some(found) = self.found.take() else {
            return;
        };
        let now = Self::now();
        let Found {
            mut entries,
            is_of_another_boot,
            corrupt: _,
        } = found;
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
        let unreadable = hidden.iter().map(|(address, device)| SeenEndpoint {
            owner: unreadable(device),
            addresses: [*address].into(),
        });
        seen.extend(unreadable);
        for about in &mut entries.owners {
            let is_claimed = |lease: &Lease| lease.claim == ipam::Claim::Claimed;
            if let Some(first) = about.leases.first() {
                let owner = first.owner.clone();
                if about.leases.iter().all(is_claimed) {
                    // It lives until it is said to be gone: its endpoint is somebody else's.
                    let addresses = about.leases.iter().map(|lease| lease.address);
                    if !of_endpoints.contains(&owner) {
                        seen.push(SeenEndpoint {
                            owner: owner.clone(),
                            addresses: addresses.collect(),
                        });
                    }
                }
                let mut known = about.clone();
                known.leases.clear();
                self.owners.insert(owner, known);
            }
        }
        if is_of_another_boot {
            let cooldown = now.after(self.section.cooldown.get());
            for cooling in &mut entries.cooling {
                cooling.until = cooldown;
            }
            for about in self.owners.values_mut() {
                about.since = Some(now);
            }
            let own = entries
                .owners
                .iter_mut()
                .flat_map(|about| &mut about.leases);
            own.chain(&mut leases).for_each(|lease| age(lease, now));
        }
        let state = entries.into_state(leases.into_iter());
        let kind = allocation::kind(
            ipam::node::Pools::default(),
            self.plain_is_native,
            Box::new(|_| None),
        );
        let settings = self.section.settings(KERNEL);
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
            self.restored.push(conflict.to_string());
        }
        let held = |owner: &Owner| manager.allocator().held_by(owner).next().is_some();
        self.owners
            .retain(|owner, _| held(owner) && !of_endpoints.contains(owner));
        self.is_stale = !restored.dropped.is_empty() || is_of_another_boot;
        self.manager = Some(manager);
    }

    /// An endpoint whose record could not be read is gone.
    pub(in crate::agent) fn release_unreadable(&mut self, device: &str) {
        self.release(&unreadable(device));
    }
}

/// Who has the addresses of a device whose endpoint's record cannot be read.
fn unreadable(device: &str) -> Owner {
    Owner {
        container_id: UNREADABLE.to_owned(),
        interface: device.to_owned(),
    }
}

/// A lease of an earlier boot, in the time of this one.
fn age(lease: &mut Lease, now: Time) {
    lease.since = now;
    if let ipam::Claim::Unclaimed { until } = &mut lease.claim {
        // What is left of its time is not known; the allocator shortens it to the whole.
        *until = now.after(std::time::Duration::MAX);
    }
}
