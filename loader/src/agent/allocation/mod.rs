//! Who has which address: the allocator, what of it is on disk, and what time it is.
//!
//! What has to be on disk before an answer goes out:
//!
//! | what | where | when |
//! |---|---|---|
//! | an endpoint's leases | its own record | before its devices are made |
//! | leases of an owner without an endpoint | the ledger | before the answer |
//! | the cooldown of an endpoint's addresses | the ledger | before its record goes |
//! | that a lease was claimed, or has expired | the ledger | with the next look at the time |
//!
//! A delete goes on when the ledger cannot be written: what a crash then loses is the cooldown.

mod clock;
mod errors;
mod ledger;
mod outlook;
mod restore;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use ipam::node::{EniAddress, PodsOnEnis};
use ipam::{
    AllocateError, Allocation, Barrier, Changes, Family, Lease, Manager, Owner, Request, Time, Want,
};

pub(super) use self::errors::refusal;
pub(super) use self::ledger::remove as remove_ledger;
use self::ledger::{Entries, Found, Ledger};
use crate::allocation::{self, SkipsMasquerade};
use crate::api::Ask;
use crate::config::{Config, IpamSection};
use crate::intent::{About, Endpoint, Intent};
use crate::masquerade;
use crate::nat;

/// What the first address waits for besides the documents.
const KERNEL: Barrier = Barrier::new("a first look at the kernel");

/// The kind of resource that is allocated.
type Pods = PodsOnEnis<SkipsMasquerade>;

/// What an answer carries of an address.
pub(super) type Given = Allocation<Option<EniAddress>>;

/// Who has which address.
pub(super) struct Addresses {
    section: IpamSection,
    plain_is_native: bool,
    boot: String,
    ledger: Ledger,
    /// Where the file is that could not be read.
    corrupt: Option<PathBuf>,
    /// None where the agent allocates nothing.
    manager: Option<Manager<Pods>>,
    /// What is known of owners that have no endpoint.
    owners: BTreeMap<Owner, About>,
    /// What was announced last.
    inputs: Option<Inputs>,
    changes: Changes,
    /// What is wrong with the pools as a whole.
    pools_error: Option<String>,
    /// Whether the ledger does not say what is so.
    is_stale: bool,
    /// Why the ledger could not be written.
    unsaved: Option<String>,
    /// Endpoints that were found to have one address.
    conflicts: Vec<String>,
}

/// What the announcement rests on: it is made anew only when this changes.
#[derive(Clone, PartialEq)]
struct Inputs {
    generation: u64,
    pools: Option<Arc<masquerade::Pools>>,
    taken: BTreeSet<IpAddr>,
}

/// What is known of the node by now.
pub(super) struct Surroundings<'a> {
    pub(super) intent: &'a Intent,
    /// Which document the intent's node is from.
    pub(super) generation: u64,
    /// Addresses that somebody has who asks for none: the host, above all.
    pub(super) taken: BTreeSet<IpAddr>,
    /// The ids of the ENIs that are ready; `None` before the first look.
    pub(super) ready: Option<BTreeSet<String>>,
    pub(super) nat: &'a nat::Handle,
}

