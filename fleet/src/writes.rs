//! Writes of one object: one at a time, and after failures with longer and longer pauses.

use std::time::Duration;

use ipam::Time;

use crate::WorkId;

/// The longest pause after writes that failed.
const SLOWEST: Duration = Duration::from_mins(1);
/// The wait after a conflict.
const CONFLICT: Duration = Duration::from_secs(1);

/// Writes of an object.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    in_flight: Option<WorkId>,
    /// No write begins before this time.
    barred: Time,
    failures: u32,
    /// The reason of the last write's failure.
    fault: Option<String>,
}

impl Writes {
    /// True while a write is in flight.
    pub(crate) const fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The time of the next write, if it has not come yet.
    pub(crate) fn pause(&self, now: Time) -> Option<Time> {
        Some(self.barred).filter(|it| now < *it)
    }

    /// The reason of the last write's failure.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Begins a write.
    pub(crate) const fn begin(&mut self, id: WorkId) {
        self.in_flight = Some(id);
    }

    /// Ends a write. Returns false for any other than the one in flight.
    pub(crate) fn end(&mut self, id: WorkId) -> bool {
        self.in_flight.take_if(|it| *it == id).is_some()
    }

    /// Takes the success of a write in.
    pub(crate) fn succeed(&mut self) {
        self.failures = 0;
        self.fault = None;
    }

    /// Takes the failure of a write in.
    pub(crate) fn fail(&mut self, reason: String, retry_after: Option<Duration>, now: Time) {
        let wait = Duration::from_secs(1 << self.failures.min(6)).min(SLOWEST);
        self.failures = self.failures.saturating_add(1);
        self.fault = Some(reason);
        self.barred = now.after(retry_after.unwrap_or(wait));
    }

    /// Another writer came first. The next event has its version; without one, the next write
    /// begins after a wait.
    pub(crate) fn conflict(&mut self, now: Time) {
        self.barred = now.after(CONFLICT);
    }

    /// The object has a new version, which ends the wait after a conflict.
    pub(crate) fn renewed(&mut self) {
        if self.failures == 0 {
            self.barred = Time::default();
        }
    }
}
