//! The queue of calls that wait for their budget, by need.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipam::Time;

use super::Budgets;
use crate::Action;

/// A call that waited so long goes before every need, so that none waits over five minutes while
/// the budget has calls at all.
pub const MAX_WAIT: Duration = Duration::from_mins(4);

/// The need for a call, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// A node has no addresses at all.
    NoAddresses,
    /// Pods wait for an address.
    WaitingPods,
    /// A node has fewer spare addresses than it should.
    Deficit,
    /// Something is to be put in order: marks, groups, ENIs that are not wanted.
    Order,
    /// ENIs of the past are deleted.
    Sweep,
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<K> {
    /// Its owner; each has one call at a time.
    pub key: K,
    /// The call.
    pub action: Action,
    /// The need.
    pub need: Need,
    /// The time since when it waits.
    pub since: Time,
}

/// The queue.
#[derive(Clone, Debug)]
pub struct Queue<K> {
    entries: BTreeMap<K, Entry<K>>,
    lanes: BTreeMap<Action, Lane<K>>,
}

/// The entries of one action, in both orders.
#[derive(Clone, Debug)]
struct Lane<K> {
    by_need: BTreeSet<(Need, Time, K)>,
    by_age: BTreeSet<(Time, K)>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            lanes: BTreeMap::new(),
        }
    }
}

