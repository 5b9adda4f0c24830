//! What the node asks for and keeps, for whoever writes it into the node's document.

use std::collections::BTreeSet;

use ipam::{Family, Life, Settings};
use kubernetes::publication::Outlook;
use kubernetes::unanswered::Wanting;

use super::Addresses;

impl Addresses {
    /// What the node wants and keeps; `None` where nothing is allocated yet. It keeps all that it has: a
    /// block that was given back could be the operator's by the time it is needed again.
    pub(in crate::agent) fn outlook(&mut self) -> Option<Outlook> {
        self.look_for_answers();
        let manager = &self.manager;
        let wanted = manager.wanted()?;
        let allocator = manager.allocator();
        let leases = allocator.leases().map(|lease| lease.address);
        let cooling = allocator.cooling().map(|cooling| cooling.address);
        let Settings { default_pool, .. } = allocator.settings();
        let pools = self.inputs.as_ref().and_then(|inputs| inputs.pools.clone());
        let mut on_enis: BTreeSet<String> = [default_pool.clone()].into();
        if let Some(pools) = pools {
            on_enis.extend(pools.bound().map(str::to_owned));
        }
        Some(Outlook {
            wanted,
            held: leases.chain(cooling).collect(),
            on_enis,
        })
    }

    /// Has so much time be over.
    #[cfg(test)]
    pub(in crate::agent) fn age(&mut self, by: std::time::Duration) {
        self.began -= by;
    }

    /// Takes note of what the node asks for and what it has.
    fn look_for_answers(&mut self) {
        let allocator = self.manager.allocator();
        let blocks = allocator.blocks();
        let demand = allocator.demand().into_iter();
        let demand = demand.flat_map(|(pool, families)| {
            let families = families.into_iter();
            families.map(move |(family, wanted)| (pool.clone(), family, wanted))
        });
        let wanting = demand.map(|(pool, family, wanted)| {
            let there = blocks.iter().filter(|block| block.life != Life::Gone);
            let of_pool = there.filter(|block| {
                block.pool.as_ref() == Some(&pool) && Family::of_net(block.cidr) == family
            });
            Wanting {
                given: of_pool.map(|block| block.counts.total).sum(),
                pool,
                family,
                wanted,
            }
        });
        let now = self.began.elapsed();
        self.unanswered.observe(now, wanting.collect::<Vec<_>>());
    }
}
