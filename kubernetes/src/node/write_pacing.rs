//! Pacing of writes of the node's document: changes gather for a while, a waiting pod is written at
//! once, and failed writes are retried at growing intervals.

use std::time::Duration;

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is written, or there was nothing to write.
    Done,
    /// Another writer was faster (409): the next read has the newer document.
    Conflict,
    /// The server asks to wait (429, `Retry-After`).
    Later(Duration),
    /// It is not known whether it is written, or it is refused.
    Failed,
}

/// Decides when to write next. Times are since whatever moment, on a clock that does not jump.
#[derive(Clone, Debug)]
pub struct Pace {
    interval: Duration,
    /// When the last write was.
    last: Option<Duration>,
    /// When the next one is due.
    due: Option<Duration>,
    /// Time until which no write is made for any reason.
    barred: Duration,
    failures: u32,
}

impl Pace {
    /// The shortest time between two writes while pods wait, and between a conflict and the next
    /// attempt.
    pub const URGENT: Duration = Duration::from_secs(1);
    /// The longest time between two tries while the server refuses.
    pub const SLOWEST: Duration = Duration::from_mins(1);
    /// Interval of checks for a change to write, without a signal.
    pub const LOOK: Duration = Duration::from_mins(1);

    /// Writes that are not urgent are this far apart.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            last: None,
            due: Some(Duration::ZERO),
            barred: Duration::ZERO,
            failures: 0,
        }
    }

    /// Something has changed.
    pub fn changed(&mut self, now: Duration) {
        let next = self.last.map_or(now, |last| last + self.interval);
        self.ask(next.max(now));
    }

    /// A pod waits for what the document would ask for.
    pub fn urgent(&mut self, now: Duration) {
        let next = self.last.map_or(now, |last| last + Self::URGENT);
        self.ask(next.max(now));
    }

    fn ask(&mut self, at: Duration) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// When to write.
    #[must_use]
    pub fn due(&self, now: Duration) -> Duration {
        let look = self.last.unwrap_or(now) + Self::LOOK;
        self.due.unwrap_or(look).min(look).max(self.barred)
    }

    /// It is known what became of the last write: the next one can follow.
    pub fn looked(&mut self, now: Duration) {
        self.last = Some(now);
        self.ask(now);
    }

    /// A write is over.
    pub fn written(&mut self, now: Duration, outcome: Outcome) {
        self.last = Some(now);
        self.due = None;
        self.failures = match outcome {
            Outcome::Done => 0,
            Outcome::Conflict | Outcome::Later(_) => self.failures,
            Outcome::Failed => self.failures.saturating_add(1),
        };
        let wait = match outcome {
            Outcome::Done => return,
            Outcome::Conflict => Self::URGENT,
            Outcome::Later(wait) => wait,
            Outcome::Failed => {
                let doublings = self.failures.saturating_sub(1).min(6);
                (Self::URGENT * 2u32.pow(doublings)).min(Self::SLOWEST)
            }
        };
        self.barred = now + wait;
        self.ask(now + wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(15);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn written(now: u64, outcome: Outcome) -> Pace {
        let mut pace = Pace::new(INTERVAL);
        pace.written(at(now), outcome);
        pace
    }

    #[test]
    fn changes_gather_and_a_waiting_pod_does_not_wait_for_them() {
        assert_eq!(
            Pace::new(INTERVAL).due(at(3)),
            at(0),
            "the first one at once"
        );
        let mut pace = written(100, Outcome::Done);
        assert_eq!(pace.due(at(100)), at(160), "a look without a sign");
        pace.changed(at(102));
        pace.changed(at(110));
        assert_eq!(pace.due(at(110)), at(115));
        pace.urgent(at(110));
        assert_eq!(pace.due(at(110)), at(110));
        pace.changed(at(110));
        assert_eq!(pace.due(at(110)), at(110), "nor does it begin to");
        let mut pace = written(100, Outcome::Done);
        pace.urgent(at(100));
        assert_eq!(pace.due(at(100)), at(101));
        let mut pace = written(100, Outcome::Done);
        pace.changed(at(150));
        assert_eq!(
            pace.due(at(150)),
            at(150),
            "long after the last one at once"
        );
    }

    #[test]
    fn what_goes_wrong_is_tried_again_ever_more_slowly() {
        assert_eq!(written(100, Outcome::Conflict).due(at(100)), at(101));
        let mut pace = written(100, Outcome::Later(at(7)));
        pace.urgent(at(101));
        assert_eq!(pace.due(at(101)), at(107), "not even for a pod");
        let mut now = 0;
        let mut waits = Vec::new();
        let mut pace = Pace::new(INTERVAL);
        for _ in 0..8 {
            pace.written(at(now), Outcome::Failed);
            let due = pace.due(at(now)).as_secs();
            waits.push(due - now);
            now = due;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        pace.written(at(now), Outcome::Done);
        pace.written(at(now), Outcome::Failed);
        assert_eq!(pace.due(at(now)).as_secs() - now, 1, "from the beginning");
    }

    #[test]
    fn looks_between_writes_that_fail_do_not_make_them_faster() {
        let mut pace = Pace::new(INTERVAL);
        let (mut now, mut writes) = (0, Vec::new());
        for _ in 0..7 {
            writes.push(now);
            pace.written(at(now), Outcome::Failed);
            now = pace.due(at(now)).as_secs();
            pace.looked(at(now));
            pace.urgent(at(now));
            now = pace.due(at(now)).as_secs();
        }
        assert_eq!(writes, [0, 1, 3, 7, 15, 31, 63]);
        pace.written(at(now), Outcome::Conflict);
        assert_eq!(pace.due(at(now)).as_secs() - now, 1, "no failure");
    }

    #[test]
    fn no_storm_whatever_asks() {
        let mut pace = Pace::new(INTERVAL);
        let mut writes = 0;
        for second in 0..600 {
            let now = at(second);
            pace.changed(now);
            if pace.due(now) <= now {
                pace.written(now, Outcome::Done);
                writes += 1;
            }
        }
        assert_eq!(writes, 600 / 15);
    }
}
