//! Blocks of devices that go back and come again: the operator takes back what the node does not claim.
//!
//! ```text
//!  announced ──claim written──> usable ──given back──> released ──document without the claim──┐
//!      ^                                                                                       │
//!      └────────────────────────────────── reclaimed, if it is needed ─────────────────────────┘
//! ```
//!
//! A block gives addresses only while the last document lists it as claimed. One that was given back is
//! not claimed again before a document without its claim was seen: a write that is late could still
//! take the claim away, and a later version of the document makes that write fail.
//! [`Allocator::confirm`] has a reclaimed block give addresses.

use std::time::Duration;

use ipnet::IpNet;

use super::{Allocator, Rebalanced};
use crate::{Family, Time};

/// An operator that goes by what it read a while ago may take a block back 180 seconds after it was given
/// back. One minute of that is its own.
const RECLAIMS: Duration = Duration::from_mins(2);

impl Allocator {
    /// Gives back blocks that nobody has an address of and that demand leaves to spare, and claims again
    /// what is needed of those. Does nothing before the first address can be given.
    pub fn balance(&mut self, now: Time) -> Rebalanced {
        let mut result = Rebalanced::default();
        for (pool, family, spare) in self.spare() {
            if !self.announcement.plain.contains(&pool) {
                self.reclaim(&pool, family, (spare, now), &mut result.retaken);
            }
            self.give_back(&pool, family, spare, &mut result.released);
        }
        for net in &result.released {
            self.given_back.insert(*net, now);
            self.unclaimed_blocks.remove(net);
        }
        result
    }

    /// True if a block of the node waits for its claim to be written.
    #[must_use]
    pub fn has_claims_to_write(&self) -> bool {
        let blocks = self.blocks.values();
        let mut kept = blocks.filter(|block| !block.is_released() && block.pool.is_some());
        self.settings.release
            && kept.any(|block| !self.announcement.claimed.contains(&block.cidr()))
    }

    fn reclaim(
        &mut self,
        pool: &str,
        family: Family,
        (spare, now): (u64, Time),
        retaken: &mut Vec<IpNet>,
    ) {
        let of_pool = self.blocks.values().filter(|b| b.is_of(pool, family));
        let released: Vec<_> = of_pool
            .filter(|block| block.is_released() && self.may_reclaim(block.cidr(), now))
            .map(|block| (block.start(), block.cidr()))
            .collect();
        for (start, net) in released {
            if self
                .free(pool, family)
                .saturating_add(self.coming(pool, family))
                >= spare
            {
                return;
            }
            self.released.remove(&net);
            let given_back = self.given_back.remove(&net);
            self.reclaiming.insert(net, given_back);
            self.unclaimed_blocks.remove(&net);
            self.settle_one(start);
            retaken.push(net);
        }
    }

    fn may_reclaim(&self, net: IpNet, now: Time) -> bool {
        let given_back = self.given_back.get(&net).copied();
        self.unclaimed_blocks.contains(&net) && self.is_in_time(given_back, now)
    }

    /// True if nobody can have taken a block back that was given back then.
    fn is_in_time(&self, given_back: Option<Time>, now: Time) -> bool {
        let is_recent = given_back.is_some_and(|at| now.since(at) < RECLAIMS);
        self.announcement.is_versioned || is_recent
    }

    /// Lets reclaimed blocks give addresses once the document shows their claims. A claim that took too
    /// long is given up.
    pub fn confirm(&mut self, now: Time) {
        let claimed = &self.announcement.claimed;
        let shown: Vec<IpNet> = self.reclaiming.keys().copied().collect();
        for net in shown
            .into_iter()
            .filter(|net| claimed.contains(net))
            .collect::<Vec<_>>()
        {
            let given_back = self.reclaiming.remove(&net).flatten();
            if !self.is_in_time(given_back, now) {
                self.released.insert(net);
            }
            self.settle_one(net.addr());
        }
    }

    /// Addresses of a pool that can be given once claims are written.
    fn coming(&self, pool: &str, family: Family) -> u64 {
        let of_pool = self.blocks.values().filter(|b| b.is_of(pool, family));
        let coming = of_pool.filter(|block| {
            !block.is_released() && !block.is_usable() && !self.is_claimed(block.cidr())
        });
        coming.map(|block| u64::from(block.slots.free())).sum()
    }

    /// True if addresses of a device's block may be given, as far as its claim goes.
    pub(super) fn is_claimed(&self, net: IpNet) -> bool {
        let is_shown = self.announcement.claimed.contains(&net);
        !self.settings.release || (is_shown && !self.reclaiming.contains_key(&net))
    }

    /// Takes note of the claims of a new document.
    pub(super) fn note_claims(&mut self) {
        let (released, claimed) = (&self.released, &self.announcement.claimed);
        self.given_back.retain(|net, _| released.contains(net));
        self.unclaimed_blocks.retain(|net| released.contains(net));
        let unclaimed = released.iter().filter(|net| !claimed.contains(net));
        self.unclaimed_blocks.extend(unclaimed);
        let announced = &self.announced;
        self.reclaiming.retain(|net, _| {
            let block = announced.get(&net.addr());
            block.is_some_and(|block| block.cidr == *net)
        });
    }
}
