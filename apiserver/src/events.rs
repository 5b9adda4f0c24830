//! The task that writes events about objects of the cluster. Reporters never wait.
//!
//! They are Events of the core API: every API server and every kubectl takes these, with counts.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
pub use kubernetes::report::events::Occurrence;
use kubernetes::report::events::{Report, Reports, Subject};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::client::REPLY_TIMEOUT;
use super::{cause, objects};

/// Number of occurrences that may wait to be counted; later ones are dropped.
const QUEUE: usize = 256;
/// Most characters of a message (`NoteLengthLimit` of the newer events' API).
const MESSAGE_MAX: usize = 1024;
/// Most characters of an object's name in the event's name, which may have 253.
const NAME_MAX: usize = 230;

/// The program that reports.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Its name.
    pub component: &'static str,
    /// The instance of it: the node that it runs on.
    pub instance: String,
}

/// Sender of events. It never waits.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<Occurrence>);

impl Events {
    /// A sender, and the queue that it fills.
    #[must_use]
    pub fn queue() -> (Self, mpsc::Receiver<Occurrence>) {
        let (sender, occurrences) = mpsc::channel(QUEUE);
        (Self(sender), occurrences)
    }

    /// Starts the task that writes events. It ends with the last clone of the sender. Must be called
    /// inside a tokio runtime.
    #[must_use]
    pub fn start(client: &Client, reporter: Reporter) -> Self {
        let (events, occurrences) = Self::queue();
        let task = Task {
            client: client.clone(),
            reporter,
            reports: Reports::default(),
            began: Instant::now(),
            trouble: None,
        };
        tokio::spawn(task.run(occurrences));
        events
    }

    /// Reports what has happened to an object.
    pub fn tell(&self, subject: Subject, reason: &'static str, message: String) {
        self.tell_problem(subject, reason, String::new(), message);
    }

    /// Reports one of several problems of an object, when it comes up and while it lasts.
    pub fn tell_problem(
        &self,
        subject: Subject,
        reason: &'static str,
        problem: String,
        message: String,
    ) {
        let occurrence = Occurrence {
            subject,
            reason,
            problem,
            message,
        };
        if self.0.try_send(occurrence).is_err() {
            tracing::debug!(reason, "an event is not counted: too many wait");
        }
    }
}

struct Task {
    client: Client,
    reporter: Reporter,
    reports: Reports,
    began: Instant,
    /// The cause of the failed writes since the last good one.
    trouble: Option<String>,
}

impl Task {
    async fn run(mut self, mut occurrences: mpsc::Receiver<Occurrence>) {
        loop {
            let due = self.reports.due(self.began.elapsed());
            let due = due.map(|due| self.began + due);
            tokio::select! {
                next = occurrences.recv() => match next {
                    Some(occurrence) => {
                        self.reports.happened(self.began.elapsed(), occurrence);
                    }
                    None => return,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.write().await;
                }
            }
        }
    }

    async fn write(&mut self) {
        let now = self.began.elapsed();
        let Some((report, is_there)) = self.reports.next(now) else {
            return;
        };
        let api = objects::events(&self.client, namespace(&report.subject));
        let event = Event {
            report: &report,
            reporter: &self.reporter,
            now,
            clock: Timestamp::now(),
        };
        let write = async {
            if is_there {
                let patch = Patch::Merge(event.news());
                let parameters = PatchParams::default();
                let patched = api.patch(&event.name(), &parameters, &patch).await;
                return patched.map(drop);
            }
            let object = serde_json::from_value(event.whole());
            let object = object.map_err(kube::Error::SerdeError)?;
            let made = api.create(&PostParams::default(), &object).await;
            made.map(drop)
        };
        match timeout(REPLY_TIMEOUT, write).await {
            Ok(Ok(())) => {
                self.trouble = None;
                self.reports.written(&report);
            }
            // An earlier try has made it after all.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                self.reports.written(&report);
            }
            // It was deleted, or its namespace is being deleted.
            Ok(Err(kube::Error::Api(status)))
                if matches!(status.code, 404) || is_ending(&status) =>
            {
                self.reports.gone(&report);
            }
            Ok(Err(error)) => self.failed(&report, &cause::chain(&error)),
            Err(_elapsed) => self.failed(&report, "the API server does not answer"),
        }
    }

    fn failed(&mut self, report: &Report, error: &str) {
        let reason = report.reason;
        // A cause that stays is logged once.
        if self.trouble.as_deref() == Some(error) {
            tracing::debug!(reason, "an event is not written: {error}");
        } else {
            tracing::warn!(reason, "an event is not written: {error}");
            self.trouble = Some(error.to_owned());
        }
        self.reports.failed(self.began.elapsed(), report);
    }
}

/// The namespace of an object's events.
const fn namespace(subject: &Subject) -> &str {
    if subject.namespace.is_empty() {
        "default"
    } else {
        subject.namespace.as_str()
    }
}

/// True if nothing can be made in a namespace any more.
fn is_ending(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut causes = causes.map(|cause| cause.reason.as_str());
    causes.any(|reason| reason == "NamespaceTerminating")
}

