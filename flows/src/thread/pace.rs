//! Times of the sweeps.

use std::time::Duration;

/// Interval between two sweeps of empty maps.
pub const LONGEST: Duration = Duration::from_secs(10);
/// Interval between two sweeps of full maps.
pub const SHORTEST: Duration = Duration::from_millis(500);
/// Interval to the sweep after one that has found something to check again, or a destination that is
/// short of ports.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);
/// Interval at which failures and the fill level are checked between sweeps.
pub const POLL: Duration = Duration::from_millis(200);
/// The fill level from which on a sweep does not wait for its turn.
pub const EARLY: f64 = 0.75;
/// The part of an endpoint's quota from which its closed connections are removed at once.
pub const PRESSED: f64 = 0.9;
/// The part of an endpoint's quota from which flows of single queries are removed early.
pub(crate) const HALF: f64 = 0.5;
/// Rest after a sweep, in multiples of its CPU time: at most a tenth of a CPU goes into sweeps.
pub(crate) const REST: u32 = 9;

/// Rest after a sweep if endpoints or policy have changed since, in multiples of its CPU time.
///
/// It is short: a quarter of a CPU goes into sweeps while changes do not end.
const REST_NUDGED: u32 = 3;

/// State between two sweeps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Watch {
    /// Fill level of the fullest map, or the highest that an endpoint's quota can have, from 0 to 1.
    pub(crate) fill: f64,
    /// True if an allocation has failed since the last sweep.
    pub(crate) failed: bool,
    /// True if endpoints or policy have changed since the last sweep.
    pub(super) at_once: bool,
    /// True if the last sweep has found something to check again, or a destination short of ports.
    pub(super) urgent: bool,
    /// Time since the last sweep ended.
    pub(crate) since: Duration,
    /// CPU time of the last sweep.
    pub(crate) took: Duration,
}

impl Watch {
    /// True if a sweep is due.
    #[must_use]
    pub(super) fn is_due(&self) -> bool {
        if self.at_once {
            return self.since >= self.took * REST_NUDGED;
        }
        let rest = self.took * REST;
        let interval = if self.failed || self.fill > EARLY {
            SHORTEST
        } else if self.urgent {
            interval(self.fill).min(AGAIN)
        } else {
            interval(self.fill)
        };
        self.since >= interval.max(rest)
    }
}

/// Interval between two sweeps at a fill level: linear from the longest at 0 to the shortest at 1.
#[must_use]
pub(crate) fn interval(fill: f64) -> Duration {
    let free = (1.0 - fill).clamp(0.0, 1.0);
    LONGEST.mul_f64(free).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_the_fill_level() {
        let millis = |fill| interval(fill).as_millis();
        assert_eq!(millis(0.0), 10_000);
        assert_eq!(millis(0.5), 5_000);
        assert_eq!(millis(0.9), 1_000);
        assert_eq!(millis(1.0), 500);
        assert_eq!(millis(2.0), 500);
    }

    #[test]
    fn a_sweep_comes_early_where_room_is_short_or_something_changed() {
        let watch = Watch {
            since: SHORTEST,
            took: Duration::from_millis(20),
            ..Watch::default()
        };
        assert!(!watch.is_due());
        assert!(
            Watch {
                fill: 0.76,
                ..watch
            }
            .is_due()
        );
        let failed = Watch {
            failed: true,
            ..watch
        };
        assert!(failed.is_due());
        let at_once = Watch {
            at_once: true,
            since: Duration::from_millis(60),
            ..watch
        };
        assert!(at_once.is_due());
        let at_once = Watch {
            since: Duration::from_millis(59),
            ..at_once
        };
        assert!(!at_once.is_due(), "at most a quarter of a CPU");
        let urgent = Watch {
            urgent: true,
            ..watch
        };
        assert!(!urgent.is_due());
        let again = Watch {
            since: AGAIN,
            ..urgent
        };
        assert!(again.is_due());
    }

    #[test]
    fn sweeps_take_no_more_than_a_tenth_of_a_cpu() {
        let slow = Watch {
            fill: 1.0,
            failed: true,
            took: Duration::from_secs(1),
            since: Duration::from_secs(8),
            ..Watch::default()
        };
        assert!(!slow.is_due());
        let rested = Watch {
            since: Duration::from_secs(9),
            ..slow
        };
        assert!(rested.is_due());
    }
}
