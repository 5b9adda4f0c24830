//! Budgets: how many calls of EC2 are made, of each action by itself as EC2 counts them, and who is
//! next.

mod bucket;
mod queue;

use std::collections::BTreeMap;
use std::time::Duration;

use ipam::Time;

pub use self::bucket::{Bucket, Rate};
pub use self::queue::{Entry, MAX_WAIT, Need, Queue};
use crate::Action;

/// The share of EC2's buckets that the operator uses. Other users of the account have the rest.
pub const SHARE: f64 = 0.8;

/// A throttled answer leaves so much of the rate.
const CUT: f64 = 0.5;
/// The rate never falls below that.
const FLOOR: f64 = 0.1;
/// So much of the rate comes back each [`REGAINED_IN`].
const REGAINED: f64 = 0.05;
/// See [`REGAINED`].
const REGAINED_IN: Duration = Duration::from_secs(10);
/// Throttled answers within so long belong to calls that were in flight together.
const WAVE: Duration = Duration::from_secs(1);

/// EC2's default rate of an action, for an account and region.
#[must_use]
pub fn default_rate(action: Action) -> Rate {
    let (burst, per_second) = match action {
        Action::DescribeEnis
        | Action::DescribeInstances
        | Action::DescribeSubnets
        | Action::DescribeRouteTables
        | Action::DescribeGroups
        | Action::DescribeVpcs
        | Action::DescribeTypes => (100.0, 20.0),
        // It has neither filter nor pages.
        Action::DescribeAddresses => (50.0, 10.0),
        Action::Attach | Action::Detach | Action::Modify | Action::Associate => (50.0, 5.0),
        Action::Create
        | Action::Delete
        | Action::Assign
        | Action::AssignIpv6
        | Action::Unassign => (100.0, 5.0),
    };
    Rate { burst, per_second }
}

/// The budget of each action.
#[derive(Clone, Debug)]
pub struct Budgets {
    by_action: BTreeMap<Action, Budget>,
}

/// The budget of one action.
#[derive(Clone, Debug)]
struct Budget {
    /// The rate while nothing is throttled.
    full: Rate,
    bucket: Bucket,
    /// The part of the full rate that is used now.
    factor: f64,
    /// The time of the last cut or gain.
    changed: Time,
    throttled: u64,
}

/// A budget for people to see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetView {
    /// The action.
    pub action: Action,
    /// The rate while nothing is throttled.
    pub full: Rate,
    /// The part of it that is used now, from 0 to 1.
    pub factor: f64,
    /// Throttled answers so far.
    pub throttled: u64,
}

impl Budgets {
    /// Full budgets: a share of the given rates, or of EC2's default ones.
    #[must_use]
    pub fn new(share: f64, rates: &BTreeMap<Action, Rate>, now: Time) -> Self {
        let budget = |action| {
            let rate = rates.get(&action).copied();
            let full = rate.unwrap_or_else(|| default_rate(action)).share(share);
            Budget {
                full,
                bucket: Bucket::new(full, now),
                factor: 1.0,
                changed: now,
                throttled: 0,
            }
        };
        Self {
            by_action: Action::ALL.map(|action| (action, budget(action))).into(),
        }
    }

    /// Takes a call out of its budget.
    ///
    /// # Errors
    /// When there is none, with the time at which there is one.
    pub fn take(&mut self, action: Action, now: Time) -> Result<(), Time> {
        let Some(budget) = self.by_action.get_mut(&action) else {
            return Ok(());
        };
        budget.regain(now);
        budget.bucket.take(now)
    }

    /// The time from which on there is a call.
    #[must_use]
    pub fn ready_at(&self, action: Action, now: Time) -> Time {
        let budget = self.by_action.get(&action);
        budget.map_or(now, |it| it.bucket.ready_at(now))
    }

    /// EC2 throttled a call: the action's rate is halved, and comes back slowly.
    pub fn throttle(&mut self, action: Action, now: Time) {
        if let Some(budget) = self.by_action.get_mut(&action) {
            budget.throttle(now);
        }
    }

