//! Writing the ledger.

use std::collections::BTreeMap;

use ipam::{Cooling, Lease, Owner, Time};
use loader::intent::EndpointMeta;

use super::Addresses;
use super::ledger::{Entry, Ledger};

/// The records on disk of what the allocator has, without those of endpoints.
pub(super) struct Records {
    pub(super) ledger: Ledger,
    /// Records of the owners without an endpoint.
    pub(super) owners: BTreeMap<Owner, EndpointMeta>,
    /// True if the ledger differs from the allocator's state.
    pub(super) is_stale: bool,
    /// The error of the last attempt to write the ledger.
    unsaved: Option<String>,
}

impl Records {
    pub(super) fn new(ledger: Ledger, owners: BTreeMap<Owner, EndpointMeta>) -> Self {
        Self {
            ledger,
            owners,
            is_stale: true,
            unsaved: None,
        }
    }

    /// Records an owner without an endpoint.
    pub(super) fn put(&mut self, owner: &Owner, about: EndpointMeta) {
        self.owners.insert(owner.clone(), about);
        self.is_stale = true;
    }

    /// Forgets the record of an owner without an endpoint.
    pub(super) fn forget(&mut self, owner: &Owner) {
        self.is_stale |= self.owners.remove(owner).is_some();
    }

    /// Faults of the ledger and of the last write.
    pub(super) fn faults(&self) -> impl Iterator<Item = String> {
        let unsaved = self.unsaved.iter();
        let unsaved =
            unsaved.map(|error| format!("a crash would lose leases or cooldowns: {error}"));
        self.ledger.faults().chain(unsaved)
    }

    fn write(&mut self, entries: Vec<Entry>) -> bool {
        match self.ledger.write(entries) {
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
}

impl Addresses {
    /// Writes the ledger if it is stale. An error is kept for the status.
    pub(crate) fn save(&mut self) -> bool {
        self.write(&[], Self::now())
    }

    /// Writes the ledger if it is stale, with the addresses of `leaving` cooling down from `at` on.
    pub(super) fn write(&mut self, leaving: &[Owner], at: Time) -> bool {
        if !self.records.is_stale {
            return true;
        }
        let entries = self.entries(leaving, at);
        self.records.write(entries)
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
            .records
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