impl Addresses {
    /// Reads what is on disk and compares it with the endpoints that have records. Nothing is given
    /// before the kernel has been looked at.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub(super) fn open<'a>(
        config: &Config,
        folder: &Path,
        endpoints: impl Iterator<Item = &'a Endpoint>,
    ) -> Result<Self> {
        let boot = clock::boot_id()?;
        let plain_is_native = config.plain_pools.native;
        let (ledger, found) = Ledger::open(folder, &boot)?;
        let Found {
            entries,
            is_of_another_boot,
            corrupt,
        } = found;
        let settings = config.ipam.settings(KERNEL);
        let restored = config.ipam.enabled.then(|| {
            let is_old = is_of_another_boot;
            restore::restore(settings, plain_is_native, entries, is_old, endpoints)
        });
        let mut addresses = Self {
            section: config.ipam.clone(),
            plain_is_native,
            boot,
            ledger,
            corrupt,
            manager: None,
            owners: BTreeMap::new(),
            inputs: None,
            changes: Changes::default(),
            pools_error: None,
            is_stale: false,
            unsaved: None,
            conflicts: Vec::new(),
        };
        if let Some(restored) = restored {
            addresses.manager = Some(restored.manager);
            addresses.owners = restored.owners;
            addresses.is_stale = restored.is_stale;
            addresses.conflicts = restored.conflicts;
        }
        Ok(addresses)
    }

    /// Whether the agent allocates addresses at all.
    pub(super) fn is_enabled(&self) -> bool {
        self.section.enabled
    }

    /// The time that leases go by. A clock that cannot be read stands still.
    pub(super) fn now() -> Time {
        clock::now().unwrap_or_else(|error| {
            tracing::error!("{error:#}");
            Time::default()
        })
    }

    /// Takes note of what has changed: documents, the host's addresses, which ENIs are ready, time.
    pub(super) fn update(&mut self, around: Surroundings<'_>) {
        let Some(manager) = &mut self.manager else {
            return;
        };
        let Surroundings {
            intent,
            generation,
            taken,
            ready,
            nat,
        } = around;
        let policy = &intent.policy;
        let masquerade = &intent.settings.masquerade;
        let inputs = Inputs {
            generation,
            pools: policy.pools.clone(),
            taken,
        };
        if self.inputs.as_ref() != Some(&inputs) {
            let documents = policy.pools.as_deref();
            match allocation::pools(documents, &manager.allocator().settings().default_pool) {
                Ok(pools) => {
                    let (policy, masquerade) = (policy.clone(), masquerade.clone());
                    let skips = move |name: &str| {
                        let policy = policy.pool(name, &masquerade)?;
                        Some(policy.skip_masquerade)
                    };
                    let kind = allocation::kind(pools, self.plain_is_native, Box::new(skips));
                    manager.reconfigure(kind);
                    self.pools_error = None;
                }
                Err(error) => self.pools_error = Some(error.to_string()),
            }
            let document = allocation::node_pools(&intent.node, inputs.taken.clone());
            let changes = manager.observe(document);
            log(&changes);
            self.changes = changes;
            self.inputs = Some(inputs);
        }
        let allocator = manager.allocator_mut();
        let are_read = masquerade.pools.is_none() || policy.pools.is_some();
        // Without its bindings an ENI would serve the wrong pool.
        if are_read && self.pools_error.is_none() {
            allocator.lift(Barrier::POOLS);
        }
        if let Some(ready) = ready {
            allocator.set_ready(ready);
            allocator.lift(KERNEL);
        }
        self.advance(nat);
    }

    /// Lets time do what it does.
    fn advance(&mut self, nat: &nat::Handle) {
        let Some(manager) = &mut self.manager else {
            return;
        };
        let at_once = self.section.cooldown.get().is_zero();
        let is_quiet = |address| at_once || nat.is_quiet(address);
        let advanced = manager.allocator_mut().advance(Self::now(), is_quiet);
        for lease in &advanced.expired {
            tracing::info!(owner = %lease.owner, address = %lease.address, "taken back: unclaimed");
            self.owners.remove(&lease.owner);
        }
        self.is_stale |= !advanced.expired.is_empty() || !advanced.cooled.is_empty();
    }

    /// Gives an owner what it asks for, all of it or nothing. What it has already it is given again.
    pub(super) fn allocate(
        &mut self,
        owner: &Owner,
        addresses: &BTreeSet<IpAddr>,
        ask: &Ask,
    ) -> Result<Vec<Given>, AllocateError> {
        let Some(manager) = &mut self.manager else {
            let waiting = vec![KERNEL];
            return Err(AllocateError::Restoring { waiting });
        };
        let request = |want: Want| Request {
            owner: owner.clone(),
            pool: ask.pools.get(&want.family()).cloned(),
            want,
        };
        let requests: Vec<Request> = if addresses.is_empty() {
            let families = allocation::families(&ask.families, self.section.families.get());
            families.into_iter().map(Want::Any).map(request).collect()
        } else {
            addresses
                .iter()
                .copied()
                .map(Want::Address)
                .map(request)
                .collect()
        };
        manager.allocate(&requests, Self::now())
    }

    /// The leases of an owner.
    pub(super) fn held_by(&self, owner: &Owner) -> Vec<Lease> {
        let manager = self.manager.iter();
        let held = manager.flat_map(|manager| manager.allocator().held_by(owner));
        held.cloned().collect()
    }

    /// The owner lives: what it has does not expire. Its leases; none where it has none.
    pub(super) fn claim(&mut self, owner: &Owner) -> Vec<Lease> {
        let Some(manager) = &mut self.manager else {
            return Vec::new();
        };
        let claimed = manager.allocator_mut().claim(owner).unwrap_or_default();
        self.is_stale |= self.owners.contains_key(owner);
        claimed
    }

    /// The owner has an endpoint now, whose record has its leases.
    pub(super) fn is_endpoint(&mut self, owner: &Owner) {
        self.is_stale |= self.owners.remove(owner).is_some();
    }

    /// The owner has addresses and no endpoint.
    pub(super) fn is_without_endpoint(&mut self, owner: &Owner, ask: &Ask) {
        let about = About {
            network: ask.network.clone(),
            pod: ask.pod.clone(),
            since: Some(Self::now()),
            leases: Vec::new(),
        };
        self.owners.insert(owner.clone(), about);
        self.is_stale = true;
    }

    /// What is known of owners that have addresses and no endpoint.
    pub(super) fn owners(&self) -> &BTreeMap<Owner, About> {
        &self.owners
    }

    /// What an owner was given for an endpoint that could not be made is free again at once.
    pub(super) fn take_back(&mut self, owner: &Owner) {
        if let Some(manager) = &mut self.manager {
            manager.allocator_mut().take_back(owner);
            self.is_stale |= self.owners.remove(owner).is_some();
        }
    }

    /// Writes down that what these owners have cools down from now on. It is still theirs: their
    /// records come next. Without their addresses on disk nothing needs to be written.
    pub(super) fn announce_release(&mut self, owners: &[Owner]) {
        if owners.iter().any(|owner| !self.held_by(owner).is_empty()) {
            self.is_stale = true;
            self.save(owners);
        }
    }

    /// The owner is gone: what it has cools down.
    pub(super) fn release(&mut self, owner: &Owner) -> Vec<Lease> {
        let Some(manager) = &mut self.manager else {
            return Vec::new();
        };
        self.is_stale |= self.owners.remove(owner).is_some();
        let released = manager.allocator_mut().release(owner, Self::now());
        if self.section.cooldown.get().is_zero() {
            let freed = manager.allocator_mut().advance(Self::now(), |_| true);
            self.is_stale |= !freed.cooled.is_empty();
        }
        released
    }

    /// Writes the ledger where it does not say what is so; `leaving` are owners whose addresses are
    /// written down as cooling down already. Why it could not be written is kept for the status.
    pub(super) fn save(&mut self, leaving: &[Owner]) -> bool {
        if !self.is_stale {
            return true;
        }
        let entries = self.entries(leaving);
        match self.ledger.write(&entries, &self.boot) {
            Ok(()) => {
                self.is_stale = false;
                self.unsaved = None;
                true
            }
            Err(error) => {
                let error = format!("{error:#}");
                if self.unsaved.as_ref() != Some(&error) {
                    tracing::error!("a crash would lose leases or cooldowns: {error}");
                }
                self.unsaved = Some(error);
                false
            }
        }
    }

    /// What has to be on disk.
    fn entries(&self, leaving: &[Owner]) -> Entries {
        let Some(manager) = &self.manager else {
            return Entries::default();
        };
        let mut state = manager.allocator().state();
        let until = Self::now().after(self.section.cooldown.get());
        let mut owners = BTreeMap::new();
        for lease in state.leases {
            if leaving.contains(&lease.owner) {
                state.cooling.push(ipam::Cooling {
                    address: lease.address,
                    pool: lease.pool,
                    block: lease.block,
                    until,
                });
            } else if let Some(about) = self.owners.get(&lease.owner) {
                let of = owners.entry(lease.owner.clone());
                of.or_insert_with(|| about.clone()).leases.push(lease);
            }
        }
        Entries {
            owners: owners.into_values().collect(),
            cooling: state.cooling,
            released: state.released,
        }
    }

    /// Why no pod can be added that names no pool; `None` where one can.
    pub(super) fn exhausted(&self) -> Option<AllocateError> {
        let allocator = self.manager.as_ref()?.allocator();
        let pool = &allocator.settings().default_pool;
        let mut families = self.section.families.get().iter();
        families.find_map(|&family: &Family| allocator.probe(pool, family).err())
    }
}

fn log(changes: &Changes) {
    for problem in &changes.problems {
        tracing::warn!("addresses: {problem}");
    }
    for lease in &changes.orphaned {
        let (address, owner) = (lease.address, &lease.owner);
        tracing::warn!(%address, %owner, "the address in use has lost its block");
    }
}