    /// The budgets for people to see.
    pub fn view(&self) -> impl Iterator<Item = BudgetView> {
        self.by_action.iter().map(|(action, it)| BudgetView {
            action: *action,
            full: it.full,
            factor: it.factor,
            throttled: it.throttled,
        })
    }
}

impl Budget {
    fn throttle(&mut self, now: Time) {
        self.throttled += 1;
        self.regain(now);
        self.bucket.drain(now);
        if self.factor < 1.0 && now.since(self.changed) < WAVE {
            return;
        }
        self.factor = (self.factor * CUT).max(FLOOR);
        self.changed = now;
        self.bucket.set_rate(self.full.share(self.factor), now);
    }

    fn regain(&mut self, now: Time) {
        while self.factor < 1.0 && now.since(self.changed) >= REGAINED_IN {
            self.factor = (self.factor + REGAINED).min(1.0);
            self.changed = self.changed.after(REGAINED_IN);
            self.bucket
                .set_rate(self.full.share(self.factor), self.changed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn budgets() -> Budgets {
        Budgets::new(SHARE, &BTreeMap::new(), at(0))
    }

    fn factor(budgets: &mut Budgets, action: Action, now: Time) -> f64 {
        let _taken = budgets.take(action, now).is_ok();
        budgets
            .view()
            .find(|it| it.action == action)
            .unwrap()
            .factor
    }

    fn assert_near(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-9, "{got} is not {expected}");
    }

    #[test]
    fn each_action_has_its_own_share_of_a_bucket() {
        let mut budgets = budgets();
        let count = |budgets: &mut Budgets, action, now| {
            (0..1000)
                .take_while(|_| budgets.take(action, now).is_ok())
                .count()
        };
        assert_eq!(count(&mut budgets, Action::Attach, at(0)), 40);
        assert_eq!(count(&mut budgets, Action::Create, at(0)), 80);
        assert_eq!(count(&mut budgets, Action::Attach, at(10)), 40);
        let rates = [(
            Action::Attach,
            Rate {
                burst: 10.0,
                per_second: 1.0,
            },
        )]
        .into();
        let mut set = Budgets::new(0.5, &rates, at(0));
        assert_eq!(count(&mut set, Action::Attach, at(0)), 5);
    }

    #[test]
    fn a_throttled_action_is_halved_down_to_a_tenth_and_regains_slowly() {
        let mut budgets = budgets();
        for (second, expected) in [(0, 0.5), (2, 0.25), (4, 0.125), (6, 0.1), (8, 0.1)] {
            budgets.throttle(Action::Create, at(second));
            assert_near(factor(&mut budgets, Action::Create, at(second)), expected);
        }
        assert_near(factor(&mut budgets, Action::Create, at(17)), 0.1);
        assert_near(factor(&mut budgets, Action::Create, at(18)), 0.15);
        assert_near(factor(&mut budgets, Action::Create, at(188)), 1.0);
        assert_near(factor(&mut budgets, Action::Attach, at(8)), 1.0);
    }

    #[test]
    fn calls_that_were_under_way_together_halve_it_once() {
        let mut budgets = budgets();
        for _ in 0..20 {
            budgets.throttle(Action::Attach, at(1));
        }
        assert_near(factor(&mut budgets, Action::Attach, at(1)), 0.5);
        let attach = budgets.view().find(|it| it.action == Action::Attach);
        assert_eq!(attach.unwrap().throttled, 20);
    }

    #[test]
    fn a_throttled_bucket_is_empty_and_fills_at_the_new_rate() {
        let mut budgets = budgets();
        budgets.throttle(Action::Attach, at(0));
        let next = budgets.take(Action::Attach, at(0)).unwrap_err();
        assert_eq!(next, Time::from_millis(501));
        assert_eq!(budgets.ready_at(Action::Attach, at(0)), next);
    }
}
