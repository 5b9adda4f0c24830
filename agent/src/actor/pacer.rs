//! When the next pass is due.

use std::time::Duration;

use tokio::time::Instant;

/// How long to wait for more events after the first one: they come in groups.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Least time from the end of one pass to the start of the next, whatever happens.
const REST: Duration = Duration::from_millis(50);
/// The same in multiples of the time that the pass took: while changes do not end, what asks the agent
/// has it for itself for most of the time.
const REST_SHARE: u32 = 4;
/// What has no event (TCX detach, map entries, sysctls) is looked at this often, so that it heals
/// within a second.
const AUDIT: Duration = Duration::from_millis(500);

/// Paces the passes.
#[derive(Debug)]
pub(crate) struct Pacer {
    last_pass: Option<Instant>,
    rest: Duration,
    first_event: Option<Instant>,
    asked: Option<Instant>,
}

impl Pacer {
    /// The first pass is due at once.
    pub(crate) fn new() -> Self {
        Self {
            last_pass: None,
            rest: REST,
            first_event: None,
            asked: None,
        }
    }

    /// Something changed.
    pub(crate) fn event(&mut self, now: Instant) {
        self.first_event.get_or_insert(now);
    }

    /// A pass that began at a time has ended, and asks for the next one at the latest after some time.
    pub(crate) fn passed(&mut self, began: Instant, now: Instant, next: Option<Duration>) {
        self.last_pass = Some(now);
        self.rest = REST.max(now.duration_since(began) * REST_SHARE);
        self.asked = next.map(|next| now + next.max(REST));
        self.first_event = None;
    }

    /// When the next pass is due.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        let Some(last) = self.last_pass else {
            return now;
        };
        let audit = last + AUDIT;
        let latest = self.asked.map_or(audit, |asked| asked.min(audit));
        match self.first_event {
            None => latest,
            Some(event) => (event + DEBOUNCE).max(last + self.rest).min(latest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_gets_one_pass_per_rest_and_silence_one_per_audit() {
        let start = Instant::now();
        let ms = |n| start + Duration::from_millis(n);
        let mut pacer = Pacer::new();
        assert_eq!(pacer.due(start), start);
        pacer.passed(start, start, None);
        assert_eq!(pacer.due(ms(1)), ms(500));
        for n in 1..40 {
            pacer.event(ms(n));
        }
        assert_eq!(pacer.due(ms(40)), ms(50), "the rest after the last pass");
        pacer.passed(ms(54), ms(55), Some(Duration::from_secs(9)));
        pacer.event(ms(200));
        pacer.event(ms(210));
        assert_eq!(pacer.due(ms(210)), ms(220), "the first event counts");
        pacer.passed(ms(219), ms(220), Some(Duration::from_millis(80)));
        assert_eq!(pacer.due(ms(220)), ms(300), "the pass asked for it");
        pacer.passed(ms(219), ms(220), None);
        pacer.event(ms(715));
        assert_eq!(
            pacer.due(ms(715)),
            ms(720),
            "an event never delays the audit"
        );
    }

    #[test]
    fn long_passes_leave_time_between_them_and_audits_are_in_time_all_the_same() {
        let start = Instant::now();
        let ms = |n| start + Duration::from_millis(n);
        let mut pacer = Pacer::new();
        pacer.passed(start, ms(40), None);
        pacer.event(ms(41));
        assert_eq!(pacer.due(ms(41)), ms(200));
        pacer.passed(ms(200), ms(400), None);
        pacer.event(ms(401));
        assert_eq!(pacer.due(ms(401)), ms(900));
    }
}
