//! Unmet demand: a pool of which the node requests more addresses than it has, and gets no more.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam::Family;

/// A pool with a family, and the numbers of its requested and present addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetDemand {
    /// The pool.
    pub pool: String,
    /// The family.
    pub family: Family,
    /// The total number of requested addresses.
    pub wanted: u64,
    /// Number of addresses that the node has.
    pub given: u64,
}

/// Demand, and since when it is not answered. Times are since whatever moment, on a clock that does
/// not jump.
#[derive(Clone, Debug, Default)]
pub struct Unanswered {
    waiting: BTreeMap<(String, Family), (UnmetDemand, Duration)>,
}

impl Unanswered {
    /// The time that an answer may take.
    pub const EXPIRY: Duration = Duration::from_mins(2);

    /// Updates the unmet demand. Addresses that a pool has got in between count as an answer, even
    /// a partial one. A higher demand does not.
    pub fn observe(&mut self, now: Duration, all: impl IntoIterator<Item = UnmetDemand>) {
        let mut before = std::mem::take(&mut self.waiting);
        let short = all.into_iter().filter(|one| one.wanted > one.given);
        self.waiting = short
            .map(|one| {
                let key = (one.pool.clone(), one.family);
                let since = match before.remove(&key) {
                    Some((then, since)) if then.given == one.given => since,
                    _ => now,
                };
                (key, (one, since))
            })
            .collect();
    }

    /// The demands that were unmet for too long, and for how long.
    pub fn overdue(&self, now: Duration) -> impl Iterator<Item = (&UnmetDemand, Duration)> {
        let all = self.waiting.values();
        let aged = all.map(move |(one, since)| (one, now.saturating_sub(*since)));
        aged.filter(|(_, age)| *age >= Self::EXPIRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanting(wanted: u64, given: u64) -> UnmetDemand {
        UnmetDemand {
            pool: "default".to_owned(),
            family: Family::V4,
            wanted,
            given,
        }
    }

    /// For how many seconds the only pool has not been answered, where that is too long.
    fn overdue(of: &Unanswered, now: u64) -> Option<u64> {
        let mut all = of.overdue(Duration::from_secs(now));
        all.next().map(|(_, age)| age.as_secs())
    }

    #[test]
    fn demand_is_overdue_after_two_minutes_without_any_answer() {
        let mut of = Unanswered::default();
        let mut observe = |now: u64, wanted, given| {
            of.observe(Duration::from_secs(now), [wanting(wanted, given)]);
            of.clone()
        };
        assert_eq!(overdue(&observe(100, 8, 0), 219), None);
        assert_eq!(overdue(&observe(160, 8, 0), 220), Some(120));
        assert_eq!(overdue(&observe(215, 11, 0), 230), Some(130), "no answer");
        assert_eq!(overdue(&observe(240, 11, 3), 359), None, "a part of one");
        assert_eq!(overdue(&observe(300, 11, 3), 360), Some(120));
        assert_eq!(
            overdue(&observe(361, 11, 2), 400),
            None,
            "something changed"
        );
        assert_eq!(overdue(&observe(500, 2, 2), 900), None, "that is all");
        assert_eq!(
            overdue(&observe(1000, 3, 2), 1119),
            None,
            "from the beginning"
        );
    }

    #[test]
    fn each_pool_and_family_waits_for_itself() {
        let mut of = Unanswered::default();
        let other = |given| UnmetDemand {
            family: Family::V6,
            ..wanting(8, given)
        };
        of.observe(Duration::ZERO, [wanting(8, 0), other(0)]);
        of.observe(Duration::from_mins(1), [wanting(8, 0), other(4)]);
        let at = |seconds| {
            let all = of.overdue(Duration::from_secs(seconds));
            all.map(|(one, _)| one.family).collect::<Vec<_>>()
        };
        assert_eq!(at(120), [Family::V4]);
        assert_eq!(at(180), [Family::V4, Family::V6]);
    }

    #[test]
    fn what_nobody_asks_for_any_more_is_forgotten() {
        let mut of = Unanswered::default();
        of.observe(Duration::ZERO, [wanting(8, 0)]);
        of.observe(Duration::from_mins(1), []);
        assert_eq!(overdue(&of, 500), None);
    }
}
