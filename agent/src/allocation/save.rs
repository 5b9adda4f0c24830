//! Writing the ledger.

use ipam::{Cooling, Lease, Owner, Time};
use loader::intent::EndpointMeta;

use super::Addresses;
use super::ledger::Entry;

impl Addresses {
    /// Writes the ledger if it is stale. An error is kept for the status.
    pub(crate) fn save(&mut self) -> bool {
        self.write(&[], Self::now())
    }

    /// Writes the ledger if it is stale, with the addresses of `leaving` cooling down from `at` on.
    pub(super) fn write(&mut self, leaving: &[Owner], at: Time) -> bool {
        if !self.is_stale {
            return true;
        }
        match self.ledger.write(self.entries(leaving, at)) {
            Ok(()) => {
                // Changes that could not be synced are synced again by the next write.
                self.is_stale = self.ledger.is_unsynced();
                self.unsaved = None;
                true
            }
            Err(error) => {
                let error = format!("{error:#}");
                if self.unsaved.as_ref() != Some(&error) {
                    tracing::error!("a crash would lose leases or cooldowns: {error}");
                }
                self.unsaved = Some(error);
                false
            }
        }
    }

    /// The entries that belong on disk.
    fn entries(&self, leaving: &[Owner], at: Time) -> Vec<Entry> {
        let allocator = self.manager.allocator();
        let until = at.after(self.section.cooldown.get());
        let left = leaving.iter().flat_map(|owner| allocator.held_by(owner));
        let left = left.map(|lease| Cooling {
            address: lease.address,
            pool: lease.pool.clone(),
            block: lease.block,
            until,
            released: Some(at),
            over: false,
        });
        let cooling = allocator.resting().cloned().chain(left).map(Entry::Cooling);
        let staying = self
            .owners
            .iter()
            .filter(|(owner, _)| !leaving.contains(owner));
        let owners = staying.filter_map(|(owner, about)| {
            let leases: Vec<Lease> = allocator.held_by(owner).cloned().collect();
            let about = EndpointMeta {
                leases,
                ..about.clone()
            };
            (!about.leases.is_empty()).then_some(Entry::Owner(about))
        });
        let released = allocator.unconfirmed().map(Entry::Released);
        owners.chain(cooling).chain(released).collect()
    }
}