impl<K> Default for Lane<K> {
    fn default() -> Self {
        Self {
            by_need: BTreeSet::new(),
            by_age: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Ord> Queue<K> {
    /// Calls that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reports if no call waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All calls that wait.
    pub fn iter(&self) -> impl Iterator<Item = &Entry<K>> {
        self.entries.values()
    }

    /// Adds a call. An owner's earlier call is replaced. Its waiting time counts on if it was for
    /// the same action.
    pub fn push(&mut self, mut entry: Entry<K>) {
        if let Some(old) = self.remove(&entry.key)
            && old.action == entry.action
        {
            entry.since = entry.since.min(old.since);
        }
        let lane = self.lanes.entry(entry.action).or_default();
        lane.by_need
            .insert((entry.need, entry.since, entry.key.clone()));
        lane.by_age.insert((entry.since, entry.key.clone()));
        self.entries.insert(entry.key.clone(), entry);
    }

    /// Takes an owner's call out.
    pub fn remove(&mut self, key: &K) -> Option<Entry<K>> {
        let entry = self.entries.remove(key)?;
        if let Some(lane) = self.lanes.get_mut(&entry.action) {
            lane.by_need.remove(&(entry.need, entry.since, key.clone()));
            lane.by_age.remove(&(entry.since, key.clone()));
        }
        Some(entry)
    }

    /// The next call that its budget allows. A throttled call is pushed back as it is, and stays
    /// before all that came later.
    pub fn pop(&mut self, budgets: &mut Budgets, now: Time) -> Option<Entry<K>> {
        let mut firsts: Vec<_> = self.lanes.values().filter_map(|it| it.first(now)).collect();
        firsts.sort_unstable();
        let keys: Vec<K> = firsts.into_iter().map(|(_, _, key)| key.clone()).collect();
        for key in keys {
            let entry = self.entries.get(&key)?;
            if budgets.take(entry.action, now).is_ok() {
                return self.remove(&key);
            }
        }
        None
    }

    /// The time at which a waiting call has its budget; none where no call waits.
    #[must_use]
    pub fn ready_at(&self, budgets: &Budgets, now: Time) -> Option<Time> {
        let waiting = self
            .lanes
            .iter()
            .filter(|(_, lane)| !lane.by_age.is_empty());
        waiting
            .map(|(action, _)| budgets.ready_at(*action, now))
            .min()
    }
}

impl<K: Ord> Lane<K> {
    /// The first entry: the oldest one if it waited too long, or else the most needed one. Entries
    /// without patience compare as less than every need.
    fn first(&self, now: Time) -> Option<(Option<Need>, Time, &K)> {
        let (since, oldest) = self.by_age.first()?;
        if now.since(*since) >= MAX_WAIT {
            return Some((None, *since, oldest));
        }
        let (need, since, key) = self.by_need.first()?;
        Some((Some(*need), *since, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::budget::{Rate, SHARE};
    use proptest::prelude::*;

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn entry(key: u32, action: Action, need: Need, since: u64) -> Entry<u32> {
        Entry {
            key,
            action,
            need,
            since: at(since),
        }
    }

    fn budgets(burst: f64, per_second: f64) -> Budgets {
        let rates = Action::ALL.map(|action| (action, Rate { burst, per_second }));
        Budgets::new(1.0, &rates.into(), at(0))
    }

    fn drain(queue: &mut Queue<u32>, budgets: &mut Budgets, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(budgets, at(now)))
            .map(|it| it.key)
            .collect()
    }

    #[test]
    fn need_goes_first_and_then_age() {
        let mut queue = Queue::default();
        queue.push(entry(1, Action::Create, Need::Deficit, 1));
        queue.push(entry(2, Action::Delete, Need::Sweep, 0));
        queue.push(entry(3, Action::Create, Need::NoAddresses, 3));
        queue.push(entry(4, Action::Create, Need::NoAddresses, 2));
        queue.push(entry(5, Action::Assign, Need::WaitingPods, 3));
        let mut budgets = budgets(10.0, 1.0);
        assert_eq!(drain(&mut queue, &mut budgets, 5), [4, 3, 5, 1, 2]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_empty_bucket_holds_its_own_action_alone() {
        let mut queue = Queue::default();
        for key in 0..4 {
            queue.push(entry(key, Action::Create, Need::NoAddresses, 0));
        }
        queue.push(entry(9, Action::Modify, Need::Order, 0));
        let mut budgets = budgets(2.0, 1.0);
        assert_eq!(drain(&mut queue, &mut budgets, 0), [0, 1, 9]);
        let ready = queue.ready_at(&budgets, at(0)).unwrap();
        assert_eq!(ready, Time::from_millis(1001));
        assert_eq!(queue.pop(&mut budgets, ready).map(|it| it.key), Some(2));
        assert_eq!(Queue::<u32>::default().ready_at(&budgets, at(0)), None);
    }

    #[test]
    fn a_call_that_is_pushed_back_keeps_its_place_and_a_changed_one_its_age() {
        let mut queue = Queue::default();
        let mut budgets = budgets(10.0, 1.0);
        queue.push(entry(1, Action::Create, Need::Deficit, 0));
        queue.push(entry(2, Action::Create, Need::Deficit, 1));
        let throttled = queue.pop(&mut budgets, at(1)).unwrap();
        queue.push(throttled);
        queue.push(entry(2, Action::Create, Need::Deficit, 50));
        assert_eq!(queue.len(), 2);
        let since: Vec<u64> = queue.iter().map(|it| it.since.as_millis()).collect();
        assert_eq!(since, [0, 1000]);
        assert_eq!(drain(&mut queue, &mut budgets, 60), [1, 2]);
        queue.push(entry(1, Action::Create, Need::Deficit, 0));
        queue.push(entry(1, Action::Attach, Need::Deficit, 70));
        assert_eq!(queue.remove(&1).unwrap().since, at(70));
    }

    #[test]
    fn no_call_waits_over_five_minutes_behind_more_needed_ones() {
        let mut queue = Queue::default();
        let mut budgets = budgets(1.0, 1.0);
        queue.push(entry(0, Action::Delete, Need::Sweep, 0));
        let served = (1..600).find(|second| {
            let key = u32::try_from(*second).unwrap();
            queue.push(entry(key, Action::Delete, Need::NoAddresses, *second));
            drain(&mut queue, &mut budgets, *second).contains(&0)
        });
        let served = served.unwrap();
        assert!((240..300).contains(&served), "{served}");
    }

    proptest! {
        #[test]
        fn every_call_comes_out_once(
            calls in prop::collection::vec((0_u32..20, 0_usize..8, 0_u64..300), 0..60),
        ) {
            let needs = [Need::NoAddresses, Need::WaitingPods, Need::Deficit, Need::Sweep];
            let mut queue = Queue::default();
            let mut owners = BTreeSet::new();
            for (key, action, since) in calls {
                owners.insert(key);
                let need = needs[action % needs.len()];
                queue.push(entry(key, Action::ALL[action], need, since));
            }
            let mut budgets = Budgets::new(SHARE, &BTreeMap::new(), at(0));
            let mut out = drain(&mut queue, &mut budgets, 300);
            out.sort_unstable();
            prop_assert_eq!(out, owners.into_iter().collect::<Vec<_>>());
            let mut lanes = queue.lanes.values();
            prop_assert!(lanes.all(|it| it.by_age.is_empty() && it.by_need.is_empty()));
        }
    }
}
