//! Interval between checks of the installation; it grows while another program undoes the
//! installation each time.

use std::time::Duration;

/// The usual interval between checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait while another program writes as well.
const LONGEST: Duration = Duration::from_mins(1);
/// Number of consecutive changes that are repaired at once: an upgrade of a service mesh makes
/// some.
const PROMPT: u32 = 5;
/// Time without a change that ends a conflict.
const CALM: Duration = Duration::from_mins(2);

/// The pace.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Changes that were repaired without a quiet time between them.
    changes: u32,
    /// Time without a change.
    quiet: Duration,
}

impl Pace {
    /// Records a check; returns the wait until the next one.
    pub(super) fn looked(&mut self, has_written: bool) -> Duration {
        if has_written {
            self.changes = self.changes.saturating_add(1);
            self.quiet = Duration::ZERO;
        } else if self.quiet >= CALM {
            self.changes = 0;
        }
        let wait = self.wait();
        self.quiet = self.quiet.saturating_add(wait);
        wait
    }

    /// The wait while another program interferes, once it has grown.
    pub(super) fn slowed(&self) -> Option<Duration> {
        Some(self.wait()).filter(|wait| *wait > INTERVAL)
    }

    fn wait(&self) -> Duration {
        let late = self.changes.saturating_sub(PROMPT);
        let factor = 2u32.saturating_pow(late);
        INTERVAL.saturating_mul(factor).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fight_is_slowed_down_and_calm_ends_it() {
        let mut pace = Pace::default();
        let waits: Vec<u64> = (0..14).map(|_| pace.looked(true).as_secs()).collect();
        assert_eq!(waits, [1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(pace.slowed(), Some(LONGEST));
        // A pause of the other program does not end the conflict yet.
        assert_eq!(pace.looked(false), LONGEST);
        assert_eq!(pace.looked(true), LONGEST);
        let mut looks = 0;
        while pace.looked(false) > INTERVAL {
            looks += 1;
            assert!(looks < 10);
        }
        assert_eq!((looks, pace.slowed()), (1, None));
        // A change now and then is put right at once.
        for _ in 0..100 {
            assert_eq!(pace.looked(true), INTERVAL);
            for _ in 0..=CALM.as_secs() {
                pace.looked(false);
            }
        }
    }
}
