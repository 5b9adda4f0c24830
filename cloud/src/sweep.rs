//! The sweep: ENIs that the cluster's operators created and that nothing holds any more.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam::Time;
use jiff::Timestamp;

use crate::object::tags;
use crate::{Eni, EniId, Failure};

/// Listings so far apart have to show the ENI. An operator can be about to attach a younger one. Times
/// of day have no part in it, since they can jump.
pub const AGE: Duration = Duration::from_mins(10);

/// Loose ENIs of one cluster.
#[derive(Clone, Debug)]
pub struct Sweep {
    cluster: String,
    seen: BTreeMap<EniId, Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    first: Time,
    last: Time,
    created: Timestamp,
    failures: u32,
    last_failure: Option<Failure>,
}

/// An ENI that the sweep could not delete, for people to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The ENI.
    pub eni: EniId,
    /// Failures in a row.
    pub failures: u32,
    /// The last one.
    pub failure: Failure,
}

/// The decision on an ENI that was checked once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be deleted now.
    Delete,
    /// It is not loose any more, or not the cluster's.
    Keep,
    /// It is gone.
    Gone,
}

/// A sweep without the name of a cluster could take what is another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster-name is empty, expected the cluster's name: it identifies the cluster's ENIs")]
pub struct NoClusterError;

impl Sweep {
    /// A sweep that has seen nothing.
    ///
    /// # Errors
    /// When the cluster has no name.
    pub fn new(cluster: &str) -> Result<Self, NoClusterError> {
        if cluster.trim().is_empty() {
            return Err(NoClusterError);
        }
        Ok(Self {
            cluster: cluster.to_owned(),
            seen: BTreeMap::new(),
        })
    }

