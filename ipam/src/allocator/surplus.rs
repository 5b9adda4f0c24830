//! Demand, and blocks that are not needed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::Allocator;
use crate::block::Block;
use crate::{Demand, Family, Formula, Source};

/// Which blocks were given back or taken again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebalanced {
    /// Given back: nothing is given from them, and they are no longer listed as the node's.
    pub released: Vec<IpNet>,
    /// Given back earlier, still the node's, and needed again.
    pub retaken: Vec<IpNet>,
}

impl Allocator {
    /// The number of addresses that the node wants of each pool, in all. What cools down counts as
    /// in use: it is needed until then, and what takes its place has to come from somewhere.
    /// Addresses of blocks that are gone do not count, for they take no place in the others.
    #[must_use]
    pub fn demand(&self) -> Demand {
        let mut wanted: BTreeMap<(&str, Family), u64> = BTreeMap::new();
        for key in self.in_use().chain(self.waiters.iter()) {
            *wanted.entry(key).or_default() += 1;
        }
        let named = self.settings.pre_allocation.iter().map(|(pool, _)| pool);
        for pool in named.chain([self.settings.default_pool.as_str()]) {
            for family in Family::ALL {
                if self.keeps_in_store(pool, family) {
                    wanted.entry((pool, family)).or_default();
                }
            }
        }
        let mut demand = Demand::new();
        for ((pool, family), count) in wanted {
            let pre_allocate = self.pre_allocate(pool);
            let formula = if self.announcement.plain.contains(pool) {
                Formula::RoundedUp
            } else {
                self.settings.formula
            };
            let needed = formula.needed(count, pre_allocate.into());
            if needed > 0 && self.gives(pool, family) {
                let of_pool = demand.entry(pool.to_owned()).or_default();
                of_pool.insert(family, needed);
            }
        }
        demand
    }

    /// The addresses to request of the operator, as in [`demand`](Self::demand). Another project's
    /// operator counts released blocks as available. If the node needs more than the others have,
    /// the request exceeds the demand by as much as these have.
    #[must_use]
    pub fn request(&self) -> Demand {
        let mut request = self.demand();
        if self.announcement.is_versioned {
            return request;
        }
        for (pool, family, spare) in self.spare() {
            let there = self
                .free(&pool, family)
                .saturating_add(self.coming(&pool, family));
            let missing = spare.saturating_sub(there).min(self.blocked(&pool, family));
            let of_pool = request.get_mut(&pool);
            if let Some(needed) = of_pool.and_then(|it| it.get_mut(&family)) {
                *needed = needed.saturating_add(missing);
            }
        }
        request
    }

    /// Addresses of a pool in released blocks of devices.
    fn blocked(&self, pool: &str, family: Family) -> u64 {
        let of_pool = self.blocks.values().filter(|b| b.is_of(pool, family));
        let blocked = of_pool.filter(|it| it.is_released() && it.source != Source::Node);
        blocked.map(|block| u64::from(block.slots.free())).sum()
    }

    /// Releases unused blocks beyond the demand, the largest first, and reclaims released ones that
    /// are needed now. Does nothing before allocation has started.
    pub fn rebalance(&mut self) -> Rebalanced {
        let mut result = Rebalanced::default();
        for (pool, family, spare) in self.spare() {
            self.retake(&pool, family, spare, &mut result.retaken);
            self.give_back(&pool, family, spare, &mut result.released);
        }
        result
    }

    /// Gives back blocks of [plain pools](crate::Announcement::plain) alone. None of them is taken
    /// back: by then, another node may have it.
    pub fn give_back_plain(&mut self) -> Vec<IpNet> {
        let mut released = Vec::new();
        for (pool, family, spare) in self.spare() {
            if self.announcement.plain.contains(&pool) {
                self.give_back(&pool, family, spare, &mut released);
            }
        }
        released
    }

    /// The blocks that were given back and that the node still has.
    pub fn released(&self) -> impl Iterator<Item = IpNet> {
        self.claims.released.iter().copied()
    }

    /// Number of addresses of each pool with blocks that are wanted beyond those in use; none
    /// before the first address can be given.
    pub(super) fn spare(&self) -> Vec<(String, Family, u64)> {
        if !self.waiting.is_empty() {
            return Vec::new();
        }
        let demand = self.demand();
        let of_blocks = self.blocks.values();
        let pools: BTreeSet<(String, Family)> = of_blocks
            .filter_map(|block| Some((block.pool.clone()?, block.family())))
            .collect();
        let spare = pools.into_iter().map(|(pool, family)| {
            let wanted = demand.get(&pool).and_then(|of_pool| of_pool.get(&family));
            let used = self.in_use().filter(|key| *key == (&pool, family)).count();
            let used = u64::try_from(used).unwrap_or(u64::MAX);
            let spare = wanted.copied().unwrap_or(0).saturating_sub(used);
            (pool, family, spare)
        });
        spare.collect()
    }

