//! One candidate's side of an election, as a value: no I/O and no clock.
//!
//! Times are relative to an origin of the candidate's choice, on a monotonic clock. A record counts
//! from the moment at which this candidate saw it change ([`Sighting`]). So wrong wall clocks on
//! either side cannot cause two leaders.

use std::time::Duration;

use kubernetes::lease::{Claim, Lease, Sighting};

use crate::write::Failure;

/// The times of an election. Each is shorter than the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A candidate takes a Lease that has not changed for this long. In whole seconds.
    pub duration: Duration,
    /// Time for which a leader leads after the start of its last successful renewal. The difference
    /// to `duration` is the time in which its last requests have to end.
    pub lead: Duration,
    /// Interval of a leader's renewals, and of a candidate's reads.
    pub every: Duration,
    /// The wait after a failure.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            lead: Duration::from_secs(10),
            every: Duration::from_secs(5),
            retry: Duration::from_secs(1),
        }
    }
}

/// A time for which a candidate leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The moment from which it has led without a break. Whatever was read before may be older than
    /// the last act of another leader.
    pub since: Duration,
    /// The moment at which it ends unless it is renewed.
    pub until: Duration,
}

/// The next thing that a candidate does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before that time.
    Wait(Duration),
    /// Read the Lease, and give the answer to [`Election::read`].
    Read,
    /// Create the Lease, and give the answer to [`Election::wrote`].
    Create(Claim),
    /// Write the Lease of this version, and give the answer to [`Election::wrote`].
    Update(String, Claim),
}

/// A candidate.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    seen: Option<Sighting>,
    /// True while nothing suggests another write since.
    is_current: bool,
    term: Option<Term>,
    /// The earliest begin of a term under a Lease that this candidate has made. The leader under a
    /// deleted one leads to the end of its term, and no other candidate can know of it.
    barred: Duration,
    due: Duration,
    /// The earliest time of the next write. Reads may come before it.
    write_due: Duration,
}

impl Election {
    /// A candidate with an identity that no other process has, or had before.
    #[must_use]
    pub fn new(identity: String, timing: Timing) -> Self {
        Self {
            identity,
            timing,
            seen: None,
            is_current: false,
            term: None,
            barred: Duration::ZERO,
            due: Duration::ZERO,
            write_due: Duration::ZERO,
        }
    }

