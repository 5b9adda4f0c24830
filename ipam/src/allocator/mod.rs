//! The allocator: blocks, leases and requests of one kind of resource on one node.

mod allocate;
mod balance;
mod index;
mod release;
mod restore;
mod settle;
mod surplus;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use self::balance::Confirmed;
use self::index::Index;
pub use self::release::Advanced;
pub use self::restore::{Conflict, Dropped, Restored, SeenEndpoint, WhyDropped};
pub use self::surplus::Rebalanced;
use crate::announcement::{AnnouncedBlock, Announcement};
use crate::block::Block;
use crate::demand::Waiting;
use crate::settings::{Barrier, Settings};
use crate::value::family::overlap;
use crate::{Claim, Cooling, Family, Lease, Owner, State, Time};

/// Allocates addresses to owners. It is a value: the caller passes the node's blocks, the ready
/// ENIs and the time, and saves its [`State`] after each change.
///
/// The node's blocks are disjoint, so an address is in at most one of them. Leases and addresses
/// that cool down are kept by address, apart from blocks. So an address with an owner is never
/// free, even if blocks come and go or change their pools.
#[derive(Clone, Debug)]
pub struct Allocator {
    settings: Settings,
    /// The barriers that are not lifted yet.
    waiting: BTreeSet<Barrier>,
    announcement: Announcement,
    /// True if anything has been announced yet.
    is_observed: bool,
    /// The announced blocks that count, by their first address.
    announced: BTreeMap<IpAddr, AnnouncedBlock>,
    /// The devices that are ready.
    ready: BTreeSet<String>,
    /// The state of each block, by its first address.
    blocks: BTreeMap<IpAddr, Block>,
    index: Index,
    leases: BTreeMap<IpAddr, Lease>,
    by_owner: BTreeMap<Owner, BTreeSet<IpAddr>>,
    /// The unclaimed leases, which alone can expire.
    unclaimed: BTreeSet<IpAddr>,
    cooling: BTreeMap<IpAddr, Cooling>,
    /// Recently released addresses whose cooldown is over, including those with a new owner.
    fresh: BTreeMap<IpAddr, Cooling>,
    /// Owners whose requests failed.
    waiters: Waiting,
    /// Blocks that were given back and that the node still has.
    released: BTreeSet<IpNet>,
    /// Of these, the time since when each counts as given back, if that is known.
    given_back: BTreeMap<IpNet, Time>,
    /// Reclaimed blocks, each with the time since when it counts as released, if known.
    reclaiming: BTreeMap<IpNet, Option<Time>>,
    /// Blocks whose claim the last document shows.
    confirmed: BTreeMap<IpNet, Confirmed>,
    /// Released blocks that a document has shown without a claim since their release.
    unclaimed_blocks: BTreeSet<IpNet>,
    /// Fresh blocks without a confirmed claim, each with the time at which a document showed it
    /// first.
    appeared: BTreeMap<IpNet, Time>,
}

impl Allocator {
    fn empty(settings: Settings) -> Self {
        Self {
            waiting: settings.barriers.clone(),
            settings,
            announcement: Announcement::default(),
            is_observed: false,
            announced: BTreeMap::new(),
            ready: BTreeSet::new(),
            blocks: BTreeMap::new(),
            index: Index::default(),
            leases: BTreeMap::new(),
            by_owner: BTreeMap::new(),
            unclaimed: BTreeSet::new(),
            cooling: BTreeMap::new(),
            fresh: BTreeMap::new(),
            waiters: Waiting::default(),
            released: BTreeSet::new(),
            given_back: BTreeMap::new(),
            reclaiming: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            unclaimed_blocks: BTreeSet::new(),
            appeared: BTreeMap::new(),
        }
    }

    /// Says that something has happened which the settings wait for.
    pub fn lift(&mut self, barrier: Barrier) {
        self.waiting.remove(&barrier);
    }

    /// The barriers before the first address is given.
    pub fn waiting(&self) -> impl Iterator<Item = Barrier> {
        self.waiting.iter().copied()
    }

    /// The state to be saved, and given to [`Allocator::restore`] after a restart.
    #[must_use]
    pub fn state(&self) -> State {
        State {
            leases: self.leases.values().cloned().collect(),
            cooling: self.resting().cloned().collect(),
            // An unconfirmed claim may be lost. The next process decides on it by its own rules.
            released: self.unconfirmed().collect(),
        }
    }

    /// Blocks that a restart has to treat as released: the released ones, and those with an
    /// unconfirmed claim.
    pub fn unconfirmed(&self) -> impl Iterator<Item = IpNet> {
        let claims = self.reclaiming.keys().chain(self.appeared.keys());
        self.released.iter().chain(claims).copied()
    }

    /// Addresses whose release has to be known after a restart, in order: those that cool down, and
    /// free ones that were released a short time ago.
    pub fn resting(&self) -> impl Iterator<Item = &Cooling> {
        let is_free = |cooling: &&Cooling| !self.leases.contains_key(&cooling.address);
        let all = self.cooling.values().chain(self.fresh.values());
        let all: BTreeMap<_, _> = all.filter(is_free).map(|c| (c.address, c)).collect();
        all.into_values()
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The block that has an address.
    fn block_of(&self, address: IpAddr) -> Option<&Block> {
        let family = Family::of(address);
        let (_, block) = self.blocks.range(..=address).next_back()?;
        (block.family() == family && block.cidr().contains(&address)).then_some(block)
    }

    /// Changes a block, and what it is found by.
    fn change(&mut self, start: IpAddr, change: impl FnOnce(&mut Block)) {
        if let Some(block) = self.blocks.get_mut(&start) {
            self.index.remove(block);
            change(block);
            self.index.insert(block);
        }
    }

    fn put_lease(&mut self, lease: Lease) {
        let of_owner = self.by_owner.entry(lease.owner.clone()).or_default();
        of_owner.insert(lease.address);
        if lease.claim == Claim::Claimed {
            self.unclaimed.remove(&lease.address);
        } else {
            self.unclaimed.insert(lease.address);
        }
        self.leases.insert(lease.address, lease);
    }

    fn remove_lease(&mut self, address: IpAddr) -> Option<Lease> {
        let lease = self.leases.remove(&address)?;
        self.unclaimed.remove(&address);
        if let Some(of_owner) = self.by_owner.get_mut(&lease.owner) {
            of_owner.remove(&address);
            if of_owner.is_empty() {
                self.by_owner.remove(&lease.owner);
            }
        }
        Some(lease)
    }

    /// The leases of an owner.
    fn leases_of<'a>(&'a self, owner: &Owner) -> impl Iterator<Item = &'a Lease> {
        let addresses = self.by_owner.get(owner).into_iter().flatten();
        addresses.filter_map(|address| self.leases.get(address))
    }
}

/// The block that a CIDR overlaps, of some that do not overlap each other, by their first address.
fn overlapping(all: &BTreeMap<IpAddr, AnnouncedBlock>, net: IpNet) -> Option<&AnnouncedBlock> {
    let before = all.range(..=net.addr()).next_back();
    let behind = all.range(net.addr()..).next();
    let mut around = before.into_iter().chain(behind).map(|(_, block)| block);
    around.find(|block| overlap(block.cidr, net))
}
