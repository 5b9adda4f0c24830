//! The addresses that an instance could have at most.

use crate::Limits;
use crate::object::block::PREFIX_SIZE;

/// The use of an instance's ENIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// The first index whose ENI gives addresses.
    pub first_index: u16,
    /// ENIs get prefixes.
    pub prefixes: bool,
    /// ENIs give their own address as well.
    pub use_primary: bool,
    /// ENIs that take an adapter and give nothing.
    pub excluded: u16,
    /// Prefixes that an instance without prefix delegation still has.
    pub leftover_prefixes: u32,
}

impl Capacity {
    /// Addresses of a full instance, for metrics. It is 0 where the type is unknown. With prefixes
    /// the own address is counted as Cilium does, 16 times.
    #[must_use]
    pub fn addresses(&self, limits: Option<&Limits>) -> u32 {
        let Some(limits) = limits else { return 0 };
        let slots = u32::from(limits.slots) + u32::from(self.use_primary);
        let size = if self.prefixes { PREFIX_SIZE } else { 1 };
        let leftover = if self.prefixes {
            0
        } else {
            self.leftover_prefixes
        };
        let adapters = limits.adapters.saturating_sub(self.excluded);
        u32::from(adapters) * slots * size + leftover * (PREFIX_SIZE - 1)
    }
}

/// Number of pods in the host's network, which need no address. AWS's formula for a kubelet's
/// maxPods adds as many.
pub const OF_THE_HOST: u32 = 2;

/// Addresses that an instance can have for pods. The ENIs' own ones count where nodes give them to
/// pods, but for that of the primary ENI, which is the host's.
#[must_use]
pub fn most_addresses(limits: &Limits, capacity: &Capacity) -> u32 {
    let own = if capacity.use_primary {
        limits.adapters.saturating_sub(capacity.first_index.max(1))
    } else {
        0
    };
    max_allocatable(Some(limits), capacity) + u32::from(own)
}

/// Addresses that an instance can be given, the bound where `max-allocate` is unset. It is 0, for
/// unlimited, where the type is unknown.
#[must_use]
pub fn max_allocatable(limits: Option<&Limits>, capacity: &Capacity) -> u32 {
    let Some(limits) = limits else { return 0 };
    let adapters = limits.adapters.saturating_sub(capacity.first_index);
    let size = if capacity.prefixes { PREFIX_SIZE } else { 1 };
    u32::from(adapters) * u32::from(limits.slots) * size
}
