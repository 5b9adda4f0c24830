//! The addresses that a node wants, from what its agent writes.

mod capacity;
mod demand;
mod formula;

pub use self::capacity::{Capacity, OF_THE_HOST, max_allocatable, most_addresses};
pub use self::demand::{Demand, Generation, Reading, Requested};
pub use self::formula::{DEFAULT_PRE_ALLOCATE, Watermarks, excess, needed, pre_allocate};

use crate::Kind;
use crate::object::block::PREFIX_SIZE;

/// The IPv4 addresses that a node wants now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Addresses that are missing.
    pub needed: u32,
    /// Addresses to bring in one go: `needed`, those above the watermark, those for waiting pods.
    pub bring: u32,
    /// Addresses until `max-allocate` is reached; `None` where the node has no such bound.
    pub room: Option<u32>,
    /// A bound below one prefix leaves single addresses alone.
    pub singles_only: bool,
}

impl Want {
    /// The want of a node that has so many addresses and on which so many pods wait for one.
    #[must_use]
    pub fn of(available: u32, used: u32, pending: u32, marks: &Watermarks) -> Self {
        let needed = needed(available, used, marks);
        let room = (marks.max > 0).then(|| marks.max.saturating_sub(available));
        let surge = pending.saturating_sub(needed);
        let bring = match needed {
            0 => 0,
            _ => needed.saturating_add(marks.above).saturating_add(surge),
        };
        Self {
            needed,
            bring: bring.min(room.unwrap_or(u32::MAX)),
            room,
            singles_only: marks.max > 0 && marks.max < PREFIX_SIZE,
        }
    }

    /// The want for a bound pool, from the number of addresses that the node has and that it
    /// requests in all.
    #[must_use]
    pub fn of_pool(available: u32, requested: u32) -> Self {
        let needed = requested.saturating_sub(available);
        Self {
            needed,
            bring: needed,
            ..Self::default()
        }
    }

    /// Blocks of a kind to bring. `max-allocate` is never passed, not even by a part of a block.
    #[must_use]
    pub fn blocks(&self, kind: Kind) -> u32 {
        let blocks = kind.blocks_for(self.bring);
        match self.room {
            Some(room) if kind.addresses() > 0 => blocks.min(room / kind.addresses()),
            _ => blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(min: u32, max: u32) -> Watermarks {
        Watermarks {
            pre: DEFAULT_PRE_ALLOCATE,
            min,
            max,
            above: 0,
        }
    }

    #[test]
    fn max_allocate_is_clamped_in_blocks() {
        let want = Want::of(0, 0, 0, &marks(20, 20));
        assert_eq!(want.blocks(Kind::Prefix), 1);
        assert_eq!(want.blocks(Kind::Address), 20);
        let full = Want::of(16, 10, 0, &marks(20, 20));
        assert_eq!(full.blocks(Kind::Prefix), 0);
        assert!(!full.singles_only);
        assert!(Want::of(0, 0, 0, &marks(0, 8)).singles_only);
    }

    #[test]
    fn waiting_pods_and_the_watermark_come_on_top_of_a_deficit_alone() {
        let above = Watermarks {
            above: 3,
            ..marks(0, 0)
        };
        assert_eq!(Want::of(8, 4, 0, &above).bring, 7);
        assert_eq!(Want::of(8, 4, 10, &above).bring, 4 + 3 + 6);
        assert_eq!(Want::of(8, 0, 10, &above).bring, 0);
        let bounded = Watermarks { max: 10, ..above };
        assert_eq!(Want::of(8, 4, 10, &bounded).bring, 2);
    }
}
