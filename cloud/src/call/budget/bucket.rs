//! A token bucket: EC2 counts the calls of an account by such ones.

use std::time::Duration;

use ipam::Time;

/// The size of a bucket and its filling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Calls that a full bucket holds.
    pub burst: f64,
    /// Calls that come back each second.
    pub per_second: f64,
}

impl Rate {
    /// A part of the rate. A bucket always holds one call at least.
    #[must_use]
    pub fn share(self, share: f64) -> Self {
        Self {
            burst: (self.burst * share).max(1.0),
            per_second: self.per_second * share,
        }
    }
}

/// A token bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Time,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(rate: Rate, now: Time) -> Self {
        Self {
            rate,
            tokens: rate.burst,
            at: now,
        }
    }

    /// The rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Changes the rate. Calls that came back until now stay.
    pub fn set_rate(&mut self, rate: Rate, now: Time) {
        self.fill(now);
        self.rate = rate;
        self.tokens = self.tokens.min(rate.burst);
    }

    /// Empties the bucket.
    pub fn drain(&mut self, now: Time) {
        self.fill(now);
        self.tokens = 0.0;
    }

    /// Takes a call out.
    ///
    /// # Errors
    /// When there is none, with the time at which there is one.
    pub fn take(&mut self, now: Time) -> Result<(), Time> {
        self.fill(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(self.ready_at(now))
    }

    /// The time from which on there is a call.
    #[must_use]
    pub fn ready_at(&self, now: Time) -> Time {
        let missing = 1.0 - self.filled(now);
        if missing <= 0.0 {
            return now;
        }
        let seconds = (missing / self.rate.per_second.max(0.001)).min(3600.0);
        // A millisecond more, because time counts in whole ones.
        now.after(Duration::from_secs_f64(seconds) + Duration::from_millis(1))
    }

    fn filled(&self, now: Time) -> f64 {
        let back = now.since(self.at).as_secs_f64() * self.rate.per_second;
        (self.tokens + back).min(self.rate.burst)
    }

    fn fill(&mut self, now: Time) {
        self.tokens = self.filled(now);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: Rate = Rate {
        burst: 3.0,
        per_second: 2.0,
    };

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let now = Time::from_millis(1000);
        let mut bucket = Bucket::new(RATE, now);
        for _ in 0..3 {
            bucket.take(now).unwrap();
        }
        let next = bucket.take(now).unwrap_err();
        assert_eq!(next, Time::from_millis(1501));
        assert!(bucket.take(Time::from_millis(1499)).is_err());
        bucket.take(next).unwrap();
    }

    #[test]
    fn a_small_share_still_holds_one_call() {
        let rate = RATE.share(0.1);
        assert!((rate.burst - 1.0).abs() < f64::EPSILON);
        let mut bucket = Bucket::new(rate, Time::default());
        bucket.take(Time::default()).unwrap();
        let next = bucket.take(Time::default()).unwrap_err();
        assert_eq!(next, Time::from_millis(5001));
        bucket.take(next).unwrap();
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_the_rate(gaps in prop::collection::vec(0_u64..900, 1..80)) {
            let (mut now, mut taken) = (0, Vec::new());
            let mut bucket = Bucket::new(RATE, Time::default());
            for gap in gaps {
                now += gap;
                while bucket.take(Time::from_millis(now)).is_ok() {
                    taken.push(now);
                }
            }
            for (n, first) in taken.iter().enumerate() {
                for (count, last) in (1_u32..).zip(&taken[n..]) {
                    let window = Duration::from_millis(last - first).as_secs_f64();
                    let most = RATE.burst + window * RATE.per_second;
                    prop_assert!(f64::from(count) <= most + 1e-6, "{} in {} s", count, window);
                }
            }
        }
    }
}
