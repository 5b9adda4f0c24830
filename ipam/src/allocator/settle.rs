//! From what is announced, what is ready and what is held to the blocks as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Allocator, Index, overlapping};
use crate::Time;
use crate::announcement::{AnnouncedBlock, Announcement, Changes, Problem};
use crate::block::{Block, Draining, Life, Slots, Source};
use crate::settings::Barrier;

impl Allocator {
    /// Updates the allocator from everything that the node has.
    pub fn observe(&mut self, announcement: Announcement) -> Changes {
        let earlier_blocks: BTreeSet<IpNet> = self.blocks.values().map(Block::cidr).collect();
        // Before anything is announced no lease has a block, which says nothing of it.
        let earlier = self.orphans().filter(|_| self.is_observed);
        let earlier_orphans: BTreeSet<IpAddr> = earlier.map(|lease| lease.address).collect();
        self.is_observed = true;
        self.announcement = announcement;
        let mut problems = self.announcement.problems.clone();
        self.accept(&mut problems);
        self.lift(Barrier::DOCUMENT);
        self.settle();
        let blocks: BTreeSet<IpNet> = self.blocks.values().map(Block::cidr).collect();
        let orphans = self.orphans();
        Changes {
            appeared: blocks.difference(&earlier_blocks).copied().collect(),
            went: earlier_blocks.difference(&blocks).copied().collect(),
            orphaned: orphans
                .filter(|lease| !earlier_orphans.contains(&lease.address))
                .cloned()
                .collect(),
            problems,
        }
    }

    /// Sets the ready devices, by their ids. No address is allocated from the blocks of other
    /// devices.
    pub fn set_ready(&mut self, ready: BTreeSet<String>) {
        if ready != self.ready {
            self.ready = ready;
            self.settle();
        }
    }

    /// Chooses the blocks that count. Of two that overlap it is the one that counted before, so
    /// that a mistake in a document takes nothing from those that live on it.
    fn accept(&mut self, problems: &mut Vec<Problem>) {
        let mut candidates = self.announcement.blocks.clone();
        for candidate in &mut candidates {
            candidate.cidr = candidate.cidr.trunc();
        }
        let is_new = |block: &AnnouncedBlock| {
            let before = self.blocks.get(&block.cidr.addr());
            before.map(Block::cidr) != Some(block.cidr)
        };
        candidates.sort_by_cached_key(|block| {
            let text = (block.source.clone(), block.pool.clone());
            (is_new(block), block.cidr, text)
        });
        candidates.dedup();
        let mut accepted = BTreeMap::new();
        for block in candidates {
            if let Some(other) = overlapping(&accepted, block.cidr) {
                let other = other.clone();
                problems.push(Problem::Overlap { block, other });
            } else {
                accepted.insert(block.cidr.addr(), block);
            }
        }
        self.announced = accepted;
        // A block that is no longer announced is gone. If it comes back, it counts as new.
        self.claims.released = self
            .announced
            .values()
            .map(|block| block.cidr)
            .filter(|net| self.claims.released.contains(net) && !self.is_held(*net))
            .collect();
        let claimed = &self.announcement.claimed;
        self.claims.observe(claimed, &self.announced);
    }

    /// Recomputes all blocks.
    pub(super) fn settle(&mut self) {
        let announced: Vec<AnnouncedBlock> = self.announced.values().cloned().collect();
        let mut blocks = BTreeMap::new();
        let mut index = Index::default();
        for one in &announced {
            let block = self.block(one);
            index.insert(&block);
            blocks.insert(block.start(), block);
        }
        self.blocks = blocks;
        self.index = index;
    }

    /// Recomputes one block.
    pub(super) fn settle_one(&mut self, start: IpAddr) {
        let Some(announced) = self.announced.get(&start).cloned() else {
            return;
        };
        let block = self.block(&announced);
        self.change(start, |old| *old = block);
    }

    fn block(&mut self, announced: &AnnouncedBlock) -> Block {
        let net = announced.cidr;
        let mut slots = Slots::new(net, announced.edges, &self.announcement.excluded);
        let old = self.blocks.get(&net.addr());
        let mut old_pool = None;
        if let Some(old) = old.filter(|old| old.cidr() == net) {
            slots.resume(&old.slots);
            old_pool.clone_from(&old.pool);
        }
        let range = net.network()..=net.broadcast();
        for (address, cooling) in self.rest.fresh.range(range.clone()) {
            if let Some(released) = cooling.released {
                slots.resume_rest(*address, released);
            }
        }
        let mut held = 0;
        let mut held_pool = None;
        for lease in self.leases.within_mut(range.clone()) {
            if lease.pool.is_none() {
                // Adopted before its block was known.
                lease.pool.clone_from(&announced.pool);
                lease.block = net;
            }
            slots.hold(lease.address);
            held += 1;
            held_pool = other(held_pool, lease.pool.as_ref(), announced);
        }
        for cooling in self.rest.cooling.range(range).map(|(_, cooling)| cooling) {
            slots.hold(cooling.address);
            held += 1;
            held_pool = other(held_pool, cooling.pool.as_ref(), announced);
        }
        let (pool, life) = match (&announced.pool, held_pool) {
            (None, held) => (held.or(old_pool), Life::Draining(Draining::Undecided)),
            (Some(new), Some(held)) => (Some(held), Life::Draining(Draining::MovesTo(new.clone()))),
            (Some(pool), None) => (Some(pool.clone()), self.life(announced)),
        };
        Block {
            source: announced.source.clone(),
            pool,
            life,
            slots,
            held,
        }
    }

    /// The life of a block whose pool is certain.
    fn life(&self, announced: &AnnouncedBlock) -> Life {
        let is_ready = match &announced.source {
            Source::Node => true,
            Source::Device(id) => self.ready.contains(id) && self.is_claimed(announced.cidr),
        };
        if self.claims.released.contains(&announced.cidr) {
            Life::Draining(Draining::Released)
        } else if is_ready {
            Life::Usable
        } else {
            Life::Announced
        }
    }

    /// True if an address of a CIDR is in use or cools down.
    pub(super) fn is_held(&self, net: IpNet) -> bool {
        let range = net.network()..=net.broadcast();
        self.leases.within(range.clone()).next().is_some()
            || self.rest.cooling.range(range).next().is_some()
    }

    /// Frees an address after its lease or cooldown. `released` is the time of its release, if it
    /// was used.
    pub(super) fn freed(&mut self, address: IpAddr, released: Option<Time>) {
        let Some(start) = self.block_of(address).map(Block::start) else {
            return;
        };
        let mut is_over = false;
        self.change(start, |block| {
            block.held = block.held.saturating_sub(1);
            block.slots.give(address, released);
            is_over = block.held == 0 && !block.is_usable();
        });
        if is_over {
            self.settle_one(start);
        }
    }
}

/// The first pool that is another one than the block's.
fn other(
    found: Option<String>,
    pool: Option<&String>,
    announced: &AnnouncedBlock,
) -> Option<String> {
    found.or_else(|| pool.filter(|p| announced.pool.as_ref() != Some(p)).cloned())
}
