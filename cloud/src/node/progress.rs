//! A node's progress: the call in flight, and the waits after calls that failed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipam::Time;
use ipnet::IpNet;

use super::{Condition, Reason, Step};
use crate::{Action, Class, Failure, InstanceId};

/// Tries of a device index before a wait.
pub(super) const INDEX_TRIES: u32 = 5;

/// A node's progress.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The instance that the rest is about.
    pub(super) instance: Option<InstanceId>,
    /// The call in flight.
    pub(super) in_flight: Option<Step>,
    /// A call without an answer.
    pub(super) unanswered: Option<Unanswered>,
    /// The first of the tokens in a row that another call had used. A listing that begins some time
    /// later shows the ENIs of them.
    pub(super) relist: Option<Time>,
    /// Indices that EC2 found taken.
    pub(super) taken_indices: BTreeSet<u16>,
    /// Tries since the last wait.
    pub(super) index_tries: u32,
    /// Tokens that are used up.
    pub(super) salt: u32,
    /// EC2 has no such instance.
    pub(super) gone: Option<Wait>,
    waits: BTreeMap<Action, Wait>,
}

/// A call without an answer.
#[derive(Clone, Debug)]
pub(super) struct Unanswered {
    pub(super) step: Step,
    /// Reads that begin from then on show if the call took effect.
    pub(super) reads_from: Time,
    /// The blocks that the ENI had before.
    pub(super) before: BTreeSet<IpNet>,
}

/// A wait after a call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The failure.
    pub failure: Failure,
    /// Failures in a row.
    pub count: u32,
    /// The last failure's time.
    pub since: Time,
    /// The next try.
    pub until: Time,
}

impl Wait {
    fn after(last: Option<&Self>, failure: &Failure, now: Time) -> Self {
        let count = last.map_or(0, |it| it.count).saturating_add(1);
        Self {
            failure: failure.clone(),
            count,
            since: now,
            until: now.after(delay(failure.class, count)),
        }
    }

    /// The wait as a condition.
    #[must_use]
    pub fn condition(&self) -> Condition {
        let reason = Reason::of(self.failure.class);
        Condition::new(reason, &self.failure).until(self.until)
    }
}

/// The wait after so many failures of a class in a row.
fn delay(class: Class, count: u32) -> Duration {
    let (first, longest) = match class {
        Class::Throttled => return Duration::ZERO,
        Class::NotFound | Class::Unanswered | Class::AddressTaken => {
            (Duration::from_secs(1), Duration::from_secs(8))
        }
        Class::InstanceGone => (Duration::from_mins(1), Duration::from_mins(10)),
        Class::NotNow | Class::IndexTaken => (Duration::from_secs(5), Duration::from_mins(1)),
        _ => (Duration::from_mins(1), Duration::from_mins(30)),
    };
    let factor = 1 << count.saturating_sub(1).min(10);
    longest.min(first.saturating_mul(factor))
}

impl Progress {
    /// Reports if a call is in flight.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The blocks of release calls whose outcome is not known.
    #[must_use]
    pub fn taking(&self) -> BTreeSet<IpNet> {
        let lost = self.unanswered.as_ref().map(|it| &it.step);
        let steps = self.in_flight.iter().chain(lost);
        let blocks = steps.filter_map(|step| match step {
            Step::Unassign { blocks, .. } => Some(blocks),
            _ => None,
        });
        blocks.flatten().copied().collect()
    }

    /// Resets the progress of a node whose instance has changed.
    pub(super) fn turn_to(&mut self, instance: Option<&InstanceId>) {
        if self.instance.as_ref() != instance {
            *self = Self {
                instance: instance.cloned(),
                ..Self::default()
            };
        }
    }

    /// Lets a call wait.
    pub(super) fn delay(&mut self, failure: &Failure, now: Time) {
        let wait = Wait::after(self.waits.get(&failure.action), failure, now);
        self.waits.insert(failure.action, wait);
    }

    /// The instance is gone, as far as EC2 says.
    pub(super) fn lose_instance(&mut self, failure: &Failure, now: Time) {
        self.gone = Some(Wait::after(self.gone.as_ref(), failure, now));
    }

    /// A call went through.
    pub(super) fn succeed(&mut self, action: Action) {
        self.waits.remove(&action);
        // A loose ENI says nothing about the instance.
        if !matches!(action, Action::Create | Action::Delete) {
            self.gone = None;
        }
    }

    /// The wait of a call, if it has one now.
    #[must_use]
    pub fn wait(&self, action: Action, now: Time) -> Option<&Wait> {
        self.waits.get(&action).filter(|it| it.until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_by_class() {
        let cases = [
            ("InvalidNetworkInterfaceID.NotFound", &[1, 2, 4, 8, 8][..]),
            ("IncorrectState", &[5, 10, 20, 40, 60, 60]),
            ("MissingParameter", &[60, 120, 240, 480, 960, 1800, 1800]),
            ("RequestLimitExceeded", &[0, 0]),
        ];
        for (code, delays) in cases {
            let (mut progress, now) = (Progress::default(), Time::from_millis(1000));
            let failure = Failure::answered(Action::Attach, 400, code, "");
            for delay in delays {
                progress.delay(&failure, now);
                let wait = &progress.waits[&Action::Attach];
                assert_eq!(wait.until.since(now), Duration::from_secs(*delay), "{code}");
            }
            progress.succeed(Action::Attach);
            assert_eq!(progress.wait(Action::Attach, now), None);
        }
    }

    #[test]
    fn a_lost_instance_is_tried_after_one_to_ten_minutes() {
        let (mut progress, now) = (Progress::default(), Time::default());
        let failure = Failure::answered(Action::Attach, 400, "InvalidInstanceID.NotFound", "");
        for minutes in [1, 2, 4, 8, 10, 10] {
            progress.lose_instance(&failure, now);
            let until = progress.gone.as_ref().map(|it| it.until);
            assert_eq!(until, Some(now.after(Duration::from_mins(minutes))));
        }
    }
}
