//! Tables in which room is short.

use datapath_common::abi::Room;
use ipam::Family;

use crate::census::Used;
use crate::tables::{Capacities, NoteKind};

/// Tables in which room is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressed {
    /// Translated flows of IPv4 and of IPv6.
    flows: [bool; 2],
    /// Notes of flows from the outside, and of those of the host's stack.
    notes: [bool; 2],
}

impl From<bool> for Pressed {
    /// All tables, or none.
    fn from(all: bool) -> Self {
        Self {
            flows: [all; 2],
            notes: [all; 2],
        }
    }
}

impl Pressed {
    /// The tables in which only shares are left.
    #[must_use]
    pub(crate) fn of(used: &Used, room: &Capacities) -> Self {
        let flows_v4 = is_pressed(used.flows_v4, room.flows_v4);
        let flows_v6 = is_pressed(used.flows_v6, room.flows_v6);
        let inbound = is_pressed(used.inbound, room.inbound);
        let stack = is_pressed(used.stack, room.stack);
        Self {
            flows: [flows_v4, flows_v6],
            notes: [inbound, stack],
        }
    }

    /// True if room is short in any table.
    #[must_use]
    pub(crate) fn is_any(self) -> bool {
        self != Self::default()
    }

    /// True if room is short in the table of a family's translated flows.
    #[must_use]
    pub(crate) fn flows(self, family: Family) -> bool {
        let [v4, v6] = self.flows;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// True if room is short in the table of a kind of notes.
    #[must_use]
    pub(crate) fn notes(self, kind: NoteKind) -> bool {
        let [inbound, stack] = self.notes;
        match kind {
            NoteKind::Inbound => inbound,
            NoteKind::Stack => stack,
        }
    }
}

/// True if a table with so many entries has room for shares alone.
#[must_use]
pub(crate) fn is_pressed(used: u64, room: u32) -> bool {
    used > 0 && used >= u64::from(Room::open(room))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_is_short_of_room_by_itself() {
        let room = Capacities {
            flows_v4: 100,
            flows_v6: 100,
            inbound: 100,
            stack: 100,
        };
        let none = Pressed::of(&Used::default(), &room);
        assert!(!none.is_any());
        let used = Used {
            flows_v4: 87,
            flows_v6: 88,
            stack: 100,
            ..Used::default()
        };
        let pressed = Pressed::of(&used, &room);
        assert!(pressed.is_any());
        assert_eq!(Family::ALL.map(|of| pressed.flows(of)), [false, true]);
        assert!(!pressed.notes(NoteKind::Inbound));
        assert!(pressed.notes(NoteKind::Stack));
    }

    #[test]
    fn greedy_pods_that_have_all_they_can_get_are_pressure_in_a_table_of_any_size() {
        for capacity in [1024, 16_384, 65_536, 131_072, 524_288, 4_194_304] {
            for greedy in [1, 2, 8, 100] {
                let room = Room::of(capacity.into(), capacity);
                let most = u64::from(room.open + greedy * room.share);
                assert!(is_pressed(most, capacity), "{greedy} in {capacity}");
            }
            assert!(!is_pressed(u64::from(capacity) * 3 / 4, capacity));
            assert!(!is_pressed(0, capacity));
        }
        assert!(!is_pressed(0, 0), "a table without room");
    }
}
