//! What the first address waits for besides the documents.

use ipam::{AllocateError, Barrier, Family};

use super::{Addresses, Surroundings};
use crate::intent::StaticAddress;

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

    /// Why no pod can be added that names no pool; `None` where one can.
    pub(in crate::agent) fn exhausted(&self) -> Option<AllocateError> {
        if let Some(waiting) = self.barrier() {
            let waiting = vec![waiting];
            return Some(AllocateError::Restoring { waiting });
        }
        let allocator = self.manager.allocator();
        let pool = &allocator.settings().default_pool;
        let mut families = self.section.families.get().iter();
        families.find_map(|&family: &Family| allocator.probe(pool, family).err())
    }
}
