//! A token bucket for each action, as EC2 counts calls.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

/// The budget of an action.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Calls at once.
    pub burst: f64,
    /// Calls a second.
    pub refill: f64,
}

/// Reads, by AWS's documentation of throttling of the EC2 API.
const READ: Rate = Rate {
    burst: 100.0,
    refill: 20.0,
};
/// Reads of everything, without filter, ids and page size.
const LIST: Rate = Rate {
    burst: 50.0,
    refill: 10.0,
};
/// Changes that are not in another group.
const CHANGE: Rate = Rate {
    burst: 50.0,
    refill: 5.0,
};
/// Creation, deletion and addresses of interfaces.
const INTERFACE: Rate = Rate {
    burst: 100.0,
    refill: 5.0,
};
const TAG: Rate = Rate {
    burst: 100.0,
    refill: 10.0,
};

/// The name of the budget of unfiltered reads of an action.
pub(crate) fn unfiltered(action: &str) -> String {
    format!("{action}/unfiltered")
}

/// The usual budget of an action.
pub(crate) fn usual(action: &str) -> Rate {
    match action {
        _ if action.ends_with("/unfiltered") => LIST,
        _ if action.starts_with("Describe") || action.starts_with("Get") => READ,
        "CreateTags" => TAG,
        "CreateNetworkInterface"
        | "DeleteNetworkInterface"
        | "AssignPrivateIpAddresses"
        | "UnassignPrivateIpAddresses"
        | "AssignIpv6Addresses"
        | "UnassignIpv6Addresses" => INTERFACE,
        _ => CHANGE,
    }
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    since: Timestamp,
}

/// The budgets of an account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    rates: BTreeMap<String, Rate>,
    buckets: BTreeMap<String, Bucket>,
}

impl Buckets {
    pub(crate) fn new(rates: BTreeMap<String, Rate>) -> Self {
        Self {
            rates,
            buckets: BTreeMap::new(),
        }
    }

    /// Takes a token; `false` when there is none.
    pub(crate) fn take(&mut self, budget: &str, now: Timestamp) -> bool {
        let rate = self
            .rates
            .get(budget)
            .copied()
            .unwrap_or_else(|| usual(budget));
        let bucket = self.buckets.entry(budget.to_owned()).or_insert(Bucket {
            tokens: rate.burst,
            since: now,
        });
        let elapsed = now.duration_since(bucket.since).as_secs_f64().max(0.0);
        bucket.tokens = (bucket.tokens + elapsed * rate.refill).min(rate.burst);
        bucket.since = bucket.since.max(now);
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::Buckets;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_refill() {
        let mut buckets = Buckets::default();
        let mut now = Timestamp::UNIX_EPOCH;
        let burst = (0..200).filter(|_| buckets.take("CreateNetworkInterface", now));
        assert_eq!(burst.count(), 100);
        now += SignedDuration::from_secs(10);
        let refill = (0..200).filter(|_| buckets.take("CreateNetworkInterface", now));
        assert_eq!(refill.count(), 50);
        assert!(buckets.take("AttachNetworkInterface", now));
    }

    #[test]
    fn a_clock_that_jumps_back_gives_nothing() {
        let mut buckets = Buckets::default();
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(100);
        while buckets.take("CreateTags", now) {}
        assert!(!buckets.take("CreateTags", Timestamp::UNIX_EPOCH));
        assert!(!buckets.take("CreateTags", now));
    }
}
