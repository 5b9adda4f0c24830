//! The reasons that a node does not get on, and the one line of its status about it.

use std::time::Duration;

use cloud::Failure;
use cloud::node::{Condition, Reason as Cause};
use ipam::Time;
use jiff::Timestamp;
use kubernetes::operation::report::{Reason, Report};

use crate::Moment;

/// A reason that lasts less long is not written.
const HOLD: Duration = Duration::from_secs(10);
/// Minimum interval of rewriting a line whose reason stays.
const REWRITTEN: Duration = Duration::from_mins(1);

/// A reason for which a node does not get on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) reason: Reason,
    pub(crate) text: String,
    /// The next try.
    pub(crate) until: Option<Time>,
}

impl Obstacle {
    pub(crate) fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self {
            reason,
            text: text.into(),
            until: None,
        }
    }

    /// A read of EC2 failed, and nothing is known before it succeeds.
    pub(crate) fn unread(call: &str, failure: &Failure) -> Self {
        let text = match failure.code.as_str() {
            "" => format!("{call}: no answer: {}", failure.message),
            code => format!("{call}: {code}: {}", failure.message),
        };
        Self::new(reason(Cause::of(failure.class)), text)
    }
}

impl From<&Condition> for Obstacle {
    fn from(condition: &Condition) -> Self {
        Self {
            reason: reason(condition.reason),
            text: condition.detail.clone(),
            until: condition.until,
        }
    }
}

fn reason(cause: Cause) -> Reason {
    match cause {
        Cause::NotReady | Cause::Listing | Cause::UnlistedAddresses => Reason::NotReady,
        Cause::StaticIpMissing => Reason::StaticIpMissing,
        Cause::UnknownType => Reason::UnknownType,
        Cause::InstanceGone => Reason::InstanceGone,
        Cause::NotRunning => Reason::NotRunning,
        Cause::AtCapacity | Cause::AtMaxAllocate | Cause::NoIpv6 => Reason::AtCapacity,
        Cause::NoSubnet => Reason::NoSubnet,
        Cause::SubnetFull => Reason::SubnetFull,
        Cause::NoSecurityGroup => Reason::NoSecurityGroup,
        Cause::TwoPools => Reason::TwoPools,
        Cause::Throttled => Reason::Throttled,
        Cause::Denied => Reason::Denied,
        Cause::QuotaExceeded => Reason::QuotaExceeded,
        Cause::Credentials => Reason::Credentials,
        Cause::Unanswered | Cause::Refused => Reason::CallFailed,
    }
}

/// The reasons that a node does not get on, and those of them that others have read.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    /// The reasons, those of the plan included.
    pub(crate) obstacles: Vec<Obstacle>,
    shown: Shown,
    /// The warning of the kubelet's number that an event was recorded for.
    pub(crate) max_pods_warning: Option<String>,
}

impl Reported {
    /// The line about the first of the obstacles.
    pub(crate) fn update(&mut self, at: Moment) -> Line {
        self.shown.update(&self.obstacles, at)
    }

    /// The object is another one, whose status has no line.
    pub(crate) fn forget_line(&mut self) {
        self.shown = Shown::default();
    }
}

/// The line in a node's status.
#[derive(Clone, Debug, Default)]
struct Shown {
    /// The reason that holds now, and since when.
    candidate: Option<(Reason, Moment)>,
    /// The line, and when it was made.
    line: Option<(Report, Time)>,
}

/// The line to show, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The line; none while the one that is there stays.
    pub(crate) text: Option<String>,
    /// It has a reason that the line before did not have.
    pub(crate) is_new: bool,
    /// The time of the line's next check.
    pub(crate) again: Option<Time>,
}

