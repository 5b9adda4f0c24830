//! The allocator: blocks, leases and requests of one kind of resource on one node.

mod allocate;
mod balance;
mod claims;
mod index;
mod leases;
mod release;
mod rest;
mod restore;
mod settle;
mod surplus;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use self::claims::Claims;
use self::index::Index;
use self::leases::Leases;
pub use self::release::Advanced;
use self::rest::Rest;
pub use self::restore::{Conflict, Dropped, Restored, SeenEndpoint, WhyDropped};
pub use self::surplus::Rebalanced;
use crate::announcement::{AnnouncedBlock, Announcement};
use crate::block::Block;
use crate::demand::Waiting;
use crate::settings::{Barrier, Settings};
use crate::value::family::overlap;
use crate::{Cooling, Family, State};

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
    leases: Leases,
    rest: Rest,
    /// Owners whose requests failed.
    waiters: Waiting,
    claims: Claims,
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
            leases: Leases::default(),
            rest: Rest::default(),
            waiters: Waiting::default(),
            claims: Claims::default(),
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
            leases: self.leases.iter().cloned().collect(),
            cooling: self.resting().cloned().collect(),
            // An unconfirmed claim may be lost. The next process decides on it by its own rules.
            released: self.unconfirmed().collect(),
        }
    }

    /// Blocks that a restart has to treat as released: the released ones, and those with an
    /// unconfirmed claim.
    pub fn unconfirmed(&self) -> impl Iterator<Item = IpNet> {
        self.claims.unconfirmed()
    }

    /// Addresses whose release has to be known after a restart, in order: those that cool down, and
    /// free ones that were released a short time ago.
    pub fn resting(&self) -> impl Iterator<Item = &Cooling> {
        let is_free = |cooling: &&Cooling| !self.leases.contains(cooling.address);
        let all = self.rest.cooling.values().chain(self.rest.fresh.values());
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
}

/// The block that a CIDR overlaps, of some that do not overlap each other, by their first address.
fn overlapping(all: &BTreeMap<IpAddr, AnnouncedBlock>, net: IpNet) -> Option<&AnnouncedBlock> {
    let before = all.range(..=net.addr()).next_back();
    let behind = all.range(net.addr()..).next();
    let mut around = before.into_iter().chain(behind).map(|(_, block)| block);
    around.find(|block| overlap(block.cidr, net))
}
