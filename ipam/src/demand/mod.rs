//! The number of addresses that the node requests.

mod pre_allocation;
mod waiting;

use std::collections::BTreeMap;

pub use self::pre_allocation::{ParsePreAllocationError, PreAllocation};
pub(crate) use self::waiting::{Shortage, Waiting};
use crate::Family;

/// The formula of demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formula {
    /// `roundUp(inUse + waiting + preAllocate, preAllocate)`: between one and two times
    /// `preAllocate` to spare, so that a single pod seldom changes the demand.
    RoundedUp,
    /// `inUse + waiting + preAllocate`. Cilium's operator for ENIs subtracts `preAllocate` again
    /// to learn what is in use.
    Linear,
}

impl Formula {
    /// The number of addresses to request in all.
    #[must_use]
    pub fn needed(self, in_use_or_waiting: u64, pre_allocate: u64) -> u64 {
        let sum = in_use_or_waiting.saturating_add(pre_allocate);
        match self {
            Self::RoundedUp if pre_allocate > 0 => {
                sum.checked_next_multiple_of(pre_allocate).unwrap_or(sum)
            }
            Self::RoundedUp | Self::Linear => sum,
        }
    }
}

/// Demand: the number of addresses of each family in all, for each pool. A pool and family without
/// demand is not in it.
pub type Demand = BTreeMap<String, BTreeMap<Family, u64>>;
