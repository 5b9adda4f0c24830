//! Which block to take an address from: found without looking at all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::block::Block;
use crate::{Family, Time};

/// The order of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It has a rested address. Blocks in use come before empty ones, then the fullest first. So
    /// empty ones stay empty and can be released, a single address before a prefix.
    Rested(bool, u32, IpAddr),
    /// All of its free addresses were released a short time ago: by the first of these releases.
    Fresh(Time, IpAddr),
}

/// Usable blocks that have free addresses, by pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    by_pool: BTreeMap<String, BTreeMap<Family, BTreeSet<Rank>>>,
}

impl Index {
    fn rank(block: &Block) -> Option<(&str, Rank)> {
        let pool = block.pool.as_deref()?;
        let free = block.slots.free();
        let serves = block.is_usable() && free > 0;
        serves.then(|| {
            let rank = match block.slots.fresh_since() {
                None => Rank::Rested(block.held == 0, free, block.start()),
                Some(released) => Rank::Fresh(released, block.start()),
            };
            (pool, rank)
        })
    }

    pub(super) fn insert(&mut self, block: &Block) {
        if let Some((pool, rank)) = Self::rank(block) {
            let families = self.by_pool.entry(pool.to_owned()).or_default();
            families.entry(block.family()).or_default().insert(rank);
        }
    }

    pub(super) fn remove(&mut self, block: &Block) {
        if let Some((pool, rank)) = Self::rank(block)
            && let Some(families) = self.by_pool.get_mut(pool)
            && let Some(ranks) = families.get_mut(&block.family())
        {
            ranks.remove(&rank);
        }
    }

    /// Where the block begins that the pool's next address comes from.
    pub(super) fn first(&self, pool: &str, family: Family) -> Option<IpAddr> {
        let ranks = self.by_pool.get(pool)?.get(&family)?;
        let (Rank::Rested(_, _, start) | Rank::Fresh(_, start)) = ranks.first()?;
        Some(*start)
    }
}
