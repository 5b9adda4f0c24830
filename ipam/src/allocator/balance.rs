//! Release and reclaim of devices' blocks: the operator takes back blocks that the node does not
//! claim.
//!
//! ```text
//!  announced ──claim written──> usable ──given back──> released ──document without the claim──┐
//!      ^                                                                                       │
//!      └────────────────────────────────── reclaimed, if it is needed ─────────────────────────┘
//! ```
//!
//! Addresses of a block are allocated only while the last document lists it as claimed. A released
//! block is not claimed again before a document without its claim was seen. Until then a late write
//! could still remove the claim; a later version of the document makes that write fail. After
//! [`Allocator::confirm`] addresses of a reclaimed block are allocated.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;

use super::{Allocator, Rebalanced};
use crate::{Family, Source, Time};

/// Time after a release in which a block can be reclaimed, and after its first appearance in which
/// it can be claimed. An operator that uses old reads may take a block back 180 seconds after
/// either. One minute of that is its own.
const RECLAIMS: Duration = Duration::from_mins(2);

impl Allocator {
    /// Releases unused blocks beyond the demand, and claims released ones again that are needed.
    /// Does nothing before allocation has started.
    pub fn balance(&mut self, now: Time) -> Rebalanced {
        let mut result = Rebalanced::default();
        self.drop_late(now);
        for (pool, family, spare) in self.spare() {
            if !self.announcement.plain.contains(&pool) {
                self.reclaim(&pool, family, (spare, now), &mut result.retaken);
            }
            self.give_back(&pool, family, spare, &mut result.released);
        }
        for net in &result.released {
            self.claims.date_release(*net, now);
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
            self.claims.reclaim(net);
            self.settle_one(start);
            retaken.push(net);
        }
    }

    fn may_reclaim(&self, net: IpNet, now: Time) -> bool {
        let given_back = self.claims.given_back.get(&net).copied();
        self.claims.unclaimed.contains(&net) && self.is_in_time(given_back, now)
    }

    /// True if a block that was released at that time cannot have been unassigned yet.
    fn is_in_time(&self, given_back: Option<Time>, now: Time) -> bool {
        let is_recent = given_back.is_some_and(|at| now.since(at) < RECLAIMS);
        self.announcement.is_versioned || is_recent
    }

    /// Gives up fresh blocks that were not claimed in time: they may have been unassigned.
    fn drop_late(&mut self, now: Time) {
        let appeared = self.claims.appeared.iter();
        let late = appeared.filter(|(_, since)| !self.is_in_time(Some(**since), now));
        for net in late.map(|(net, _)| *net).collect::<Vec<_>>() {
            self.drop_fresh(net);
        }
    }

    fn drop_fresh(&mut self, net: IpNet) {
        self.claims.appeared.remove(&net);
        if !self.is_held(net) {
            self.claims.released.insert(net);
            self.settle_one(net.addr());
        }
    }

    /// Notes fresh blocks, and those whose claim the document shows.
    fn note_fresh(&mut self, now: Time) {
        let claimed = &self.announcement.claimed;
        let confirmed: Vec<(IpNet, Time)> = self
            .claims
            .appeared
            .extract_if(.., |net, _| claimed.contains(net))
            .collect();
        for (net, since) in confirmed {
            if !self.is_in_time(Some(since), now) {
                self.drop_fresh(net);
            }
        }
        let is_fresh = |net: &IpNet| {
            !self.announcement.claimed.contains(net)
                && !self.claims.released.contains(net)
                && !self.claims.reclaiming.contains_key(net)
        };
        let of_devices = self
            .announced
            .values()
            .filter(|it| it.source != Source::Node);
        let fresh: BTreeSet<IpNet> = of_devices.map(|it| it.cidr).filter(is_fresh).collect();
        self.claims.appeared.retain(|net, _| fresh.contains(net));
        for net in fresh {
            self.claims.appeared.entry(net).or_insert(now);
        }
    }

    /// Makes claimed blocks usable once the document shows their claims. A claim that took too long
    /// is given up.
    pub fn confirm(&mut self, now: Time) {
        if self.settings.release {
            self.note_fresh(now);
        }
        let claimed = &self.announcement.claimed;
        let shown: Vec<IpNet> = self.claims.reclaiming.keys().copied().collect();
        for net in shown
            .into_iter()
            .filter(|net| claimed.contains(net))
            .collect::<Vec<_>>()
        {
            let given_back = self.claims.reclaiming.remove(&net).flatten();
            if !self.is_in_time(given_back, now) {
                self.claims.released.insert(net);
            }
            self.settle_one(net.addr());
            self.claims.confirm(net, given_back, now);
        }
        self.claims.confirm_all(&self.announcement.claimed, now);
    }

    /// Addresses of a pool that can be given once claims are written.
    pub(super) fn coming(&self, pool: &str, family: Family) -> u64 {
        let of_pool = self.blocks.values().filter(|b| b.is_of(pool, family));
        let coming = of_pool.filter(|block| {
            !block.is_released() && !block.is_usable() && !self.is_claimed(block.cidr())
        });
        coming.map(|block| u64::from(block.slots.free())).sum()
    }

    /// True if addresses of a device's block may be given, as far as its claim goes.
    pub(super) fn is_claimed(&self, net: IpNet) -> bool {
        let is_shown = self.announcement.claimed.contains(&net);
        !self.settings.release || (is_shown && !self.claims.reclaiming.contains_key(&net))
    }
}
