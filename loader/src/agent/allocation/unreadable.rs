//! Addresses of whom nothing is known but an id: a record cannot be read, an endpoint's or a lease's.
//! They are leases like any other, so that nobody else gets them, and they cool down when their owner
//! is deleted or gone.

use std::collections::BTreeSet;

use super::Addresses;
use crate::agent::facts::Holders;
use crate::types::{EndpointId, Owner};

/// An owner by its own name, and as it is called while a record of it cannot be read.
pub(super) fn names(owner: &Owner) -> [Owner; 2] {
    [owner.clone(), EndpointId::of(owner).unknown_owner()]
}

impl Addresses {
    /// Takes note of what the devices have of endpoints whose records cannot be read. What one had
    /// that is there no more cools down.
    pub(super) fn hold_hidden(&mut self, hidden: &Holders) {
        let now = Self::now();
        let mut ids = BTreeSet::new();
        for (address, device) in hidden {
            let Some(id) = EndpointId::from_device(device) else {
                continue;
            };
            ids.insert(id);
            let allocator = self.manager.allocator_mut();
            if allocator.lease_of(*address).is_none() {
                // It has none, so this does not fail.
                let is_adopted = allocator.adopt(&id.unknown_owner(), *address, now).is_ok();
                self.is_stale |= is_adopted;
                self.has_news |= is_adopted;
            }
        }
        for id in std::mem::replace(&mut self.hidden, ids) {
            if !self.hidden.contains(&id) && !self.ledger.has_unreadable(id) {
                self.is_stale |= !self.cool_down(&id.unknown_owner(), now).is_empty();
            }
        }
    }
}
