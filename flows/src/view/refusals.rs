//! Flows that the programs have refused recently, and the reasons.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use datapath_common::outcome::DropReason;

/// Time for which a refusal is reported.
pub const LATELY: Duration = Duration::from_mins(5);

/// Refusals within this time are kept as one.
const GRAIN: Duration = Duration::from_secs(10);

/// Reasons to refuse a flow: no port, no room in a table, or no room in the endpoint's quota.
pub const REFUSALS: [DropReason; 6] = [
    DropReason::NoPort,
    DropReason::FlowsFull,
    DropReason::QuotaExceeded,
    DropReason::InboundFull,
    DropReason::InboundQuotaExceeded,
    DropReason::StackFull,
];

/// Packets of refused flows by reason, in the order of [`REFUSALS`], since the maps were made.
pub type Refused = [u64; REFUSALS.len()];

/// Packets that were refused lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    last: Option<Refused>,
    lately: VecDeque<(Instant, Refused)>,
}

impl Refusals {
    /// Takes the counts of this moment. Refusals before the first counts are not reported.
    pub(crate) fn take(&mut self, now: Instant, counts: Refused) {
        let before = self.last.replace(counts).unwrap_or(counts);
        let mut grown = counts;
        for (count, before) in grown.iter_mut().zip(before) {
            // The map may have been recreated.
            *count = count.saturating_sub(before);
        }
        self.lately
            .retain(|(at, _)| now.saturating_duration_since(*at) < LATELY);
        if grown.iter().all(|count| *count == 0) {
            return;
        }
        match self.lately.back_mut() {
            Some((at, counts)) if now.saturating_duration_since(*at) < GRAIN => {
                for (count, grown) in counts.iter_mut().zip(grown) {
                    *count += grown;
                }
            }
            Some(_) | None => self.lately.push_back((now, grown)),
        }
    }

    /// Packets that were refused lately, by reason.
    #[must_use]
    pub fn at(&self, now: Instant) -> BTreeMap<&'static str, u64> {
        let mut refused = BTreeMap::new();
        for (at, counts) in &self.lately {
            if now.saturating_duration_since(*at) >= LATELY {
                continue;
            }
            for (reason, count) in REFUSALS.iter().zip(counts).filter(|(_, count)| **count > 0) {
                *refused.entry(reason.name()).or_default() += count;
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_for_five_minutes() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let counts = |no_port, quota| [no_port, 0, quota, 0, 0, 0];
        let mut refusals = Refusals::default();
        refusals.take(start, counts(9, 9));
        assert_eq!(refusals.at(start), BTreeMap::new(), "from before the start");
        refusals.take(after(1), counts(9, 12));
        refusals.take(after(2), counts(10, 13));
        let both = BTreeMap::from([("no-port", 1), ("quota-exceeded", 4)]);
        assert_eq!(refusals.at(after(2)), both);
        refusals.take(after(100), counts(12, 13));
        assert_eq!(refusals.at(after(299))["no-port"], 3);
        let later = BTreeMap::from([("no-port", 2)]);
        assert_eq!(refusals.at(after(302)), later);
        refusals.take(after(302), counts(12, 13));
        assert_eq!(refusals.lately.len(), 1, "what is over is forgotten");
        assert_eq!(refusals.at(after(400)), BTreeMap::new());
    }

    #[test]
    fn counters_that_begin_again_are_no_refusal() {
        let start = Instant::now();
        let mut refusals = Refusals::default();
        refusals.take(start, [7; 6]);
        refusals.take(start, [0; 6]);
        assert_eq!(refusals.at(start), BTreeMap::new());
    }
}
