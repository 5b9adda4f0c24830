//! Conditions of the first allocation apart from the documents.

use std::collections::BTreeSet;

use api::{ApiError, ErrorCode};
use ipam::{AllocateError, Barrier};
use loader::intent::StaticAddress;

use super::{Addresses, NodeInputs};

/// Barrier until the kernel has been observed.
pub(super) const KERNEL: Barrier = Barrier::new("a first look at the kernel");
/// Barrier while the node waits for its public address. The node requests addresses nevertheless.
const STATIC_ADDRESS: Barrier = Barrier::new(
    "the public address that spec.ipam.static-ip-tags ask for (status.ipam.assigned-static-ip, which \
     the operator writes)",
);

/// State of the public address that the node may be configured to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PublicAddress {
    /// No document has been read yet.
    #[default]
    Unknown,
    /// It is requested and not assigned yet.
    Awaited,
    /// It is assigned, or none is requested.
    Settled,
}

/// Reasons for which new pods get no address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Conditions that allocation waits for.
    pub(crate) waits: Vec<String>,
    /// Pools with no address left, by family, with the remedy.
    pub(crate) exhausted: Vec<String>,
}

impl Addresses {
    /// Updates the state of the node's public address. Once it is settled, its loss stops no
    /// allocation.
    pub(super) fn look_for_static_address(&mut self, node: &NodeInputs<'_>) {
        let has_document = node.generation > 0;
        let is_awaited = node.intent.node.static_address == StaticAddress::Awaited;
        if has_document && self.public_address != PublicAddress::Settled {
            self.public_address = if is_awaited {
                PublicAddress::Awaited
            } else {
                PublicAddress::Settled
            };
        }
    }

    /// The barrier of allocation that the allocator itself does not know.
    pub(super) fn barrier(&self) -> Option<Barrier> {
        (self.public_address == PublicAddress::Awaited).then_some(STATIC_ADDRESS)
    }

    /// True once addresses can be allocated.
    pub(crate) fn gives(&self) -> bool {
        let mut waiting = self.manager.allocator().waiting();
        self.barrier().is_none() && waiting.next().is_none()
    }

    /// The reasons for which pods get no addresses.
    pub(crate) fn room(&self) -> Room {
        let mut room = Room::default();
        if !self.is_enabled() {
            return room;
        }
        if let Some(barrier) = self.barrier() {
            let waiting = vec![barrier];
            room.waits
                .push(AllocateError::Restoring { waiting }.to_string());
            return room;
        }
        let allocator = self.manager.allocator();
        let default = &allocator.settings().default_pool;
        let families = self.section.families.get().iter();
        let always: BTreeSet<_> = families.map(|family| (default.clone(), *family)).collect();
        // Another pool is probed only if a pod waits for an address of it.
        let waited = allocator.waiters().into_keys();
        let waited = waited
            .filter(|key| !always.contains(key))
            .collect::<Vec<_>>();
        for (pool, family) in &always {
            match allocator.probe(pool, *family) {
                Ok(()) => {}
                Err(error) if self.is_short(&error) => room.exhausted.push(advised(&error)),
                Err(error) => room.waits.push(error.to_string()),
            }
        }
        let missed = waited.iter().filter_map(|(pool, family)| {
            let error = allocator.probe(pool, *family).err()?;
            self.is_short(&error).then(|| advised(&error))
        });
        room.exhausted.extend(missed);
        room.waits.dedup();
        room
    }

    /// Pools without an address left.
    ///
    /// # Errors
    /// While allocation waits for a condition: the result is unknown until then.
    pub(crate) fn exhausted(&self) -> Result<Vec<String>, ApiError> {
        let room = self.room();
        if room.exhausted.is_empty() && !room.waits.is_empty() {
            return Err(ApiError::new(ErrorCode::NotReady, room.waits.join("; ")));
        }
        Ok(room.exhausted)
    }

    /// True if the allocator's error means a lack of addresses. A pool in use lacks addresses while
    /// the ENI of its free ones is not ready.
    fn is_short(&self, error: &AllocateError) -> bool {
        match error {
            AllocateError::Exhausted { .. } | AllocateError::UnknownPool { .. } => true,
            AllocateError::NotReady { pool, family, .. } => {
                let counts = self.manager.allocator().counts(pool, *family);
                counts.in_use() > 0
            }
            _ => false,
        }
    }
}

/// The error with the remedy.
fn advised(error: &AllocateError) -> String {
    format!(
        "{error}; running pods are fine, new ones wait: see `towpath pools` and the operator's log, \
         give the pool more addresses (ENIs, subnets, CIDRs), or run fewer pods here"
    )
}
