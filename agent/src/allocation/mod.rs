//! Address allocation: the allocator, its records on disk, and its clock.
//!
//! Records that are on disk before an answer is sent:
//!
//! | record | place | written |
//! |---|---|---|
//! | an endpoint's leases | its own record | before its devices are made |
//! | leases of an owner without an endpoint | its record in the ledger | before the answer |
//! | the cooldown of an endpoint's addresses | the ledger | before its record is removed |
//! | the claim or the expiry of a lease | the ledger | at the next update |
//!
//! A delete continues if the ledger cannot be written. A crash then loses the cooldown.
//!
//! If the agent allocates no addresses (`ipam.enabled: false`), it still records leases and
//! cooldowns. They are right when allocation is enabled again.

pub(crate) mod adapter;
mod clock;
mod demand;
mod errors;
mod ledger;
mod restore;
mod save;
mod show;
mod unreadable;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use api::ids::EndpointId;
use api::ids::PodRef;
use api::types::AllocationMode;
use api::types::Refused;
use ipam::node::{EniAddress, PodsOnEnis};
use ipam::{
    Advanced, AllocateError, Allocation, Barrier, Changes, Lease, Manager, Owner, Request, Time,
    Want,
};
use kubernetes::node::handshake::{Handshake, Release};
use loader::intent::masquerade;
use loader::intent::{Endpoint, EndpointMeta, Intent};

pub(super) use self::clock::boot_id;
use self::demand::Unmet;
use self::ledger::Ledger;
pub(super) use self::ledger::remove as remove_ledger;
use self::save::Records;
pub(crate) use self::show::is_own;
use self::waiting::{KERNEL, PublicAddress};
use crate::allocation::adapter as allocation;
use crate::allocation::adapter::SkipsMasquerade;
use crate::server::AddressSpec;
use config::{Config, IpamSection};
use flows as nat;

/// The kind of resource that is allocated.
type Pods = PodsOnEnis<SkipsMasquerade>;

/// An allocated address, as an answer describes it.
pub(super) type AllocatedAddress = Allocation<Option<EniAddress>>;

/// The allocator of pods' addresses, with its records.
pub(super) struct Addresses {
    section: IpamSection,
    mode: AllocationMode,
    records: Records,
    manager: Manager<Pods>,
    /// Inputs of the last announcement.
    inputs: Option<Inputs>,
    changes: Changes,
    /// The refused binding of the default pool.
    pools_refused: Option<Refused>,
    /// True if the next demand may differ from the last one.
    has_news: bool,
    /// Conflicts between endpoints that have the same address.
    conflicts: Vec<String>,
    /// State of the node's public address.
    public_address: PublicAddress,
    releases: Releases,
    unmet: Unmet,
}

/// State of the release of single addresses, and the agent's answers.
#[derive(Default)]
struct Releases {
    handshake: Handshake,
    answers: BTreeMap<IpAddr, Release>,
}

/// Inputs of the announcement, which is rebuilt only when one of them changes.
#[derive(Clone, PartialEq)]
struct Inputs {
    generation: u64,
    pools: Option<Arc<masquerade::Pools>>,
    taken: BTreeSet<IpAddr>,
}

/// The current state of the node.
pub(super) struct NodeInputs<'a> {
    pub(super) intent: &'a Intent,
    /// Generation of the document that the intent's node was read from.
    pub(super) generation: u64,
    /// Addresses in use without a lease, above all the host's.
    pub(super) taken: BTreeSet<IpAddr>,
    /// Addresses that the kernel still has objects of; `None` if that is unknown.
    pub(super) lingering: Option<&'a BTreeSet<IpAddr>>,
    /// The ids of the ready ENIs; `None` before the first observation.
    pub(super) ready: Option<BTreeSet<String>>,
    pub(super) nat: &'a nat::Handle,
}

