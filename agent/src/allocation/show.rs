//! Views of the allocator for the API and the status.

use std::collections::BTreeMap;
use std::time::Duration;

use api::types;
use api::types::Refused;
use api::types::{
    AllocationMode, AllocationStatus, CoolingStatus, LeaseState, LeaseStatus, PoolStatus,
    UnansweredStatus,
};
use ipam::{Claim, Family, Lease, Life, Owner, Problem};
use kubernetes::node::unmet_demand::UnmetDemand;
use loader::intent::Intent;

use super::Addresses;
use crate::fault_points;
use config::{Config, IpamMode};
use flows as nat;

/// True for an owner of the agent's own addresses.
pub(crate) fn is_own(owner: &Owner) -> bool {
    !fault_points::is_older() && ingress::Request::is_agents(&owner.container_id)
}

impl Addresses {
    /// Seconds until an owner's leases expire; `None` if they are claimed.
    pub(crate) fn expires(&self, owner: &Owner) -> Option<u64> {
        self.held_by(owner).iter().find_map(expires)
    }

    /// The leases and the addresses that cool down.
    pub(crate) fn list(&self, intent: &Intent, nat: &nat::Handle) -> types::Addresses {
        let endpoints = intent.endpoints.values();
        let endpoints: BTreeMap<_, _> = endpoints.map(|e| (&e.owner, e)).collect();
        let allocator = self.manager.allocator();
        let orphans: Vec<_> = allocator.orphans().map(|lease| lease.address).collect();
        let lease = |lease: &Lease| {
            let endpoint = endpoints.get(&lease.owner);
            let about = endpoint.map(|endpoint| &endpoint.about);
            let about = about.or_else(|| self.records.owners.get(&lease.owner));
            LeaseStatus {
                address: lease.address,
                owner: lease.owner.clone(),
                pool: lease.pool.clone(),
                policy: Some(
                    intent
                        .policy_by(lease.pool.as_deref(), lease.address)
                        .to_owned(),
                ),
                block: lease.block,
                state: match (endpoint, lease.claim) {
                    _ if is_own(&lease.owner) => LeaseState::Agent,
                    (Some(endpoint), _) if endpoint.is_orphan() => LeaseState::Orphaned,
                    (Some(_), _) => LeaseState::Endpoint,
                    (None, Claim::Claimed) => LeaseState::Claimed,
                    (None, Claim::Unclaimed { .. }) => LeaseState::Unclaimed,
                },
                orphan: orphans.contains(&lease.address),
                expires_seconds: expires(lease),
                pod: about.and_then(|about| about.pod.clone()),
            }
        };
        let is_enabled = self.section.enabled;
        // If allocation is off, only the agent's own addresses have leases here.
        let leases = allocator.leases();
        let leases = leases.filter(|lease| is_enabled || is_own(&lease.owner));
        let now = Self::now();
        let lasting = nat.lasting();
        let cooling = allocator.cooling().map(|cooling| CoolingStatus {
            address: cooling.address,
            pool: cooling.pool.clone(),
            seconds: cooling.until.since(now).as_secs(),
            flows: !nat.is_quiet(cooling.address),
            entries: lasting.get(&cooling.address).map(ToString::to_string),
        });
        types::Addresses {
            leases: leases.map(lease).collect(),
            cooling: cooling.filter(|_| is_enabled).collect(),
        }
    }

    /// The pools with their blocks.
    pub(crate) fn pools(&self) -> Vec<PoolStatus> {
        if !self.section.enabled {
            return Vec::new();
        }
        let allocator = self.manager.allocator();
        let mut pools: BTreeMap<(Option<String>, Family), PoolStatus> = BTreeMap::new();
        let row = |pool: Option<String>, family| PoolStatus {
            pool,
            family,
            in_use: 0,
            unclaimed: 0,
            cooling: 0,
            free: 0,
            waiting: 0,
            unavailable: 0,
            excluded: 0,
            requested: 0,
            blocks: Vec::new(),
        };
        for block in allocator.blocks() {
            let key = (block.pool.clone(), Family::of_net(block.cidr));
            let of = pools.entry(key.clone());
            let of = of.or_insert_with(|| row(key.0, key.1));
            let counts = &block.counts;
            of.in_use += counts.claimed + counts.unclaimed;
            of.unclaimed += counts.unclaimed;
            of.cooling += counts.cooling;
            of.excluded += counts.excluded;
            match block.life {
                Life::Usable => of.free += counts.free,
                Life::Announced | Life::Draining(_) | Life::Gone => of.unavailable += counts.free,
            }
            of.blocks.push(block);
        }
        for (pool, families) in allocator.demand() {
            for (family, requested) in families {
                let key = (Some(pool.clone()), family);
                let of = pools.entry(key.clone());
                of.or_insert_with(|| row(key.0, key.1)).requested = requested;
            }
        }
        for ((pool, family), waiting) in allocator.waiters() {
            let key = (Some(pool), family);
            let of = pools.entry(key.clone());
            of.or_insert_with(|| row(key.0, key.1)).waiting = waiting;
        }
        pools.into_values().collect()
    }