/// An event as an object.
struct Event<'a> {
    report: &'a Report,
    reporter: &'a Reporter,
    /// Now, on the clock of the report.
    now: Duration,
    /// The current wall-clock time.
    clock: Timestamp,
}

impl Event<'_> {
    /// One name for as long as it is the same event.
    fn name(&self) -> String {
        let Report {
            subject,
            reason,
            problem,
            first,
            ..
        } = self.report;
        let mut hash = DefaultHasher::new();
        (&subject.uid, reason, problem, first).hash(&mut hash);
        (&self.reporter.instance, std::process::id()).hash(&mut hash);
        let name: String = subject.name.chars().take(NAME_MAX).collect();
        // A name that was cut must not end with what none may end with.
        let name = name.trim_end_matches(['-', '.']);
        format!("{name}.{:016x}", hash.finish())
    }

    fn time(&self, at: Duration) -> Value {
        let ago = SignedDuration::try_from(self.now.saturating_sub(at)).unwrap_or_default();
        let at = self.clock.checked_sub(ago).unwrap_or(self.clock);
        // The API wants whole seconds.
        let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
        seconds.to_string().into()
    }

    fn message(&self) -> String {
        self.report.message.chars().take(MESSAGE_MAX).collect()
    }

    /// The fields that change when it happens again.
    fn news(&self) -> Value {
        json!({
            "count": self.report.count, "lastTimestamp": self.time(self.report.last),
            "message": self.message(),
        })
    }

    fn whole(&self) -> Value {
        let Subject {
            api_version,
            kind,
            namespace: of,
            name,
            uid,
        } = &self.report.subject;
        let Reporter {
            component,
            instance,
        } = self.reporter;
        let mut object = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": namespace(&self.report.subject), "name": self.name()},
            "involvedObject": {
                "apiVersion": api_version, "kind": kind, "namespace": of, "name": name,
                "uid": uid,
            },
            "type": self.report.kind(),
            "reason": self.report.reason,
            "firstTimestamp": self.time(self.report.first),
            "source": {"component": component, "host": instance},
            "reportingComponent": component,
            "reportingInstance": instance,
        });
        if let (Value::Object(object), Value::Object(news)) = (&mut object, self.news()) {
            object.extend(news);
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporter() -> Reporter {
        Reporter {
            component: "towpath",
            instance: "node-1".to_owned(),
        }
    }

    #[test]
    fn an_event_tells_when_it_happened_whatever_the_clock_does() {
        let report = Report {
            subject: Subject {
                api_version: "v1",
                kind: "Pod",
                namespace: "shop".to_owned(),
                name: format!("{}-x", "a".repeat(229)),
                uid: "u-1".to_owned(),
            },
            reason: "PoolExhausted",
            problem: String::new(),
            message: "é".repeat(2000),
            count: 3,
            first: Duration::from_secs(10),
            last: Duration::from_secs(70),
        };
        let event = Event {
            report: &report,
            reporter: &reporter(),
            now: Duration::from_secs(100),
            clock: Timestamp::from_millisecond(1_000_000_000_900).unwrap(),
        };
        let object = event.whole();
        assert_eq!(object["firstTimestamp"], "2001-09-09T01:45:10Z");
        assert_eq!(object["lastTimestamp"], "2001-09-09T01:46:10Z");
        assert_eq!(object["count"], 3);
        assert_eq!(object["type"], "Warning");
        let message = object["message"].as_str().unwrap();
        assert_eq!(message.chars().count(), MESSAGE_MAX);
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= 253 && !name.contains("-."), "{name}");
        let released = Event {
            report: &Report {
                reason: "BlocksReleased",
                ..report.clone()
            },
            ..event
        };
        assert_eq!(released.whole()["type"], "Normal");
        let later = Event {
            report: &Report {
                count: 9,
                last: Duration::from_secs(90),
                ..report.clone()
            },
            ..event
        };
        assert_eq!(later.name(), name, "the same event");
        let other = Event {
            report: &Report {
                problem: "another".to_owned(),
                ..report.clone()
            },
            ..event
        };
        assert_ne!(other.name(), name, "an event of its own");
    }

    #[test]
    fn an_event_of_an_object_without_a_namespace_is_in_the_default_one() {
        let report = Report {
            subject: Subject {
                api_version: "v1",
                kind: "Node",
                namespace: String::new(),
                name: "node-1".to_owned(),
                uid: "node-1".to_owned(),
            },
            reason: "RefusedEntry",
            problem: "one".to_owned(),
            message: String::new(),
            count: 1,
            first: Duration::ZERO,
            last: Duration::ZERO,
        };
        let event = Event {
            report: &report,
            reporter: &reporter(),
            now: Duration::ZERO,
            clock: Timestamp::from_second(0).unwrap(),
        };
        let object = event.whole();
        assert_eq!(object["metadata"]["namespace"], "default");
        assert_eq!(object["involvedObject"]["namespace"], "");
    }
}
