//! Views of the allocator's state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::Allocator;
use crate::block::{Block, BlockView, Life, Slots, Source};
use crate::{Claim, Cooling, Counts, EdgeRules, Family, Lease, Owner};

impl Allocator {
    /// Every lease, in the order of the addresses.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter()
    }

    /// The lease on an address.
    #[must_use]
    pub fn lease_of(&self, address: IpAddr) -> Option<&Lease> {
        self.leases.get(address)
    }

    /// The leases of an owner.
    pub fn held_by<'a>(&'a self, owner: &Owner) -> impl Iterator<Item = &'a Lease> {
        self.leases.of(owner)
    }

    /// Every address that cools down, in order.
    pub fn cooling(&self) -> impl Iterator<Item = &Cooling> {
        self.rest.cooling.values()
    }

    /// Leases whose block is gone. No packets are delivered to their owners' addresses any more.
    pub fn orphans(&self) -> impl Iterator<Item = &Lease> {
        let leases = self.leases.iter();
        leases.filter(|lease| self.block_of(lease.address).is_none())
    }

    /// The source that delivers an address, and its block. For an address in no block: the node,
    /// and the address itself.
    #[must_use]
    pub fn whence(&self, address: IpAddr) -> (Source, IpNet) {
        match self.block_of(address) {
            Some(block) => (block.source.clone(), block.cidr()),
            None => (Source::Node, address.into()),
        }
    }

    /// Every block, also those that are gone and of which addresses are held; the node's first, in
    /// the order of their addresses.
    #[must_use]
    pub fn blocks(&self) -> Vec<BlockView> {
        let mut views: Vec<_> = self.blocks.values().map(|b| self.view(b)).collect();
        let mut gone: BTreeMap<IpNet, (Option<String>, BTreeSet<IpAddr>)> = BTreeMap::new();
        let leases = self.leases.iter().map(|l| (l.address, l.block, &l.pool));
        let cooling = self.rest.cooling.values();
        let held = leases.chain(cooling.map(|c| (c.address, c.block, &c.pool)));
        for (address, block, pool) in held {
            if self.block_of(address).is_none() {
                let of_block = gone
                    .entry(block)
                    .or_insert_with(|| (pool.clone(), [].into()));
                of_block.1.insert(address);
            }
        }
        for (cidr, (pool, addresses)) in gone {
            let slots = Slots::new(cidr, EdgeRules::ALL, []);
            let mut counts = Counts {
                total: slots.space().size().into(),
                ..Counts::default()
            };
            for address in addresses {
                self.count(address, &slots, &mut counts);
            }
            counts.excluded = counts.total - counts.in_use();
            views.push(BlockView {
                cidr,
                pool,
                source: None,
                life: Life::Gone,
                counts,
            });
        }
        views
    }

    /// The addresses of a pool by state, over the blocks that the node has.
    #[must_use]
    pub fn counts(&self, pool: &str, family: Family) -> Counts {
        let mut sum = Counts::default();
        for block in self.blocks.values().filter(|b| b.is_of(pool, family)) {
            sum += self.view(block).counts;
        }
        sum
    }

    fn view(&self, block: &Block) -> BlockView {
        let slots = &block.slots;
        let mut counts = Counts {
            total: slots.space().size().into(),
            free: slots.free().into(),
            ..Counts::default()
        };
        // An address that can be allocated is free or held. A held one need not be allocatable.
        counts.excluded = counts.total - u64::from(slots.capacity());
        let range = block.cidr().network()..=block.cidr().broadcast();
        let leases = self.leases.within(range.clone()).map(|lease| lease.address);
        for address in leases.chain(self.rest.cooling.range(range).map(|(address, _)| *address)) {
            let is_within = self.count(address, slots, &mut counts);
            if is_within && slots.barred(address).is_some() {
                counts.excluded -= 1;
            }
        }
        BlockView {
            cidr: block.cidr(),
            pool: block.pool.clone(),
            source: Some(block.source.clone()),
            life: block.life.clone(),
            counts,
        }
    }

    /// Counts an address that is held; answers whether it is within the block's window.
    fn count(&self, address: IpAddr, slots: &Slots, counts: &mut Counts) -> bool {
        if slots.space().place(address).is_none() {
            counts.outside += 1;
            return false;
        }
        match self.leases.get(address).map(|lease| lease.claim) {
            Some(Claim::Claimed) => counts.claimed += 1,
            Some(Claim::Unclaimed { .. }) => counts.unclaimed += 1,
            None => counts.cooling += 1,
        }
        true
    }
}
