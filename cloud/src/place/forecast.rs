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

    /// The time from the last read on until no address is free; none if they do not become fewer. It
    /// is zero where none is free.
    #[must_use]
    pub fn lasts(&self) -> Option<Duration> {
        let (now, free) = self.now?;
        if free == 0 {
            return Some(Duration::ZERO);
        }
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

    #[test]
    fn a_subnet_without_a_free_address_lasts_no_longer() {
        let mut forecast = Forecast::default();
        forecast.add(0, minute(0));
        assert_eq!(forecast.lasts(), Some(Duration::ZERO), "the first read");
        for number in 1..200 {
            forecast.add(0, minute(number));
        }
        assert_eq!(forecast.lasts(), Some(Duration::ZERO), "full for hours");
        forecast.add(1, minute(201));
        assert_eq!(forecast.lasts(), None, "it became more");
    }

    /// Forecasts of a subnet read each minute for three hours, with the minute of each.
    fn forecasts(free: impl Fn(u32) -> u32) -> Vec<(u32, Option<Duration>)> {
        let mut forecast = Forecast::default();
        let each = (0..180).map(|number| {
            forecast.add(free(number), minute(number.into()));
            (number, forecast.lasts())
        });
        each.collect()
    }

    /// Noise of at most 15 addresses.
    fn noise(number: u32) -> u32 {
        (number.wrapping_mul(2_654_435_761) >> 16) % 16
    }

    #[test]
    fn a_subnet_that_gets_emptier_or_stays_as_it_is_has_no_forecast() {
        for (number, lasts) in forecasts(|_| 1000) {
            assert_eq!(lasts, None, "flat, {number}");
        }
        for (number, lasts) in forecasts(|number| 1000 + number) {
            assert_eq!(lasts, None, "rising, {number}");
        }
        let rising = forecasts(|number| 1000 + 10 * number + noise(number));
        for (number, lasts) in rising {
            assert_eq!(lasts, None, "rising with noise, {number}");
        }
    }

    #[test]
    fn noise_is_no_end_and_hides_none() {
        for (number, lasts) in forecasts(|number| 1000 + noise(number)) {
            // At most 15 of 1,000 went in at least ten minutes.
            let least = Duration::from_mins(10 * 1000 / 15);
            assert!(lasts.is_none_or(|it| it >= least), "{number}: {lasts:?}");
        }
        for (number, lasts) in forecasts(|number| 4000 - 20 * number + noise(number)) {
            let Some(lasts) = lasts else {
                assert!(number < 10, "falling, {number}");
                continue;
            };
            let truth = Duration::from_mins((200 - number).into());
            let error = lasts.abs_diff(truth).as_secs_f64() / truth.as_secs_f64();
            assert!(error < 0.15, "falling, {number}: {lasts:?} for {truth:?}");
        }
    }

    #[test]
    fn extremes_have_finite_forecasts() {
        let numbers = [0, 1, 2, 1000, u32::MAX - 1, u32::MAX];
        for (first, last) in numbers
            .iter()
            .flat_map(|it| numbers.map(|last| (*it, last)))
        {
            for step in [1, 599_999, 600_000, 3_600_000, 3_600_001, u64::MAX / 4] {
                let mut forecast = Forecast::default();
                forecast.add(first, Time::from_millis(0));
                forecast.add(last, Time::from_millis(step));
                let most = f64::from(last) * 3600.0;
                let lasts = forecast.lasts().map_or(0.0, |it| it.as_secs_f64());
                assert!(lasts <= most, "{first} {last} {step}: {lasts}");
                // Clocks are monotonic; a read can still be older than the last one.
                forecast.add(first, Time::from_millis(step / 2));
                let most = f64::from(first) * 3600.0;
                let lasts = forecast.lasts().map_or(0.0, |it| it.as_secs_f64());
                assert!(lasts <= most, "{first} {last} {step}: {lasts}, and back");
            }
        }
    }
}
