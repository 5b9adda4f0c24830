//! Counters: one slot of a per-CPU array for each program and outcome.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::outcome::Outcome;

/// Value of the `COUNTERS` map, one for each CPU.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Counter {
    /// Packets; a GSO packet counts once.
    pub packets: u64,
    /// Bytes, Ethernet header included.
    pub bytes: u64,
}

/// The programs that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Program {
    /// What pods send.
    FromEndpoint = 0,
    /// What ENIs receive.
    FromNetwork = 1,
}

impl Program {
    /// Every program.
    pub const ALL: [Self; 2] = [Self::FromEndpoint, Self::FromNetwork];

    /// The program's name, as in the object.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FromEndpoint => crate::config::program::FROM_ENDPOINT,
            Self::FromNetwork => crate::config::program::FROM_NETWORK,
        }
    }

    /// The slot of an outcome of this program in `COUNTERS`.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self, outcome: Outcome) -> u32 {
        (self as u32) * Outcome::SLOTS + outcome.code() as u32
    }
}

/// Slots of `COUNTERS`: room for programs to come, so that a new one does not change the layout.
pub const SLOTS: u32 = 8 * Outcome::SLOTS;
