//! Room of the tables that endpoints share: index and value of `ROOM`.

pub(super) mod quota;
pub(super) mod share;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::bpf_spin_lock;

/// A table that endpoints share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SharedTable {
    /// Translated IPv4 flows.
    FlowsV4 = 0,
    /// Translated IPv6 flows.
    FlowsV6 = 1,
    /// Flows from the outside.
    Inbound = 2,
    /// Flows of the host's stack.
    Stack = 3,
}

impl SharedTable {
    /// Every table.
    pub const ALL: [Self; 4] = [Self::FlowsV4, Self::FlowsV6, Self::Inbound, Self::Stack];

    /// The table of a family's translated flows.
    #[inline(always)]
    #[must_use]
    pub const fn flows(is_v4: bool) -> Self {
        if is_v4 { Self::FlowsV4 } else { Self::FlowsV6 }
    }
}

/// Number of entries of `ROOM`.
pub const SHARED_TABLES: u32 = 4;

/// Value of `ROOM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Room {
    /// Guards the number of entries.
    pub lock: bpf_spin_lock,
    /// Entries of the table, and those that may be added by credit.
    pub used: u32,
    /// Entries from which on an endpoint gets no more than its share; 0 before user space has
    /// published anything.
    pub open: u32,
    /// Entries that each endpoint may add from there on.
    pub share: u32,
}

impl Room {
    /// Part of a table that is kept for shares: the last eighth.
    const RESERVE: u32 = 8;
    /// Endpoints whose shares together are the reserve: the most that a node is likely to have.
    const ENDPOINTS: u32 = 256;
    /// The least share: a resolver's questions, or the connections of a small client.
    const LEAST: u32 = 8;

    /// A table of which nothing is published yet: its entries are not counted.
    pub const UNKNOWN: Self = Self {
        lock: bpf_spin_lock::FREE,
        used: 0,
        open: 0,
        share: 0,
    };

    /// Flows that an endpoint may have beyond its quota, in a table with so many entries: half of
    /// those that are free below the reserve, in steps of a 64th of the table, so that small
    /// changes publish nothing.
    #[must_use]
    pub const fn lend(used: u64, capacity: u32) -> u32 {
        const STEPS: u32 = 64;
        let open = Self::open(capacity);
        if used >= open as u64 || capacity < STEPS {
            return 0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it is not above the capacity"
        )]
        let half = (open - used as u32) / 2;
        let step = capacity / STEPS;
        half / step * step
    }

    /// Entries of a table from which on an endpoint gets no more than its share.
    #[must_use]
    pub const fn open(capacity: u32) -> u32 {
        capacity - capacity / Self::RESERVE
    }

    /// Entries that may be added to a table without counting each: those up to half of its
    /// capacity. Beyond that it is crowded.
    #[must_use]
    pub const fn credit(used: u64, capacity: u32) -> u32 {
        (capacity / 2).saturating_sub(Self::within(used, capacity))
    }

    /// The room of a table with so many entries, and with the credit for that.
    #[must_use]
    pub const fn of(used: u64, capacity: u32) -> Self {
        let open = Self::open(capacity);
        let share = (capacity - open) / Self::ENDPOINTS;
        Self {
            lock: bpf_spin_lock::FREE,
            used: Self::within(used, capacity) + Self::credit(used, capacity),
            open,
            share: if share < Self::LEAST {
                Self::LEAST
            } else {
                share
            },
        }
    }

    /// A number of entries, at most the capacity.
    const fn within(used: u64, capacity: u32) -> u32 {
        if used > capacity as u64 {
            return capacity;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it is not above the capacity"
        )]
        let used = used as u32;
        used
    }
}

const _: () = assert!(size_of::<Room>() == 16);
const _: () = assert!(SharedTable::ALL.len() == SHARED_TABLES as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eighth_is_for_shares_once_half_of_a_table_is_used() {
        for used in [0, 1, 32_767, 32_768] {
            let (room, credit) = (Room::of(used, 65_536), Room::credit(used, 65_536));
            assert_eq!((room.used, room.open, room.share), (32_768, 57_344, 32));
            assert_eq!(u64::from(credit), 32_768 - used);
        }
        for used in [32_769, 65_536, 70_000] {
            assert_eq!(Room::credit(used, 65_536), 0);
        }
        let room = Room::of(32_769, 65_536);
        assert_eq!((room.used, room.open, room.share), (32_769, 57_344, 32));
        assert_eq!(Room::of(70_000, 65_536).used, 65_536);
        assert_eq!(Room::of(600, 1024).share, 8);
        assert_eq!(Room::of(1, 0).open, 0, "a table without room");
    }

    #[test]
    fn half_of_what_is_free_below_the_reserve_is_lent() {
        assert_eq!(Room::lend(0, 65_536), 28_672);
        assert_eq!(Room::lend(1, 65_536), 27_648, "a step less");
        assert_eq!(Room::lend(2_048, 65_536), 27_648);
        assert_eq!(Room::lend(57_344 - 2_047, 65_536), 0);
        for used in [57_344, 70_000, u64::MAX] {
            assert_eq!(Room::lend(used, 65_536), 0);
        }
        assert_eq!(Room::lend(0, 63), 0, "too small a table to lend of");
    }
}
