//! The time that a subnet's free addresses last, if they go as they went.

use std::collections::VecDeque;
use std::time::Duration;

use ipam::Time;

/// The period on which a forecast is based.
const BACK: Duration = Duration::from_hours(1);
/// Minimum period of a forecast, since a single rollout is no trend.
const SHORTEST: Duration = Duration::from_mins(10);
/// Samples are no closer than this, so that their number has a bound.
const APART: Duration = Duration::from_mins(1);

/// The free addresses of a subnet over the last hour.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    samples: VecDeque<(Time, u32)>,
    now: Option<(Time, u32)>,
}

impl Forecast {
    /// Adds a read of the subnet.
    pub fn add(&mut self, free: u32, now: Time) {
        self.now = Some((now, free));
        let is_apart = |(at, _): &(Time, u32)| now.since(*at) >= APART;
        if self.samples.back().is_none_or(is_apart) {
            self.samples.push_back((now, free));
        }
        while self
            .samples
            .front()
            .is_some_and(|(at, _)| now.since(*at) > BACK)
        {
            self.samples.pop_front();
        }
    }

    /// The time from the last read on until no address is free; none if they do not become fewer.
    #[must_use]
    pub fn lasts(&self) -> Option<Duration> {
        let (now, free) = self.now?;
        let (since, before) = *self.samples.front()?;
        let gone = before.checked_sub(free).filter(|gone| *gone > 0)?;
        let took = Some(now.since(since)).filter(|took| *took >= SHORTEST)?;
        Some(took.mul_f64(f64::from(free) / f64::from(gone)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: u64) -> Time {
        Time::from_millis(number * 60_000)
    }

    #[test]
    fn free_addresses_last_as_long_as_their_trend_says() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.lasts(), None);
        for number in 0..9 {
            forecast.add(1000 - number * 10, minute(number.into()));
        }
        assert_eq!(forecast.lasts(), None, "too short");
        for number in 9..=30 {
            forecast.add(1000 - number * 10, minute(number.into()));
        }
        // 10 a minute, and 700 are left.
        assert_eq!(forecast.lasts(), Some(Duration::from_mins(70)));
    }

    #[test]
    fn only_the_last_hour_counts() {
        let mut forecast = Forecast::default();
        forecast.add(5000, minute(0));
        for number in 1..=61 {
            forecast.add(100, minute(number));
        }
        assert_eq!(forecast.lasts(), None, "nothing went in the last hour");
        forecast.add(40, minute(62));
        forecast.add(70, minute(62));
        assert_eq!(
            forecast.lasts(),
            Some(Duration::from_hours(1).mul_f64(70.0 / 30.0))
        );
    }
}
