//! What the node asks for and keeps, for whoever writes it into the node's document.

use std::collections::BTreeSet;

use ipam::{Rebalanced, Settings};
use kubernetes::publication::Outlook;

use super::Addresses;

impl Addresses {
    /// What the node wants and keeps; `None` where nothing is allocated yet. Blocks that it does not need
    /// are given back by this, and taken again where it does, so that it has to be known by then what
    /// became of the last outlook.
    pub(in crate::agent) fn outlook(&mut self) -> Option<Outlook> {
        let manager = self.manager.as_mut()?;
        let Rebalanced { released, retaken } = manager.allocator_mut().rebalance();
        self.is_stale |= !released.is_empty() || !retaken.is_empty();
        if self.is_stale && !(released.is_empty() && retaken.is_empty()) {
            tracing::info!(?released, ?retaken, "blocks given back or taken again");
        }
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
}