impl Addresses {
    /// Reads the ledger and compares it with the recorded endpoints. No address is allocated before
    /// the kernel has been observed.
    ///
    /// # Errors
    /// If the folder cannot be read or written.
    pub(super) fn open<'a>(
        config: &Config,
        folder: &Path,
        endpoints: impl Iterator<Item = &'a Endpoint>,
    ) -> Result<Self> {
        let (mut ledger, found) = Ledger::open(folder, &boot_id()?, Self::now())?;
        let mut settings = config.ipam.settings(KERNEL);
        // Claims are written into an object of the API server.
        settings.release &= show::mode(config) == AllocationMode::MultiPool;
        let restored = restore::restore(settings, &config.settings(), found, endpoints);
        for id in restored.settled {
            ledger.drop_unreadable(id);
        }
        let mut manager = restored.manager;
        if config.masquerade.pools.is_none() && !config.kubernetes.enabled {
            manager.allocator_mut().lift(Barrier::POOLS);
        }
        Ok(Self {
            section: config.ipam.clone(),
            mode: show::mode(config),
            records: Records::new(ledger, restored.owners),
            manager,
            inputs: None,
            changes: Changes::default(),
            pools_refused: None,
            has_news: true,
            conflicts: restored.conflicts,
            public_address: PublicAddress::default(),
            releases: Releases::default(),
            unmet: Unmet::default(),
        })
    }

    /// True if the agent allocates addresses.
    pub(super) fn is_enabled(&self) -> bool {
        self.section.enabled
    }

    /// The current time of the leases' clock. A clock that cannot be read gives zero.
    pub(super) fn now() -> Time {
        clock::now().unwrap_or_else(|error| {
            tracing::error!("{error:#}");
            Time::default()
        })
    }

    /// Updates the allocator from the documents, the host's addresses, the ready ENIs and the time.
    pub(super) fn update(&mut self, node: &NodeInputs<'_>) {
        if self.section.enabled {
            self.observe(node);
        }
        self.advance(node);
    }

    /// Updates the blocks that addresses are allocated from.
    fn observe(&mut self, node: &NodeInputs<'_>) {
        self.look_for_static_address(node);
        let mut taken = node.taken.clone();
        if let Some(flat) = &node.intent.node.flat {
            // An address that is being released is withheld before the answer is written.
            taken.extend(self.shake_hands(flat));
        }
        let policy = &node.intent.policy;
        let settings = &node.intent.settings;
        let masquerade = &settings.masquerade;
        let inputs = Inputs {
            generation: node.generation,
            pools: policy.pools.clone(),
            taken,
        };
        let manager = &mut self.manager;
        if self.inputs.as_ref() != Some(&inputs) {
            let documents = policy.pools.as_deref();
            let default = manager.allocator().settings().default_pool.clone();
            let (pools, refused) = allocation::pools(documents, &default);
            let (policy, masquerade) = (policy.clone(), masquerade.clone());
            let skips = move |name: &str| {
                let policy = policy.pool(name, &masquerade)?;
                Some(policy.skip_masquerade)
            };
            let kind = allocation::kind(pools, settings, Box::new(skips));
            manager.reconfigure(kind);
            self.pools_refused = refused;
            let document = allocation::node_pools(&node.intent.node, inputs.taken.clone());
            let unconfirmed = manager.allocator().unconfirmed().count();
            let changes = manager.observe(document);
            self.has_news = true;
            log(&changes);
            manager.allocator_mut().confirm(Self::now());
            // A block that is gone, or whose claim is confirmed, needs no record any more.
            self.records.is_stale |= unconfirmed != manager.allocator().unconfirmed().count();
            self.changes = changes;
            self.inputs = Some(inputs);
        }
        let allocator = manager.allocator_mut();
        let are_read = masquerade.pools.is_none() || policy.pools.is_some();
        // Before the bindings are read, an ENI could serve the wrong pool.
        if are_read {
            allocator.lift(Barrier::POOLS);
        }
        if let Some(ready) = &node.ready {
            allocator.set_ready(ready.clone());
            allocator.lift(KERNEL);
        }
    }

    /// Ends leases and cooldowns that are over. An address stays held while the kernel has, or may
    /// have, objects of it.
    fn advance(&mut self, node: &NodeInputs<'_>) {
        let at_once = self.section.cooldown.get().is_zero();
        let now = Self::now();
        let is_quiet = |address| {
            node.lingering.is_some_and(|all| !all.contains(&address))
                && (at_once || node.nat.is_quiet(address))
        };
        let is_over = |address| is_quiet(address) && (at_once || node.nat.is_forgotten(address));
        let allocator = self.manager.allocator_mut();
        let mut leaving = BTreeSet::new();
        if !at_once {
            let cooled = allocator.cooling().filter(|cooling| cooling.until <= now);
            leaving.extend(
                cooled
                    .map(|cooling| cooling.address)
                    .filter(|a| is_quiet(*a)),
            );
            node.nat.set_leaving(&leaving);
        }
        let advanced = allocator.advance(now, is_over);
        if !advanced.cooled.is_empty() {
            // From now on conntrack entries of the address belong to its next pod.
            leaving.retain(|address| !advanced.cooled.contains(address));
            node.nat.set_leaving(&leaving);
        }
        self.has_news |= advanced != Advanced::default();
        for lease in &advanced.expired {
            tracing::info!(owner = %lease.owner, address = %lease.address, "taken back: unclaimed");
            self.records.owners.remove(&lease.owner);
        }
        self.records.is_stale |= !advanced.expired.is_empty() || !advanced.cooled.is_empty();
        self.records.is_stale |= advanced.rested > 0;
    }

    /// Allocates the requested addresses to an owner, all or none. A repeated request gets those
    /// that the owner already has.
    pub(super) fn allocate(
        &mut self,
        owner: &Owner,
        addresses: &BTreeSet<IpAddr>,
        ask: &AddressSpec,
    ) -> Result<Vec<AllocatedAddress>, AllocateError> {
        if let Some(lease) = self.held_by(&EndpointId::of(owner).unknown_owner()).pop() {
            return Err(AllocateError::HasAnother {
                owner: owner.clone(),
                has: lease.address,
                pool: lease.pool.unwrap_or_default(),
            });
        }
        if let Some(waiting) = self.barrier().filter(|_| self.held_by(owner).is_empty()) {
            let waiting = vec![waiting];
            return Err(AllocateError::Restoring { waiting });
        }
        let request = |want: Want| Request {
            owner: owner.clone(),
            pod: ask.pod.as_ref().map(ipam::Pod::from),
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
        // A refused request changes the demand, too.
        self.has_news = true;
        self.manager.allocate(&requests, Self::now())
    }

    /// Records addresses that the owner's request names as the owner's.
    pub(super) fn adopt(
        &mut self,
        owner: &Owner,
        addresses: &BTreeSet<IpAddr>,
    ) -> Result<(), AllocateError> {
        let now = Self::now();
        for address in addresses {
            self.manager.allocator_mut().adopt(owner, *address, now)?;
            self.records.is_stale = true;
            self.has_news = true;
        }
        Ok(())
    }

    /// True if an address cools down.
    pub(super) fn is_cooling(&self, address: IpAddr) -> bool {
        let mut cooling = self.manager.allocator().cooling();
        cooling.any(|cooling| cooling.address == address)
    }

    /// The names of the pools of the addresses in use.
    pub(super) fn pools_in_use(&self) -> BTreeSet<String> {
        let leases = self.manager.allocator().leases();
        leases.filter_map(|lease| lease.pool.clone()).collect()
    }

    /// The leases of an owner.
    pub(super) fn held_by(&self, owner: &Owner) -> Vec<Lease> {
        self.manager.allocator().held_by(owner).cloned().collect()
    }

    /// Claims the leases of an owner, so that they do not expire, and returns them.
    pub(super) fn claim(&mut self, owner: &Owner) -> Vec<Lease> {
        let allocator = self.manager.allocator_mut();
        let claimed = allocator.claim(owner).unwrap_or_default();
        self.records.is_stale |= self.records.owners.contains_key(owner);
        claimed
    }

    /// Notes that the owner has an endpoint, whose record holds its leases.
    pub(super) fn is_endpoint(&mut self, owner: &Owner) {
        self.records.forget(owner);
    }

    /// Records an owner that has addresses and no endpoint.
    pub(super) fn is_without_endpoint(&mut self, owner: &Owner, ask: &AddressSpec) {
        let about = EndpointMeta {
            device: None,
            network: ask.network.clone(),
            pod: ask.pod.clone(),
            since: Some(Self::now()),
            namespace: None,
            leases: Vec::new(),
        };
        self.records.put(owner, about);
    }

    /// Records of the owners that have addresses and no endpoint.
    pub(super) fn owners(&self) -> &BTreeMap<Owner, EndpointMeta> {
        &self.records.owners
    }

    /// Frees the addresses of an endpoint that could not be created, without a cooldown. If the
    /// next attempt can succeed, its pod is counted as waiting for as many.
    pub(super) fn take_back(&mut self, owner: &Owner, pod: Option<&PodRef>, is_tried_again: bool) {
        self.has_news = true;
        let now = Self::now();
        let allocator = self.manager.allocator_mut();
        let leases = allocator.take_back(owner);
        if is_tried_again {
            let pod = pod.map(ipam::Pod::from);
            allocator.wait(owner, pod.as_ref(), &leases, now);
        }
        self.records.forget(owner);
    }

    /// Removes a deleted pod from those that wait for addresses.
    pub(super) fn forget_pod(&mut self, pod: &PodRef) {
        self.has_news |= self.manager.allocator_mut().forget(&pod.into());
    }

    /// Records the start of the cooldown of the owners' addresses, and returns it for
    /// [`Self::release`]. The owners still hold the addresses until their records are removed.
    /// Owners without leases need no record.
    pub(super) fn announce_release(&mut self, owners: &[Owner]) -> Time {
        let now = Self::now();
        let leaving: Vec<Owner> = owners.iter().flat_map(unreadable::names).collect();
        if leaving.iter().any(|owner| !self.held_by(owner).is_empty()) {
            self.records.is_stale = true;
            self.write(&leaving, now);
        }
        now
    }

    /// Releases the addresses of a deleted owner, which cool down from `at` on.
    pub(super) fn release(&mut self, owner: &Owner, at: Time) -> Vec<Lease> {
        self.records.owners.remove(owner);
        self.records.ledger.drop_unreadable(EndpointId::of(owner));
        let names = unreadable::names(owner);
        let released: Vec<Lease> = names.iter().flat_map(|of| self.cool_down(of, at)).collect();
        self.records.is_stale |= !released.is_empty();
        released
    }

    fn cool_down(&mut self, owner: &Owner, at: Time) -> Vec<Lease> {
        let released = self.manager.allocator_mut().release(owner, at);
        self.has_news |= !released.is_empty();
        released
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