impl Shown {
    /// The line about the first of the obstacles.
    fn update(&mut self, obstacles: &[Obstacle], at: Moment) -> Line {
        let Some(first) = obstacles.first() else {
            *self = Self::default();
            return Line {
                text: Some(String::new()),
                is_new: false,
                again: None,
            };
        };
        let same = self.candidate.filter(|(reason, _)| *reason == first.reason);
        let (_, since) = *self.candidate.insert(same.unwrap_or((first.reason, at)));
        if at.now.since(since.now) < HOLD {
            return Line {
                text: None,
                is_new: false,
                again: Some(since.now.after(HOLD)),
            };
        }
        let report = Report {
            reason: first.reason,
            text: first.text.clone(),
            since: second(since.date).to_string(),
            next: first.until.map(|until| date_of(until, at).to_string()),
        };
        self.replace(report, at)
    }

    fn replace(&mut self, report: Report, at: Moment) -> Line {
        let keep = |line: &Report, again| Line {
            text: Some(line.to_string()),
            is_new: false,
            again,
        };
        match &self.line {
            Some((line, _)) if *line == report => return keep(line, None),
            Some((line, made))
                if line.reason == report.reason && at.now.since(*made) < REWRITTEN =>
            {
                return keep(line, Some(made.after(REWRITTEN)));
            }
            _ => {}
        }
        let before = self.line.as_ref().map(|(line, _)| line.reason);
        let line = Line {
            text: Some(report.to_string()),
            is_new: before != Some(report.reason),
            again: None,
        };
        self.line = Some((report, at.now));
        line
    }
}

/// The time of day of a moment of the operator's own clock.
pub(crate) fn date_of(time: Time, at: Moment) -> Timestamp {
    let ahead = time.since(at.now);
    let date = at.date.checked_add(ahead).unwrap_or(Timestamp::MAX);
    second(date)
}

fn second(date: Timestamp) -> Timestamp {
    Timestamp::from_second(date.as_second()).unwrap_or(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        let date = i64::try_from(1_769_860_800 + seconds).unwrap();
        Moment {
            now: Time::from_millis(seconds * 1000),
            date: Timestamp::from_second(date).unwrap(),
        }
    }

    fn full(text: &str) -> [Obstacle; 1] {
        [Obstacle::new(Reason::SubnetFull, text)]
    }

    #[test]
    fn a_short_reason_leaves_the_line_as_it_is() {
        let mut shown = Shown::default();
        let line = shown.update(&full("a"), at(0));
        assert_eq!((line.text, line.again), (None, Some(at(10).now)));
        assert_eq!(shown.update(&full("a"), at(9)).text, None);
        assert_eq!(shown.update(&[], at(10)).text, Some(String::new()));
        assert_eq!(shown.update(&full("a"), at(11)).text, None);
    }

    #[test]
    fn a_lasting_reason_is_written_once_and_its_details_each_minute() {
        let mut shown = Shown::default();
        shown.update(&full("a"), at(0));
        let line = shown.update(&full("a"), at(10));
        let expected = "SubnetFull: a, since 2026-01-31T12:00:00Z";
        assert_eq!(line.text.as_deref(), Some(expected));
        assert!(line.is_new);
        let line = shown.update(&full("b"), at(69));
        assert_eq!(line.text.as_deref(), Some(expected));
        assert_eq!(line.again, Some(at(70).now));
        let line = shown.update(&full("b"), at(70));
        assert_eq!(
            line.text.as_deref(),
            Some("SubnetFull: b, since 2026-01-31T12:00:00Z")
        );
        assert!(!line.is_new);
        assert_eq!(shown.update(&[], at(71)).text, Some(String::new()));
    }

    #[test]
    fn another_reason_has_a_time_of_its_own_and_a_next_try() {
        let mut shown = Shown::default();
        shown.update(&full("a"), at(0));
        shown.update(&full("a"), at(10));
        let denied = [Obstacle {
            until: Some(at(300).now),
            ..Obstacle::new(Reason::Denied, "no right")
        }];
        assert_eq!(shown.update(&denied, at(20)).text, None);
        let line = shown.update(&denied, at(30));
        let expected =
            "Denied: no right, since 2026-01-31T12:00:20Z, next try 2026-01-31T12:05:00Z";
        assert_eq!(line.text.as_deref(), Some(expected));
        assert!(line.is_new);
    }
}
