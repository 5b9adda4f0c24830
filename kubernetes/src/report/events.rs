//! Events about objects of the cluster: one for each object, reason and problem, counted, and
//! written at a limited rate.
//!
//! Callers must not wait for the API server. A pod that is retried every second must not cause a
//! write every second.

use std::collections::BTreeMap;
use std::time::Duration;

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Its `apiVersion`.
    pub api_version: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl Subject {
    /// A Node as the kubelet refers to it, by which `kubectl describe node` finds the events: the uid is
    /// the name.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self {
            api_version: "v1",
            kind: "Node",
            namespace: String::new(),
            name: name.to_owned(),
            uid: name.to_owned(),
        }
    }
}

/// The reason of an event, in one word (`PoolExhausted`).
pub type Reason = &'static str;

/// Something that has happened to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The object.
    pub subject: Subject,
    /// The event's reason: one word in `CamelCase`.
    pub reason: Reason,
    /// One of several problems that the object may have for this reason; empty where there is one.
    pub problem: String,
    /// The text.
    pub message: String,
}

/// One event, as it is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its subject.
    pub subject: Subject,
    /// Why, in one word.
    pub reason: Reason,
    /// Which of several problems of one reason it is; empty where there is but one.
    pub problem: String,
    /// Why, in a sentence: that of the last time.
    pub message: String,
    /// Number of times that it happened.
    pub count: u32,
    /// When it happened first.
    pub first: Duration,
    /// When it happened last.
    pub last: Duration,
}

/// Reasons that need no action. All others are warnings.
const NORMAL: [Reason; 2] = ["BlocksReleased", "BlocksClaimedAgain"];

impl Report {
    /// The `type` of the event.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if NORMAL.contains(&self.reason) {
            "Normal"
        } else {
            "Warning"
        }
    }
}

type Key = (Subject, Reason, String);

#[derive(Debug)]
struct Entry {
    report: Report,
    /// Number of times at its last write.
    written: u32,
    /// True if the cluster has it.
    is_there: bool,
    /// When it can be written next.
    due: Duration,
    /// The minimum time to the next write.
    wait: Duration,
}

/// The reports, and the times of their writes. Times are since any moment, on a clock that does not
/// jump.
#[derive(Debug, Default)]
pub struct Reports {
    entries: BTreeMap<Key, Entry>,
    /// When each of the last writes was.
    writes: Vec<Duration>,
    /// Until when there is none.
    barred: Duration,
}

impl Reports {
    /// The time between the first two writes of one event. It doubles with each ...
    pub const INTERVAL: Duration = Duration::from_secs(5);
    /// ... up to this.
    pub const INTERVAL_MAX: Duration = Duration::from_mins(5);
    /// At most so many are written ...
    pub const BURST: usize = 10;
    /// ... within this time.
    pub const WINDOW: Duration = Duration::from_secs(30);
    /// The time after which a report that has not recurred is a new one.
    pub const MEMORY: Duration = Duration::from_mins(15);
    /// At most so many are remembered.
    pub const MOST: usize = 512;

    /// Something has happened. A new one is not taken where there are too many already.
    pub fn happened(&mut self, now: Duration, occurrence: Occurrence) {
        let Occurrence {
            subject,
            reason,
            problem,
            message,
        } = occurrence;
        self.entries
            .retain(|_, entry| entry.is_unwritten() || entry.report.last + Self::MEMORY > now);
        let key = (subject, reason, problem);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.report.count = entry.report.count.saturating_add(1);
            entry.report.last = now;
            entry.report.message = message;
        } else if self.entries.len() < Self::MOST {
            let report = Report {
                subject: key.0.clone(),
                reason,
                problem: key.2.clone(),
                message,
                count: 1,
                first: now,
                last: now,
            };
            let entry = Entry {
                report,
                written: 0,
                is_there: false,
                due: now,
                wait: Self::INTERVAL,
            };
            self.entries.insert(key, entry);
        }
    }

    /// When something is to be written; nothing while there is nothing.
    #[must_use]
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let unwritten = self.entries.values().filter(|entry| entry.is_unwritten());
        let due = unwritten.map(|entry| entry.due).min()?;
        Some(due.max(self.barred).max(self.room(now)))
    }

    /// When the next write fits into the window.
    fn room(&self, now: Duration) -> Duration {
        let oldest = self.writes.iter().rev().nth(Self::BURST - 1);
        oldest.map_or(now, |oldest| *oldest + Self::WINDOW)
    }

    /// The report to write now, and true if its event exists already. It counts as written.
    pub fn next(&mut self, now: Duration) -> Option<(Report, bool)> {
        if self.due(now)? > now {
            return None;
        }
        let ready = |entry: &&mut Entry| entry.is_unwritten() && entry.due <= now;
        let entry = self
            .entries
            .values_mut()
            .filter(ready)
            .min_by_key(|entry| entry.due)?;
        entry.written = entry.report.count;
        entry.due = now + entry.wait;
        entry.wait = (entry.wait * 2).min(Self::INTERVAL_MAX);
        self.writes.retain(|at| *at + Self::WINDOW > now);
        self.writes.push(now);
        Some((entry.report.clone(), entry.is_there))
    }

    /// The cluster has the event.
    pub fn written(&mut self, report: &Report) {
        if let Some(entry) = self.entry(report) {
            entry.is_there = true;
        }
    }

    /// A write has failed: nothing is written for a while, and what was to be is written then.
    pub fn failed(&mut self, now: Duration, report: &Report) {
        self.barred = now + Self::WINDOW;
        if let Some(entry) = self.entry(report) {
            entry.written = 0;
        }
    }

    /// The event is not there any more, or cannot be: whatever happens next begins a new one.
    pub fn gone(&mut self, report: &Report) {
        self.entries.remove(&report.key());
    }

    fn entry(&mut self, report: &Report) -> Option<&mut Entry> {
        self.entries.get_mut(&report.key())
    }
}

