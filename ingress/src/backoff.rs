//! When something that failed is tried again.

use std::time::Duration;

/// Before the second try.
const FIRST: Duration = Duration::from_secs(1);
/// Between two tries at most.
const LONGEST: Duration = Duration::from_mins(2);

/// Failures in a row, and how long they keep from the next try. Times are since any fixed moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    failures: u32,
    until: Duration,
}

impl Backoff {
    /// Records a failure.
    pub(crate) fn fail(&mut self, now: Duration) {
        let wait = FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1);
        self.until = now.saturating_add(wait.min(LONGEST));
    }

    /// The moment of the next try, while that is yet to come.
    pub(crate) fn waits(&self, now: Duration) -> Option<Duration> {
        (self.until > now).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let now = Duration::from_secs(100);
        assert_eq!(backoff.waits(now), None);
        let mut waits = Vec::new();
        for _ in 0..40 {
            backoff.fail(now);
            waits.push(
                backoff
                    .waits(now)
                    .unwrap()
                    .checked_sub(now)
                    .unwrap()
                    .as_secs(),
            );
        }
        assert_eq!(waits[..9], [1, 2, 4, 8, 16, 32, 64, 120, 120]);
        assert_eq!(waits[39], 120);
        assert_eq!(backoff.waits(now + LONGEST), None);
    }
}
