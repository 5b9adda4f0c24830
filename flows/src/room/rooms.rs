//! Crowded tables, as the programs know them.

use anyhow::Result;
use datapath_common::abi::{Room, SharedTable};

use crate::census::Used;
use crate::tables::{Capacities, Tables};

/// The tables that the programs know to be crowded.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    crowded: [bool; SharedTable::ALL.len()],
    /// True once everything was published.
    is_known: bool,
}

impl Rooms {
    /// Publishes the rooms of crowded tables, and which are crowded no more.
    pub(crate) fn publish(&mut self, tables: &impl Tables, used: &Used) -> Result<()> {
        let capacities = tables.capacities();
        for (table, was_crowded) in SharedTable::ALL.into_iter().zip(&mut self.crowded) {
            let room = room(table, used, &capacities);
            let is_crowded = room != Room::PLENTY;
            if is_crowded || *was_crowded || !self.is_known {
                tables.set_room(table, &room)?;
            }
            *was_crowded = is_crowded;
        }
        self.is_known = true;
        Ok(())
    }
}

fn room(table: SharedTable, used: &Used, capacities: &Capacities) -> Room {
    let (used, capacity) = match table {
        SharedTable::FlowsV4 => (used.flows_v4, capacities.flows_v4),
        SharedTable::FlowsV6 => (used.flows_v6, capacities.flows_v6),
        SharedTable::Inbound => (used.inbound, capacities.inbound),
        SharedTable::Stack => (used.stack, capacities.stack),
    };
    Room::of(used, capacity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    #[test]
    fn a_table_is_published_while_it_is_crowded_and_once_it_is_not() {
        let model = Model::new();
        let capacity = model.capacities().flows_v6;
        let used = |flows: u32| Used {
            flows_v6: flows.into(),
            ..Used::default()
        };
        let mut rooms = Rooms::default();
        let mut published = |flows: u32| {
            rooms.publish(&model, &used(flows)).unwrap();
            std::mem::take(&mut model.maps().rooms)
        };
        assert!(published(0).values().all(|room| *room == Room::PLENTY));
        assert_eq!(published(capacity / 2).len(), 0);
        for flows in [capacity / 2 + 1, capacity] {
            let crowded = published(flows);
            let expected = Room::of(flows.into(), capacity);
            assert_eq!(crowded, [(SharedTable::FlowsV6, expected)].into());
        }
        assert_eq!(published(0), [(SharedTable::FlowsV6, Room::PLENTY)].into());
        assert_eq!(published(0).len(), 0);
    }
}
