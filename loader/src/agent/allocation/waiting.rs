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

impl Addresses {
    /// Takes note of whether the node has its public address. Once it had it, or needs none, that it
    /// goes stops nothing.
    pub(super) fn look_for_static_address(&mut self, around: &Surroundings<'_>) {
        let has_document = around.generation > 0;
        let is_awaited = around.intent.node.static_address == StaticAddress::Awaited;
        self.has_static_address |= has_document && !is_awaited;
    }

    /// What nothing is given before, of what is not the allocator's business.
    pub(super) fn barrier(&self) -> Option<Barrier> {
        (!self.has_static_address).then_some(STATIC_ADDRESS)
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
