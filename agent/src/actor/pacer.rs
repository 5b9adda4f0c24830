//! Time and kind of the next observation of the kernel.

use std::ops::Range;
use std::time::Duration;

use loader::netlink::Change;
use tokio::time::Instant;

/// Wait for more events after the first one: they come in groups.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Least time from the end of one pass to the start of the next, whatever happens.
const REST: Duration = Duration::from_millis(50);
/// Least rest after a pass, in multiples of the pass's duration.
///
/// While changes do not end, the agent then spends most of its time on requests.
const REST_SHARE: u32 = 4;
/// Time from the last observation to the next glance. Drift without an event (a TCX detach, a lost
/// pin, most sysctls) has to be repaired within a second. It is also the time to the next pass
/// after an incomplete one, and between passes for foreign routes.
const GLANCE: Duration = Duration::from_millis(800);
/// Time from the last pass to the next one, whatever glances saw.
const AUDIT: Duration = Duration::from_secs(30);

/// An observation of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A short one, at the state for which the kernel sends no event.
    Glance,
    /// A whole one, which repairs.
    Pass,
}

/// Paces the observations.
#[derive(Debug)]
pub(crate) struct Pacer {
    last_pass: Option<Instant>,
    last_glance: Option<Instant>,
    rest: Duration,
    first_event: Option<Instant>,
    /// True if only foreign routes have changed.
    is_foreign: bool,
    requested: Option<Instant>,
}

impl Pacer {
    /// The first pass is due at once.
    pub(crate) fn new() -> Self {
        Self {
            last_pass: None,
            last_glance: None,
            rest: REST,
            first_event: None,
            is_foreign: false,
            requested: None,
        }
    }

    /// Something changed.
    pub(crate) fn event(&mut self, now: Instant, change: Change) {
        let is_first = self.first_event.is_none();
        self.is_foreign = change == Change::Foreign && (is_first || self.is_foreign);
        self.first_event.get_or_insert(now);
    }

    /// Records a pass and the time that it took. It left something to do or not, and the next
    /// one is due at the latest after some time.
    pub(crate) fn passed(&mut self, time: Range<Instant>, is_clean: bool, next: Option<Duration>) {
        let now = time.end;
        self.last_pass = Some(now);
        self.last_glance = None;
        self.rest = REST.max(now.duration_since(time.start) * REST_SHARE);
        let retry = (!is_clean).then_some(GLANCE);
        let next = next.into_iter().chain(retry).min();
        self.requested = next.map(|next| now + next.max(REST));
        self.first_event = None;
    }

    /// A glance has ended.
    pub(crate) fn glanced(&mut self, now: Instant) {
        self.last_glance = Some(now);
    }

    /// The next observation, with its time.
    pub(crate) fn due(&self, now: Instant) -> (Instant, Look) {
        let Some(last) = self.last_pass else {
            return (now, Look::Pass);
        };
        let event = self.first_event.map(|event| {
            let rest = if self.is_foreign {
                GLANCE
            } else {
                self.rest.min(GLANCE)
            };
            (event + DEBOUNCE).max(last + rest)
        });
        let pass = [Some(last + AUDIT), self.requested, event]
            .into_iter()
            .flatten();
        let glance = self.last_glance.unwrap_or(last) + GLANCE;
        match pass.min() {
            Some(pass) if pass <= glance => (pass, Look::Pass),
            _ => (glance, Look::Glance),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_gets_one_pass_per_rest_and_silence_glances() {
        let start = Instant::now();
        let ms = |n| start + Duration::from_millis(n);
        let mut pacer = Pacer::new();
        assert_eq!(pacer.due(start), (start, Look::Pass));
        pacer.passed(start..start, true, None);
        assert_eq!(pacer.due(ms(1)), (ms(800), Look::Glance));
        pacer.glanced(ms(801));
        assert_eq!(pacer.due(ms(802)), (ms(1601), Look::Glance));
        for n in 1..40 {
            pacer.event(ms(n), Change::Own);
        }
        let rested = (ms(50), Look::Pass);
        assert_eq!(pacer.due(ms(40)), rested, "the rest after the last pass");
        pacer.passed(ms(54)..ms(55), true, Some(Duration::from_secs(9)));
        pacer.event(ms(200), Change::Own);
        pacer.event(ms(210), Change::Own);
        let first = (ms(220), Look::Pass);
        assert_eq!(pacer.due(ms(210)), first, "the first event counts");
        pacer.passed(ms(219)..ms(220), true, Some(Duration::from_millis(80)));
        let requested = (ms(300), Look::Pass);
        assert_eq!(pacer.due(ms(220)), requested, "the pass requested it");
    }

    #[test]
    fn a_pass_that_left_something_is_followed_soon_and_any_other_after_half_a_minute() {
        let start = Instant::now();
        let ms = |n| start + Duration::from_millis(n);
        let mut pacer = Pacer::new();
        pacer.passed(start..start, false, Some(Duration::from_secs(5)));
        assert_eq!(pacer.due(ms(1)), (ms(800), Look::Pass));
        pacer.passed(start..start, true, None);
        pacer.glanced(ms(29_900));
        assert_eq!(pacer.due(ms(29_900)), (ms(30_000), Look::Pass));
    }

    #[test]
    fn long_passes_leave_time_between_them_and_none_waits_longer_than_a_glance() {
        let start = Instant::now();
        let ms = |n| start + Duration::from_millis(n);
        let mut pacer = Pacer::new();
        pacer.passed(start..ms(40), true, None);
        pacer.event(ms(41), Change::Own);
        assert_eq!(pacer.due(ms(41)), (ms(200), Look::Pass));
        pacer.passed(ms(200)..ms(500), true, None);
        pacer.event(ms(501), Change::Own);
        assert_eq!(pacer.due(ms(501)), (ms(1300), Look::Pass));
    }

    #[test]
    fn routes_of_others_alone_get_a_pass_no_sooner_than_a_glance() {
        let start = Instant::now();
        let ms = |n| start + Duration::from_millis(n);
        let mut pacer = Pacer::new();
        pacer.passed(start..start, true, None);
        pacer.event(ms(10), Change::Foreign);
        assert_eq!(pacer.due(ms(10)), (ms(800), Look::Pass));
        pacer.event(ms(20), Change::Own);
        pacer.event(ms(25), Change::Foreign);
        assert_eq!(pacer.due(ms(25)), (ms(50), Look::Pass));
    }
}
