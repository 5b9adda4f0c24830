//! Crowded tables, and what tables lend beyond quotas, as the programs know them.

use anyhow::Result;
use datapath_common::abi::{Room, SharedTable};

use crate::census::Used;
use crate::tables::{Capacities, Tables};

/// A table, as it was published.
#[derive(Clone, Copy, Debug)]
struct Published {
    is_crowded: bool,
    lend: u32,
}

/// The tables, as they were published; none before the first time.
#[derive(Debug, Default)]
pub(crate) struct Rooms([Option<Published>; SharedTable::ALL.len()]);

impl Rooms {
    /// Publishes the rooms of crowded tables, which are crowded no more, and what each lends where
    /// that has changed.
    pub(crate) fn publish(&mut self, tables: &impl Tables, used: &Used) -> Result<()> {
        let capacities = tables.capacities();
        for (table, published) in SharedTable::ALL.into_iter().zip(&mut self.0) {
            let (used, capacity) = fill(table, used, &capacities);
            let room = Room::of(used, capacity);
            let is_crowded = room != Room::PLENTY;
            if is_crowded || published.is_none_or(|before| before.is_crowded) {
                tables.set_room(table, &room)?;
            }
            let lend = Room::lend(used, capacity);
            if published.is_none_or(|before| before.lend != lend) {
                tables.set_lend(table, lend)?;
            }
            *published = Some(Published { is_crowded, lend });
        }
        Ok(())
    }
}

/// Entries of a table, and how many it can have.
fn fill(table: SharedTable, used: &Used, capacities: &Capacities) -> (u64, u32) {
    match table {
        SharedTable::FlowsV4 => (used.flows_v4, capacities.flows_v4),
        SharedTable::FlowsV6 => (used.flows_v6, capacities.flows_v6),
        SharedTable::Inbound => (used.inbound, capacities.inbound),
        SharedTable::Stack => (used.stack, capacities.stack),
    }
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

    #[test]
    fn what_a_table_lends_is_published_when_it_changes() {
        let model = Model::new();
        let capacity = model.capacities().inbound;
        let mut rooms = Rooms::default();
        let mut published = |inbound: u32| {
            let used = Used {
                inbound: inbound.into(),
                ..Used::default()
            };
            rooms.publish(&model, &used).unwrap();
            std::mem::take(&mut model.maps().lend)
        };
        assert_eq!(published(0).len(), SharedTable::ALL.len());
        assert_eq!(published(0).len(), 0);
        let half = Room::lend((capacity / 2).into(), capacity);
        let expected = [(SharedTable::Inbound, half)];
        assert_eq!(published(capacity / 2), expected.into());
        assert_eq!(published(capacity), [(SharedTable::Inbound, 0)].into());
    }
}
