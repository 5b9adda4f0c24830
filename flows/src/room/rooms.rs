//! Entries and credit of tables, and what tables lend beyond quotas, as the programs know them.

use anyhow::Result;
use datapath_common::abi::{Room, SharedTable};

use crate::census::Used;
use crate::tables::{Capacities, Tables};

/// A table, as it was published.
#[derive(Clone, Copy, Debug)]
struct Published {
    used: u64,
    lend: u32,
}

/// The tables, as they were published; none before the first time.
#[derive(Debug, Default)]
pub(crate) struct Rooms([Option<Published>; SharedTable::ALL.len()]);

impl Rooms {
    /// Publishes the rooms of tables that are crowded or have changed, and what each lends where
    /// that has changed.
    pub(crate) fn publish(&mut self, tables: &impl Tables, used: &Used) -> Result<()> {
        let capacities = tables.capacities();
        for (table, published) in SharedTable::ALL.into_iter().zip(&mut self.0) {
            let (used, capacity) = fill(table, used, &capacities);
            let credit = Room::credit(used, capacity);
            let has_changed = published.is_none_or(|before| before.used != used);
            if has_changed {
                tables.set_credit(table, credit)?;
            }
            if has_changed || credit == 0 {
                tables.set_room(table, &Room::of(used, capacity))?;
            }
            let lend = Room::lend(used, capacity);
            if published.is_none_or(|before| before.lend != lend) {
                tables.set_lend(table, lend)?;
            }
            *published = Some(Published { used, lend });
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
    fn a_table_is_published_when_it_changes_and_while_it_is_crowded() {
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
        assert_eq!(published(0).len(), SharedTable::ALL.len());
        assert_eq!(published(0).len(), 0, "nothing at rest");
        let table = SharedTable::FlowsV6;
        for flows in [1, capacity / 2, capacity / 2 + 1, capacity, 0] {
            let expected = Room::of(flows.into(), capacity);
            assert_eq!(published(flows), [(table, expected)].into());
            // The programs count a crowded table, and are corrected each time.
            let again = usize::from(flows >= capacity / 2);
            assert_eq!(published(flows).len(), again, "{flows}");
        }
    }

    #[test]
    fn entries_up_to_half_of_a_table_are_credit() {
        let model = Model::new();
        let capacity = model.capacities().stack;
        let mut rooms = Rooms::default();
        let mut published = |stack: u32| {
            let used = Used {
                stack: stack.into(),
                ..Used::default()
            };
            rooms.publish(&model, &used).unwrap();
            std::mem::take(&mut model.maps().credit)
        };
        assert_eq!(published(0).len(), SharedTable::ALL.len());
        for (used, credit) in [(1, capacity / 2 - 1), (capacity / 2, 0), (capacity, 0)] {
            assert_eq!(published(used), [(SharedTable::Stack, credit)].into());
            assert_eq!(published(used).len(), 0, "nothing new");
        }
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