    /// The holder of the Lease as it was seen last.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        self.seen.as_ref()?.holder()
    }

    /// The candidate's term. It may have ended: its `until` says so.
    #[must_use]
    pub const fn term(&self) -> Option<Term> {
        self.term
    }

    /// The next step. Only one may go on at a time.
    #[must_use]
    pub fn next(&self, now: Duration) -> Step {
        if now < self.due {
            return Step::Wait(self.due);
        }
        let Some(seen) = self.seen.as_ref().filter(|_| self.is_current) else {
            return Step::Read;
        };
        if !self.may_claim(seen, now) {
            return Step::Read;
        }
        if now < self.write_due {
            return Step::Wait(self.write_due);
        }
        match &seen.lease {
            None => Step::Create(self.claim(1)),
            Some(Lease { version, record }) if self.is_own(record.holder.as_deref()) => {
                let claim = Claim {
                    is_new: self.term.is_none(),
                    ..self.claim(record.transitions)
                };
                Step::Update(version.clone(), claim)
            }
            Some(Lease { version, record }) => {
                let claim = self.claim(record.transitions.saturating_add(1));
                Step::Update(version.clone(), claim)
            }
        }
    }

    /// Takes the answer to [`Step::Read`]; `None` stands for no Lease, an error for no answer.
    pub fn read(&mut self, now: Duration, answer: Result<Option<Lease>, Failure>) {
        match answer {
            Ok(lease) => {
                self.see(now, lease);
                self.is_current = true;
                self.due = self.next_look(now);
            }
            Err(failure) => self.due = now + self.wait(&failure).max(self.timing.retry),
        }
    }

    /// Takes the answer to [`Step::Create`] or [`Step::Update`], which was begun at `begun`.
    pub fn wrote(&mut self, begun: Duration, now: Duration, answer: Result<Lease, Failure>) {
        let failure = match answer {
            Ok(lease) if self.is_own(lease.record.holder.as_deref()) => {
                self.see(now, Some(lease));
                self.due = begun + self.timing.every;
                if self.term.is_none() && now < self.barred {
                    self.due = self.due.min(self.barred);
                    return;
                }
                let since = self.term.map_or(now, |term| term.since);
                let until = begun + self.timing.lead;
                self.term = Some(Term { since, until });
                return;
            }
            // A mutating webhook may have changed it, so it counts as a foreign one.
            Ok(lease) => {
                self.see(now, Some(lease));
                self.due = self.next_look(now);
                return;
            }
            Err(failure) => failure,
        };
        self.is_current = false;
        self.due = now + self.wait(&failure);
        // A server that refuses each write must not get requests as fast as it answers.
        self.write_due = now + self.timing.retry;
    }

    /// Ends the term; returns the step that releases the Lease, if this candidate led and the Lease
    /// is known to be its own.
    ///
    /// No request of the term may be in flight any more: another candidate leads at once.
    #[must_use]
    pub fn release(&mut self) -> Option<Step> {
        let led = self.term.take().is_some();
        let Lease { version, record } = self.lease().filter(|_| self.is_current && led)?;
        let claim = Claim {
            holder: None,
            // Other implementations wait for it even where there is no holder.
            duration: Duration::from_secs(1),
            transitions: record.transitions,
            is_new: false,
        };
        let is_own = self.is_own(record.holder.as_deref());
        is_own.then(|| Step::Update(version.clone(), claim))
    }

    fn lease(&self) -> Option<&Lease> {
        self.seen.as_ref()?.lease.as_ref()
    }

    fn is_own(&self, holder: Option<&str>) -> bool {
        holder == Some(self.identity.as_str())
    }

    fn see(&mut self, now: Duration, lease: Option<Lease>) {
        let is_own = match &lease {
            Some(lease) => self.is_own(lease.record.holder.as_deref()),
            // It was deleted. No other candidate takes its place before the term ends.
            None => self.term.is_some_and(|term| now < term.until),
        };
        if !is_own {
            self.term = None;
        }
        let uid = |lease: Option<&Lease>| lease.map(|lease| lease.record.uid.clone());
        if self.term.is_none() && is_own && uid(lease.as_ref()) != uid(self.lease()) {
            self.barred = now + self.timing.lead;
        }
        self.seen = Some(match self.seen.take() {
            Some(seen) => seen.then(now, lease),
            None => Sighting::first(now, lease),
        });
    }

    /// Decides on a Lease that was seen.
    fn may_claim(&self, seen: &Sighting, now: Duration) -> bool {
        match &seen.lease {
            Some(lease) if self.is_own(lease.record.holder.as_deref()) => true,
            Some(_) | None => now >= seen.expiry(self.timing.duration),
        }
    }

    /// The time of the next step after a read.
    fn next_look(&self, now: Duration) -> Duration {
        match &self.seen {
            Some(seen) if self.may_claim(seen, now) => now,
            Some(seen) => {
                let expiry = seen.expiry(self.timing.duration);
                expiry.min(now + self.timing.every)
            }
            None => now,
        }
    }

    fn wait(&self, failure: &Failure) -> Duration {
        match failure {
            // It is read at once: the answer says who holds it.
            Failure::Conflict | Failure::Absent => Duration::ZERO,
            Failure::Busy(wait) => self.timing.retry.max(*wait),
            Failure::Refused | Failure::Unknown => self.timing.retry,
        }
    }

    fn claim(&self, transitions: u32) -> Claim {
        Claim {
            holder: Some(self.identity.clone()),
            duration: self.timing.duration,
            transitions,
            is_new: true,
        }
    }
}

#[cfg(test)]
mod tests;
