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
    /// Packets that pods send.
    FromEndpoint = 0,
    /// Packets that ENIs receive.
    FromNetwork = 1,
    /// Packets that ENIs send.
    ToNetwork = 2,
    /// Packets that the stack sends to pods.
    ToEndpoint = 3,
}

impl Program {
    /// Every program.
    pub const ALL: [Self; 4] = [
        Self::FromEndpoint,
        Self::FromNetwork,
        Self::ToNetwork,
        Self::ToEndpoint,
    ];

    /// The program's name, as in the object.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FromEndpoint => crate::config::program::FROM_ENDPOINT,
            Self::FromNetwork => crate::config::program::FROM_NETWORK,
            Self::ToNetwork => crate::config::program::TO_NETWORK,
            Self::ToEndpoint => crate::config::program::TO_ENDPOINT,
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

/// Counter of translation; each has a slot of `NAT_STATS`, by family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NatStat {
    /// Flows that got a port.
    Allocated = 0,
    /// Of these, those that kept their source port.
    Kept = 1,
    /// Of these, those of the host.
    Host = 2,
    /// Flows that the reaper removed.
    Removed = 3,
    /// Inbound flows noted.
    InboundNoted = 4,
    /// Inbound flows removed.
    InboundRemoved = 5,
    /// Allocations that tried one port.
    Tries1 = 6,
    /// Allocations that tried 2 to 5 ports.
    Tries5 = 7,
    /// Allocations that tried 6 to 16 ports.
    Tries16 = 8,
    /// Allocations that tried 17 to 32 ports.
    Tries32 = 9,
    /// Allocations that tried more than 32 ports.
    TriesMore = 10,
    /// Allocations that failed, for whatever reason. The reaper wakes when it grows.
    Failed = 11,
    /// Inbound flows that could not be noted. The reaper wakes as well.
    InboundFailed = 12,
    /// Flows of the stack noted.
    StackNoted = 13,
    /// Flows of the stack removed.
    StackRemoved = 14,
    /// Flows of the stack that could not be noted. The reaper wakes as well.
    StackFailed = 15,
}

impl NatStat {
    /// Every one.
    pub const ALL: [Self; 16] = [
        Self::Allocated,
        Self::Kept,
        Self::Host,
        Self::Removed,
        Self::InboundNoted,
        Self::InboundRemoved,
        Self::Tries1,
        Self::Tries5,
        Self::Tries16,
        Self::Tries32,
        Self::TriesMore,
        Self::Failed,
        Self::InboundFailed,
        Self::StackNoted,
        Self::StackRemoved,
        Self::StackFailed,
    ];

    /// The slot in `NAT_STATS`.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self, is_v4: bool) -> u32 {
        self as u32 + of_family(is_v4)
    }

    /// True if those of [`nat_at_once_slot`] are among these, beside those of [`Self::slot`].
    #[must_use]
    pub const fn has_those_at_once(self) -> bool {
        matches!(self, Self::Allocated | Self::Kept | Self::Tries1)
    }
}

/// The slot in `NAT_STATS` of the most frequent flows: a pod's that keep their source port, the
/// first one that was tried. They are counted only there.
#[inline(always)]
#[must_use]
pub const fn nat_at_once_slot(is_v4: bool) -> u32 {
    /// The last of a family, far from the next number of a [`NatStat`].
    const LAST: u32 = NAT_STAT_SLOTS / 2 - 1;
    LAST + of_family(is_v4)
}

/// The first slot of a family.
const fn of_family(is_v4: bool) -> u32 {
    if is_v4 { 0 } else { NAT_STAT_SLOTS / 2 }
}

/// Slots of `NAT_STATS`.
pub const NAT_STAT_SLOTS: u32 = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_count_has_a_slot_of_its_own() {
        let of_family = |is_v4| {
            let stats = NatStat::ALL.into_iter().map(move |stat| stat.slot(is_v4));
            stats.chain([nat_at_once_slot(is_v4)])
        };
        let slots: BTreeSet<_> = of_family(true).chain(of_family(false)).collect();
        assert_eq!(slots.len(), 2 * (NatStat::ALL.len() + 1));
        assert!(slots.iter().all(|slot| *slot < NAT_STAT_SLOTS), "{slots:?}");
    }
}
