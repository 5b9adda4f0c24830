//! Endpoints that have more than a fair share of something.

use std::collections::{HashMap, HashSet};

use ipam::Family;

/// The endpoints that have more than a fair share of all flows, by the flows of each endpoint.
/// However many endpoints there are, those with the most flows are among them.
pub(super) fn greedy(endpoints: &HashMap<u32, u32>) -> HashSet<u32> {
    let used: u64 = endpoints.values().copied().map(u64::from).sum();
    // One more endpoint than there are may come.
    let count = u64::try_from(endpoints.len()).unwrap_or(u64::MAX);
    let share = used / count.saturating_add(1);
    let greedy = endpoints
        .iter()
        .filter(|(_, flows)| u64::from(**flows) > share);
    greedy.map(|(endpoint, _)| *endpoint).collect()
}

/// The endpoints that have more than a fair share of the table of IPv4 flows, and of that of IPv6.
#[derive(Debug, Default)]
pub(crate) struct Greedy([HashSet<u32>; 2]);

impl Greedy {
    /// By the flows of each endpoint in either table.
    pub(crate) fn of(endpoints: &[HashMap<u32, u32>; 2]) -> Self {
        Self(endpoints.each_ref().map(greedy))
    }

    /// True if an endpoint has more than a fair share of a family's table.
    pub(super) fn has(&self, family: Family, endpoint: u32) -> bool {
        let [v4, v6] = &self.0;
        match family {
            Family::V4 => v4.contains(&endpoint),
            Family::V6 => v6.contains(&endpoint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_greedy_in_the_table_that_it_fills() {
        let greedy = Greedy::of(&[
            (1..=100).map(|endpoint| (endpoint, 570)).collect(),
            HashMap::from([(1, 5), (101, 60_000)]),
        ]);
        assert!((1..=100).all(|endpoint| greedy.has(Family::V4, endpoint)));
        assert!(!greedy.has(Family::V4, 101));
        assert!(!greedy.has(Family::V6, 1));
        assert!(greedy.has(Family::V6, 101));
    }
}