    /// Updates from a complete listing of loose ENIs. ENIs of nodes for which `is_served` is true
    /// are left to those nodes. Returns the ENIs whose time of creation cannot be read; they are
    /// kept.
    pub fn observe<'a>(
        &mut self,
        begun: Time,
        listing: impl IntoIterator<Item = &'a Eni>,
        is_served: impl Fn(&crate::InstanceId) -> bool,
    ) -> Vec<tags::CreatedAtError> {
        let mut unreadable = Vec::new();
        let mut seen = BTreeMap::new();
        for eni in listing {
            if !self.is_candidate(eni) {
                continue;
            }
            if tags::instance_of(&eni.tags, &self.cluster).is_some_and(|it| is_served(&it)) {
                continue;
            }
            match tags::created_at(&eni.id, &eni.tags) {
                Ok(created) => {
                    let new = Seen {
                        first: begun,
                        last: begun,
                        created,
                        failures: 0,
                        last_failure: None,
                    };
                    let known = self.seen.remove(&eni.id).unwrap_or(new);
                    let last = known.last.max(begun);
                    seen.insert(eni.id.clone(), Seen { last, ..known });
                }
                Err(error) => unreadable.push(error),
            }
        }
        self.seen = seen;
        unreadable
    }

    /// ENIs that can go, oldest first. Each is read by id and judged before it is deleted.
    #[must_use]
    pub fn due(&self) -> Vec<EniId> {
        let seen = self.seen.iter();
        let old = seen.filter(|(_, it)| it.last.since(it.first) >= AGE);
        let mut due: Vec<(Timestamp, &EniId)> = old.map(|(id, it)| (it.created, id)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id.clone()).collect()
    }

    /// Judges an ENI by what a read by id showed.
    #[must_use]
    pub fn judge(&self, read: Option<&Eni>) -> Verdict {
        match read {
            None => Verdict::Gone,
            Some(eni) if self.is_candidate(eni) => Verdict::Delete,
            Some(_) => Verdict::Keep,
        }
    }

    /// The ENI is gone, or it is kept.
    pub fn drop_eni(&mut self, eni: &EniId) {
        self.seen.remove(eni);
    }

    /// The ENI could not be deleted. It stays due.
    pub fn fail(&mut self, eni: &EniId, failure: Failure) {
        if let Some(seen) = self.seen.get_mut(eni) {
            seen.failures = seen.failures.saturating_add(1);
            seen.last_failure = Some(failure);
        }
    }

    /// ENIs that could not be deleted.
    #[must_use]
    pub fn leftovers(&self) -> Vec<Leftover> {
        let failed = self.seen.iter().filter_map(|(id, seen)| {
            Some(Leftover {
                eni: id.clone(),
                failures: seen.failures,
                failure: seen.last_failure.clone()?,
            })
        });
        failed.collect()
    }

    fn is_candidate(&self, eni: &Eni) -> bool {
        eni.is_loose() && eni.tags.get(tags::CLUSTER) == Some(&self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixture::{CLUSTER, attached, epoch, ours};
    use crate::{Action, InstanceId};

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn date(seconds: i64) -> Timestamp {
        Timestamp::from_second(epoch().as_second() + seconds).unwrap()
    }

    fn nobody(_: &InstanceId) -> bool {
        false
    }

    #[test]
    fn an_eni_goes_once_it_was_seen_for_ten_minutes_whenever_it_was_created() {
        for created in [date(-86_400), date(-600), date(0), date(86_400)] {
            let mut eni = ours("eni-1", "i-1");
            let tag = (tags::CREATED_AT.to_owned(), created.to_string());
            eni.tags.extend([tag]);
            let mut sweep = Sweep::new(CLUSTER).unwrap();
            for seconds in [0, 300, 599] {
                sweep.observe(at(seconds), [&eni], nobody);
                assert_eq!(sweep.due(), [], "{created} after {seconds} s");
            }
            sweep.observe(at(600), [&eni], nobody);
            assert_eq!(sweep.due(), [EniId::from("eni-1")], "{created}");
        }
    }

    #[test]
    fn a_listing_without_the_eni_starts_over() {
        let eni = ours("eni-1", "i-1");
        let mut sweep = Sweep::new(CLUSTER).unwrap();
        sweep.observe(at(0), [&eni], nobody);
        sweep.observe(at(200), [], nobody);
        sweep.observe(at(900), [&eni], nobody);
        assert_eq!(sweep.due(), []);
    }

    #[test]
    fn the_oldest_goes_first() {
        let (young, mut old) = (ours("eni-1", "i-1"), ours("eni-2", "i-1"));
        old.tags
            .insert(tags::CREATED_AT.to_owned(), date(-60).to_string());
        let mut sweep = Sweep::new(CLUSTER).unwrap();
        for begun in [0, 600] {
            sweep.observe(at(begun), [&young, &old], nobody);
        }
        assert_eq!(sweep.due(), [old.id, young.id]);
    }

    #[test]
    fn other_clusters_held_and_served_enis_are_left_alone() {
        let mut other = ours("eni-1", "i-1");
        other
            .tags
            .insert(tags::CLUSTER.to_owned(), "green".to_owned());
        let held = attached("eni-2", "i-1", 1);
        let served = ours("eni-3", "i-3");
        let mut sweep = Sweep::new(CLUSTER).unwrap();
        for begun in [0, 600] {
            sweep.observe(at(begun), [&other, &held, &served], |it| {
                it.as_str() == "i-3"
            });
        }
        assert_eq!(sweep.due(), []);
        assert_eq!(sweep.judge(Some(&other)), Verdict::Keep);
        assert_eq!(sweep.judge(Some(&held)), Verdict::Keep);
        assert_eq!(sweep.judge(Some(&served)), Verdict::Delete);
        assert_eq!(sweep.judge(None), Verdict::Gone);
    }

    #[test]
    fn an_unreadable_time_keeps_the_eni_and_is_named() {
        let mut eni = ours("eni-1", "i-1");
        eni.tags.remove(tags::CREATED_AT);
        let mut sweep = Sweep::new(CLUSTER).unwrap();
        let named = sweep.observe(at(0), [&eni], nobody);
        assert_eq!(named.len(), 1);
        sweep.observe(at(600), [&eni], nobody);
        assert_eq!(sweep.due(), []);
    }

    #[test]
    fn failures_are_counted_and_hide_no_other_eni() {
        let (one, two) = (ours("eni-1", "i-1"), ours("eni-2", "i-1"));
        let mut sweep = Sweep::new(CLUSTER).unwrap();
        for begun in [0, 600] {
            sweep.observe(at(begun), [&one, &two], nobody);
        }
        let failure = Failure::answered(Action::Delete, 400, "UnauthorizedOperation", "");
        for count in 1..=3 {
            sweep.fail(&one.id, failure.clone());
            assert_eq!(sweep.leftovers()[0].failures, count);
        }
        sweep.drop_eni(&two.id);
        assert_eq!(sweep.due(), [one.id]);
    }

    #[test]
    fn a_cluster_without_a_name_has_no_sweep() {
        let error = Sweep::new(" ").unwrap_err();
        assert!(error.to_string().starts_with("cluster-name is empty"));
    }
}
