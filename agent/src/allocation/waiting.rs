//! What the first address waits for besides the documents.

use std::collections::BTreeSet;

use api::{ApiError, ErrorCode};
use ipam::{AllocateError, Barrier};
use loader::intent::StaticAddress;

use super::{Addresses, Surroundings};

/// The allocator's own barrier of ours.
pub(super) const KERNEL: Barrier = Barrier::new("a first look at the kernel");
/// Where the node is to have a public address. The node asks for addresses all the same.
const STATIC_ADDRESS: Barrier = Barrier::new(
    "the public address that spec.ipam.static-ip-tags ask for (status.ipam.assigned-static-ip, which \
     the operator writes)",
);

/// How the node stands to the public address that it may be to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PublicAddress {
    /// Nothing tells of one yet.
    #[default]
    Unknown,
    /// It is to come.
    Awaited,
    /// It came, or none is asked for.
    Settled,
}

/// What there is to say of addresses for new pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// What has to come before any address is given.
    pub(crate) waits: Vec<String>,
    /// Pools with no address left, by family, with what to do.
    pub(crate) exhausted: Vec<String>,
}

impl Addresses {
    /// Takes note of whether the node has its public address. Once it had it, or needs none, that it
    /// goes stops nothing.
    pub(super) fn look_for_static_address(&mut self, around: &Surroundings<'_>) {
        let has_document = around.generation > 0;
        let is_awaited = around.intent.node.static_address == StaticAddress::Awaited;
        if has_document && self.public_address != PublicAddress::Settled {
            self.public_address = if is_awaited {
                PublicAddress::Awaited
            } else {
                PublicAddress::Settled
            };
        }
    }

    /// What nothing is given before, of what is not the allocator's business.
    pub(super) fn barrier(&self) -> Option<Barrier> {
        (self.public_address == PublicAddress::Awaited).then_some(STATIC_ADDRESS)
    }

    /// True once addresses are given at all.
    pub(crate) fn gives(&self) -> bool {
        let mut waiting = self.manager.allocator().waiting();
        self.barrier().is_none() && waiting.next().is_none()
    }

    /// What keeps addresses from pods.
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
        // Nobody misses an address of another pool before a pod waits for one.
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
    /// While something has to come before any address is given: then nobody knows.
    pub(crate) fn exhausted(&self) -> Result<Vec<String>, ApiError> {
        let room = self.room();
        if room.exhausted.is_empty() && !room.waits.is_empty() {
            return Err(ApiError::new(ErrorCode::NotReady, room.waits.join("; ")));
        }
        Ok(room.exhausted)
    }

    /// True where there are too few addresses, by what the allocator refuses. A pool that pods have
    /// addresses of is short of them while the ENI of others is not ready.
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

/// What is short, with what to do.
fn advised(error: &AllocateError) -> String {
    format!(
        "{error}; running pods are fine, new ones wait: see `towpath pools` and the operator's log, \
         give the pool more addresses (ENIs, subnets, CIDRs), or run fewer pods here"
    )
}
