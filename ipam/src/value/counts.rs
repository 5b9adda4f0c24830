//! Numbers of addresses by state.

use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The addresses of a block, or of several, by state. `total` is the sum of all but `outside`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counts {
    /// All addresses: at most [`WINDOW`](crate::WINDOW) of a block.
    pub total: u64,
    /// Free addresses. They are allocated only while their block is usable.
    pub free: u64,
    /// Leases whose owner lives.
    pub claimed: u64,
    /// Leases that have not been claimed yet, and expire.
    pub unclaimed: u64,
    /// Addresses that were released and are not given again yet.
    pub cooling: u64,
    /// Addresses that are never allocated: first and last ones by the pool's rules, and those that
    /// the caller excludes. In a block that is gone, all free addresses.
    pub excluded: u64,
    /// Addresses of the block in use beyond its window: adopted, not given. Not part of the total.
    pub outside: u64,
}

impl Counts {
    /// Number of addresses that have an owner or cool down.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.claimed + self.unclaimed + self.cooling
    }

    /// True if the parts make the whole.
    #[must_use]
    pub fn add_up(&self) -> bool {
        self.free + self.in_use() + self.excluded == self.total
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.free += other.free;
        self.claimed += other.claimed;
        self.unclaimed += other.unclaimed;
        self.cooling += other.cooling;
        self.excluded += other.excluded;
        self.outside += other.outside;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} addresses free, {} in use, {} unclaimed, {} cooling down, {} excluded",
            self.free, self.total, self.claimed, self.unclaimed, self.cooling, self.excluded
        )
    }
}