impl Report {
    fn key(&self) -> Key {
        (self.subject.clone(), self.reason, self.problem.clone())
    }
}

impl Entry {
    fn is_unwritten(&self) -> bool {
        self.report.count > self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn subject(name: &str) -> Subject {
        Subject {
            api_version: "v1",
            kind: "Pod",
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
        }
    }

    /// An occurrence of an object's only problem.
    fn occurrence(name: &str, reason: Reason) -> Occurrence {
        Occurrence {
            subject: subject(name),
            reason,
            problem: String::new(),
            message: String::new(),
        }
    }

    fn happens(reports: &mut Reports, now: u64, name: &str) {
        let occurrence = Occurrence {
            message: format!("at {now}"),
            ..occurrence(name, "PoolExhausted")
        };
        reports.happened(at(now), occurrence);
    }

    /// The writes at a time: name, count, and true for an event that exists already.
    fn writes(reports: &mut Reports, now: u64) -> Vec<(String, u32, bool)> {
        let mut all = Vec::new();
        while let Some((report, is_there)) = reports.next(at(now)) {
            reports.written(&report);
            all.push((report.subject.name, report.count, is_there));
        }
        all
    }

    #[test]
    fn one_event_is_written_at_once_and_then_counted() {
        let mut reports = Reports::default();
        assert_eq!(reports.due(at(0)), None);
        happens(&mut reports, 0, "web");
        assert_eq!(writes(&mut reports, 0), [("web".to_owned(), 1, false)]);
        for now in 1..5 {
            happens(&mut reports, now, "web");
            assert!(writes(&mut reports, now).is_empty());
        }
        assert_eq!(reports.due(at(4)), Some(at(5)));
        let (report, is_there) = reports.next(at(5)).unwrap();
        assert!(is_there);
        assert_eq!((report.count, report.first, report.last), (5, at(0), at(4)));
        assert_eq!(report.message, "at 4");
        assert_eq!(reports.due(at(6)), None, "nothing has happened since");
        let mut written = Vec::new();
        for now in 6..3600 {
            happens(&mut reports, now, "web");
            written.extend(reports.next(at(now)).map(|_| now));
        }
        let seldom = [15, 35, 75, 155, 315];
        assert_eq!(written[..5], seldom);
        assert_eq!(written.len(), 15, "then every five minutes");
        // Another cause, another object: an event of its own.
        reports.happened(at(3600), occurrence("web", "PoolUnknown"));
        happens(&mut reports, 3600, "other");
        assert_eq!(writes(&mut reports, 3600).len(), 2);
    }

    #[test]
    fn each_problem_of_one_object_and_reason_is_an_event_of_its_own() {
        let mut reports = Reports::default();
        let mut happens = |now, problem: &str| {
            let occurrence = Occurrence {
                problem: problem.to_owned(),
                message: format!("{problem}!"),
                ..occurrence("node-1", "RefusedEntry")
            };
            reports.happened(at(now), occurrence);
        };
        happens(0, "one");
        happens(0, "two");
        happens(1, "one");
        let mut written = Vec::new();
        while let Some((report, is_there)) = reports.next(at(1)) {
            assert!(!is_there);
            reports.written(&report);
            written.push((report.message, report.count));
        }
        written.sort();
        assert_eq!(written, [("one!".to_owned(), 2), ("two!".to_owned(), 1)]);
        let again = Occurrence {
            problem: "two".to_owned(),
            ..occurrence("node-1", "RefusedEntry")
        };
        reports.happened(at(9), again);
        let (report, is_there) = reports.next(at(9)).unwrap();
        assert_eq!((report.problem.as_str(), is_there), ("two", true));
        reports.gone(&report);
        assert_eq!(reports.entries.len(), 1);
    }

    #[test]
    fn many_objects_share_what_may_be_written() {
        let mut reports = Reports::default();
        for number in 0..100 {
            happens(&mut reports, 0, &format!("web-{number}"));
        }
        assert_eq!(writes(&mut reports, 0).len(), Reports::BURST);
        assert!(writes(&mut reports, 29).is_empty());
        assert_eq!(reports.due(at(29)), Some(at(30)));
        assert_eq!(writes(&mut reports, 30).len(), Reports::BURST);
        for number in 0..1000 {
            happens(&mut reports, 31, &format!("more-{number}"));
        }
        assert_eq!(reports.entries.len(), Reports::MOST);
    }

    #[test]
    fn a_failure_is_tried_again_later_with_all_that_happened() {
        let mut reports = Reports::default();
        happens(&mut reports, 0, "web");
        let (report, _) = reports.next(at(0)).unwrap();
        reports.failed(at(0), &report);
        happens(&mut reports, 1, "web");
        assert!(writes(&mut reports, 29).is_empty());
        assert_eq!(writes(&mut reports, 30), [("web".to_owned(), 2, false)]);
        // The event was removed.
        happens(&mut reports, 31, "web");
        let (report, is_there) = reports.next(at(60)).unwrap();
        assert!(is_there);
        reports.gone(&report);
        happens(&mut reports, 61, "web");
        assert_eq!(writes(&mut reports, 61), [("web".to_owned(), 1, false)]);
    }

    #[test]
    fn what_has_not_happened_for_long_begins_anew() {
        let mut reports = Reports::default();
        happens(&mut reports, 0, "web");
        writes(&mut reports, 0);
        happens(&mut reports, 2000, "web");
        assert_eq!(writes(&mut reports, 2000), [("web".to_owned(), 1, false)]);
        assert_eq!(reports.entries.len(), 1);
    }
}
