//! What the node asks for and keeps, for whoever writes it into the node's document.

use std::collections::BTreeSet;

use ipam::Settings;
use kubernetes::publication::Outlook;

use super::Addresses;

impl Addresses {
    /// What the node wants and keeps; `None` where nothing is allocated yet. It keeps all that it has: a
    /// block that was given back could be the operator's by the time it is needed again.
    pub(in crate::agent) fn outlook(&self) -> Option<Outlook> {
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
}
