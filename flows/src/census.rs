//! Counts of the entries that exist.

use std::collections::BTreeMap;

use api::types::FlowKind;
use datapath_common::progress::Phase;
use ipam::Family;

use super::tables::Capacities;

/// The stable name of a phase.
#[must_use]
pub(super) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Opening => "opening",
        Phase::Established => "established",
        Phase::Closing => "closing",
        Phase::Closed => "closed",
    }
}

/// Flows counted by family, kind and phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// The counts; a missing one is 0.
    pub flows: BTreeMap<(Family, FlowKind, Phase), u64>,
}

impl Census {
    /// Counts one.
    pub fn count(&mut self, family: Family, kind: FlowKind, phase: Phase) {
        *self.flows.entry((family, kind, phase)).or_default() += 1;
    }

    /// Entries of a family's map of translated flows.
    #[must_use]
    pub fn translated(&self, family: Family) -> u64 {
        self.sum(|of, kind| of == family && matches!(kind, FlowKind::Pod | FlowKind::Host))
    }

    /// Entries of the map of flows from the outside.
    #[must_use]
    pub fn inbound(&self) -> u64 {
        self.sum(|_, kind| kind == FlowKind::Inbound)
    }

    /// Entries of the map of flows of the host's stack.
    #[must_use]
    pub fn stack(&self) -> u64 {
        self.sum(|_, kind| kind == FlowKind::Stack)
    }

    fn sum(&self, wanted: impl Fn(Family, FlowKind) -> bool) -> u64 {
        let counts = self.flows.iter();
        let counts = counts.filter(|((family, kind, _), _)| wanted(*family, *kind));
        counts.map(|(_, count)| count).sum()
    }
}

/// Number of entries in the maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Translated IPv4 flows.
    pub flows_v4: u64,
    /// Translated IPv6 flows.
    pub flows_v6: u64,
    /// Flows from the outside.
    pub inbound: u64,
    /// Flows of the host's stack.
    pub stack: u64,
}

impl Used {
    /// Entries that a census counted.
    #[must_use]
    pub fn of(census: &Census) -> Self {
        Self {
            flows_v4: census.translated(Family::V4),
            flows_v6: census.translated(Family::V6),
            inbound: census.inbound(),
            stack: census.stack(),
        }
    }

    /// Fill level of the fullest map, from 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a level needs no more")]
    pub fn fill(&self, capacities: &Capacities) -> f64 {
        [
            (self.flows_v4, capacities.flows_v4),
            (self.flows_v6, capacities.flows_v6),
            (self.inbound, capacities.inbound),
            (self.stack, capacities.stack),
        ]
        .into_iter()
        .map(|(used, room)| used as f64 / f64::from(room.max(1)))
        .fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_map_tells_the_level() {
        let mut census = Census::default();
        for _ in 0..3 {
            census.count(Family::V4, FlowKind::Pod, Phase::Established);
        }
        census.count(Family::V4, FlowKind::Host, Phase::Opening);
        census.count(Family::V6, FlowKind::Pod, Phase::Closed);
        census.count(Family::V4, FlowKind::Inbound, Phase::Opening);
        census.count(Family::V6, FlowKind::Inbound, Phase::Opening);
        census.count(Family::V4, FlowKind::Stack, Phase::Established);
        let used = Used::of(&census);
        let wanted = Used {
            flows_v4: 4,
            flows_v6: 1,
            inbound: 2,
            stack: 1,
        };
        assert_eq!(used, wanted);
        let level = |flows_v4, flows_v6, inbound, stack| {
            let capacities = Capacities {
                flows_v4,
                flows_v6,
                inbound,
                stack,
            };
            format!("{:.2}", used.fill(&capacities))
        };
        assert_eq!(level(8, 100, 100, 100), "0.50");
        assert_eq!(level(100, 2, 100, 100), "0.50");
        assert_eq!(level(100, 100, 4, 100), "0.50");
        assert_eq!(level(100, 100, 100, 2), "0.50");
    }
}
