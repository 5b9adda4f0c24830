//! Counts of calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cloud::Failure;

/// The outcome of a call that went through.
const OK: &str = "ok";
/// The outcome of a call without an answer.
const UNANSWERED: &str = "unanswered";

/// Counts of calls by name and outcome.
#[derive(Debug, Default)]
pub struct Meter {
    counts: Mutex<Counts>,
}

/// Number and time of the calls of a name with an outcome.
type Counts = BTreeMap<(&'static str, String), (u64, Duration)>;

/// Calls of one name with one outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The call, such as `CreateNetworkInterface`.
    pub call: &'static str,
    /// `ok`, `unanswered`, or EC2's code.
    pub outcome: String,
    /// The number of calls.
    pub calls: u64,
    /// The time that they took together.
    pub took: Duration,
}

impl Meter {
    /// Counts a call.
    pub fn count(&self, call: &'static str, failure: Option<&Failure>, took: Duration) {
        let outcome = match failure.map(|it| it.code.as_str()) {
            None => OK,
            Some("") => UNANSWERED,
            Some(code) => code,
        };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (calls, total) = counts.entry((call, outcome.to_owned())).or_default();
        *calls = calls.saturating_add(1);
        *total = total.saturating_add(took);
    }

    /// All counts, ordered by call and outcome.
    #[must_use]
    pub fn counts(&self) -> Vec<Count> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |(key, value): (&(&'static str, String), &(u64, Duration))| Count {
            call: key.0,
            outcome: key.1.clone(),
            calls: value.0,
            took: value.1,
        };
        counts.iter().map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use cloud::Action;

    use super::*;

    #[test]
    fn calls_are_counted_by_name_and_outcome() {
        let meter = Meter::default();
        let took = Duration::from_millis(20);
        let denied = Failure::answered(Action::Create, 403, "UnauthorizedOperation", "no");
        let lost = Failure::unanswered(Action::Create, "reset");
        meter.count("CreateNetworkInterface", None, took);
        meter.count("CreateNetworkInterface", Some(&denied), took);
        meter.count("CreateNetworkInterface", None, took);
        meter.count("CreateNetworkInterface", Some(&lost), took);
        meter.count("DescribeSubnets", None, took);
        let counts = meter.counts();
        let shown: Vec<_> = counts
            .iter()
            .map(|it| (it.call, it.outcome.as_str(), it.calls))
            .collect();
        let expected = [
            ("CreateNetworkInterface", "UnauthorizedOperation", 1),
            ("CreateNetworkInterface", "ok", 2),
            ("CreateNetworkInterface", "unanswered", 1),
            ("DescribeSubnets", "ok", 1),
        ];
        assert_eq!(shown, expected);
        assert_eq!(counts[1].took, 2 * took);
    }
}