    fn retake(&mut self, pool: &str, family: Family, spare: u64, retaken: &mut Vec<IpNet>) {
        let of_pool = self.blocks.values().filter(|b| b.is_of(pool, family));
        let released: Vec<_> = of_pool
            .filter(|block| block.is_released())
            .map(|block| (block.start(), block.cidr()))
            .collect();
        for (start, net) in released {
            if self.free(pool, family) >= spare {
                return;
            }
            self.claims.released.remove(&net);
            self.settle_one(start);
            retaken.push(net);
        }
    }

    pub(super) fn give_back(
        &mut self,
        pool: &str,
        family: Family,
        spare: u64,
        released: &mut Vec<IpNet>,
    ) {
        let of_pool = self.blocks.values().filter(|b| b.is_of(pool, family));
        let mut empty: Vec<(u32, IpAddr, IpNet)> = of_pool
            .filter(|block| block.is_usable() && block.held == 0 && block.slots.free() > 0)
            .map(|block| (block.slots.free(), block.start(), block.cidr()))
            .collect();
        empty.sort_by_key(|block| Reverse(*block));
        let mut free = self.free(pool, family);
        for (count, start, net) in empty {
            let left = free.saturating_sub(count.into());
            if left >= spare {
                free = left;
                self.claims.released.insert(net);
                self.settle_one(start);
                released.push(net);
            }
        }
    }

    /// Number of pods, and of owners without a known pod, that wait for addresses of a pool and
    /// family.
    #[must_use]
    pub fn waiters(&self) -> BTreeMap<(String, Family), u64> {
        let mut waiters = BTreeMap::new();
        for (pool, family) in self.waiters.iter() {
            *waiters.entry((pool.to_owned(), family)).or_default() += 1;
        }
        waiters
    }

    /// True if addresses of a pool and family are pre-allocated without an owner that has or
    /// requests one. Of a disabled family, the node may never get any.
    fn keeps_in_store(&self, pool: &str, family: Family) -> bool {
        let has_blocks = || self.blocks.values().any(|block| block.is_of(pool, family));
        self.settings.in_store.contains(&family) || has_blocks()
    }

    /// The number of addresses of a pool that are kept in store.
    fn pre_allocate(&self, pool: &str) -> u32 {
        let is_default = pool == self.settings.default_pool;
        let of_node = self
            .announcement
            .pre_allocate
            .filter(|n| is_default && *n > 0);
        of_node.unwrap_or_else(|| self.settings.pre_allocation.of(pool))
    }

    /// Addresses of a pool that can be given now.
    pub(super) fn free(&self, pool: &str, family: Family) -> u64 {
        let of_pool = self.blocks.values().filter(|b| b.is_of(pool, family));
        let usable = of_pool.filter(|block| block.is_usable());
        usable.map(|block| u64::from(block.slots.free())).sum()
    }

    /// Pool and family of each address that takes a place in one of the node's blocks.
    fn in_use(&self) -> impl Iterator<Item = (&str, Family)> {
        let leases = self.leases.iter().map(|l| (l.address, &l.pool));
        let cooling = self.rest.cooling.values().map(|c| (c.address, &c.pool));
        let held = leases.chain(cooling);
        held.filter(|(address, _)| self.block_of(*address).is_some())
            .filter_map(|(address, pool)| Some((pool.as_deref()?, Family::of(address))))
    }

    /// True if addresses of a pool and family can exist.
    fn gives(&self, pool: &str, family: Family) -> bool {
        let of_pool = self.announcement.pools.get(pool);
        let key = (pool.to_owned(), family);
        self.settings.families.contains(&family)
            && !self.announcement.not_masqueraded.contains(&key)
            && of_pool.is_none_or(|families| families.contains(&family))
    }

    /// The blocks that the node keeps, each with its pool: IPv4 before IPv6, in the order of their
    /// addresses. Released blocks are left out, and so are blocks of an unknown pool.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (&str, &Block)> {
        let blocks = self.blocks.values().filter(|block| !block.is_released());
        blocks.filter_map(|block| Some((block.pool.as_deref()?, block)))
    }
}