    /// Status of allocation.
    pub(crate) fn status(
        &self,
        intent: &Intent,
        nat: &nat::Handle,
        bad_deletes: &[std::path::PathBuf],
    ) -> AllocationStatus {
        let enabled = self.section.enabled;
        let waiting = self.manager.allocator().waiting().chain(self.barrier());
        let waiting = waiting.filter(|_| enabled);
        let waiting = waiting.map(|barrier| barrier.to_string()).collect();
        let mut pools = self.pools();
        for pool in &mut pools {
            pool.blocks.clear();
        }
        let mut leases = self.list(intent, nat).leases;
        leases.retain(|lease| lease.orphan);
        let refused = self.changes.problems.iter().filter(|p| is_refusal(p));
        let refused = refused.map(ToString::to_string);
        let bad = bad_deletes.iter().map(|path| {
            let path = path.display();
            format!("cannot read a delete that the CNI plugin queued: {path}")
        });
        AllocationStatus {
            enabled,
            mode: self.mode,
            waiting,
            pools,
            unanswered: self.unanswered(),
            orphans: leases,
            problems: self
                .faults()
                .chain(refused)
                .chain(bad)
                .chain(resting(nat))
                .collect(),
        }
    }

    /// Demand that has not been met in time.
    pub(crate) fn unanswered(&self) -> Vec<UnansweredStatus> {
        let overdue = self.unmet.overdue();
        let status = |(of, age): (&UnmetDemand, Duration)| UnansweredStatus {
            pool: of.pool.clone(),
            family: of.family,
            wanted: of.wanted,
            given: of.given,
            seconds: age.as_secs(),
        };
        overdue.map(status).collect()
    }

    /// Refused annotations of pools.
    pub(crate) fn pools_refused(&self) -> impl Iterator<Item = &Refused> {
        self.pools_refused.iter()
    }

    /// Faults, without mere refusals.
    pub(crate) fn faults(&self) -> impl Iterator<Item = String> {
        let problems = self.changes.problems.iter().filter(|p| !is_refusal(p));
        let problems = problems.map(ToString::to_string);
        let pools_refused = self.pools_refused.iter().map(ToString::to_string);
        let conflicts = self.conflicts.iter().cloned();
        problems
            .chain(pools_refused)
            .chain(conflicts)
            .chain(self.records.faults())
    }
}

/// The configured source of the node's addresses.
pub(super) fn mode(config: &Config) -> AllocationMode {
    if !config.ipam.enabled {
        return AllocationMode::Disabled;
    }
    match config.kubernetes.ipam.mode {
        _ if !config.kubernetes.enabled => AllocationMode::File,
        IpamMode::MultiPool => AllocationMode::MultiPool,
        IpamMode::Crd => AllocationMode::Crd,
    }
}

/// True if a problem is a refused request, not a fault.
fn is_refusal(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::PlainPoolSkips { .. } | Problem::NotMasqueraded { .. }
    )
}

/// Addresses that are not allocated because conntrack entries of them persist.
fn resting(nat: &nat::Handle) -> impl Iterator<Item = String> {
    let lasting = nat.lasting().into_iter();
    lasting.map(|(address, entries)| format!("{address} is not reused yet: {entries}"))
}

fn expires(lease: &Lease) -> Option<u64> {
    match lease.claim {
        Claim::Claimed => None,
        Claim::Unclaimed { until } => Some(until.since(Addresses::now()).as_secs()),
    }
}
