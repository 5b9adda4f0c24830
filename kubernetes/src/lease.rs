//! A Lease (`coordination.k8s.io/v1`) as a value, and whether its holder lives.

use std::time::Duration;

use serde_json::{Value, json};

/// Maximum time that a candidate waits for a holder. A record with a longer one is a mistake, and
/// must not keep the cluster without a leader.
const LONGEST: Duration = Duration::from_mins(5);

/// A Lease that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// `metadata.resourceVersion`: a write holds for this one alone.
    pub version: String,
    /// All other fields that change with a write of the Lease.
    pub record: Record,
}

/// The content of a Lease. A field that cannot be read is as good as missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `metadata.uid`: another one is another object of the same name.
    pub uid: String,
    /// `spec.holderIdentity`; none when the Lease was released.
    pub holder: Option<String>,
    /// `spec.leaseDurationSeconds`, at most five minutes.
    pub duration: Duration,
    /// `spec.leaseTransitions`.
    pub transitions: u32,
    /// `spec.renewTime`, which shows that the holder is alive. The holder's clock may be wrong, so
    /// the time is only compared with its earlier values.
    pub renewed: String,
}

impl Lease {
    /// Reads the object.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or(0);
        let transitions = spec["leaseTransitions"].as_u64().unwrap_or(0);
        Self {
            version: text(&metadata["resourceVersion"]),
            record: Record {
                uid: text(&metadata["uid"]),
                holder: Some(text(&spec["holderIdentity"])).filter(|holder| !holder.is_empty()),
                duration: Duration::from_secs(seconds).min(LONGEST),
                transitions: u32::try_from(transitions).unwrap_or(u32::MAX),
                renewed: text(&spec["renewTime"]),
            },
        }
    }
}

/// A Lease as it was last seen, with the time since when its record is unchanged.
///
/// Times are relative to an origin of the observer's choice, on a monotonic clock. No time stamp of
/// the Lease is compared with that clock, so wrong wall clocks on either side do no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The Lease; none where there is none.
    pub lease: Option<Lease>,
    /// When its record was first seen.
    pub since: Duration,
}

impl Sighting {
    /// The first sight of a Lease. It counts as renewed now, since the time of its last renewal is
    /// unknown.
    #[must_use]
    pub const fn first(now: Duration, lease: Option<Lease>) -> Self {
        Self { lease, since: now }
    }

    /// A later sight. A version that changes alone is a foreign field's: it does not show that the
    /// holder lives.
    #[must_use]
    pub fn then(self, now: Duration, lease: Option<Lease>) -> Self {
        let record = |lease: &Option<Lease>| lease.as_ref().map(|lease| lease.record.clone());
        let is_same = record(&self.lease) == record(&lease);
        let since = if is_same { self.since } else { now };
        Self { lease, since }
    }

    /// The holder.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        self.lease.as_ref()?.record.holder.as_deref()
    }

    /// The moment from which the holder counts as gone, after at least `duration`. Without a Lease
    /// there is no holder, but a holder whose Lease was deleted may not have noticed it yet.
    #[must_use]
    pub fn expiry(&self, duration: Duration) -> Duration {
        self.since
            + match &self.lease {
                None => Duration::ZERO,
                // It was released, which says so by a short time, or a person has emptied it.
                Some(Lease { record, .. }) if record.holder.is_none() => record.duration,
                Some(Lease { record, .. }) => duration.max(record.duration),
            }
    }
}

/// The fields that a candidate writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The holder; none releases the Lease.
    pub holder: Option<String>,
    /// The time for which other candidates wait, in whole seconds.
    pub duration: Duration,
    /// The number of times that the holder has changed.
    pub transitions: u32,
    /// True if the holder is another one than before.
    pub is_new: bool,
}

impl Claim {
    /// The Lease's `spec` as a merge patch. `clock` is the wall clock in RFC 3339 with six digits of
    /// the second (`MicroTime`): people read it, and no candidate of ours relies on it.
    #[must_use]
    pub fn spec(&self, clock: &str) -> Value {
        let mut spec = json!({
            "holderIdentity": self.holder.as_deref().unwrap_or_default(),
            "leaseDurationSeconds": self.duration.as_secs().max(1),
            "leaseTransitions": self.transitions,
            "renewTime": clock,
        });
        if self.is_new {
            spec["acquireTime"] = clock.into();
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_broken_is_one_without_a_holder() {
        for spec in [
            json!(null),
            json!({"holderIdentity": 7, "leaseDurationSeconds": "x", "leaseTransitions": -1}),
            json!({"holderIdentity": ""}),
        ] {
            let object = json!({"metadata": {"resourceVersion": "5", "uid": "u"}, "spec": spec});
            let lease = Lease::read(&object);
            assert_eq!(lease.version, "5");
            assert_eq!((lease.record.holder, lease.record.transitions), (None, 0));
        }
    }

    #[test]
    fn no_record_keeps_a_cluster_without_a_leader_for_ever() {
        let spec = json!({"holderIdentity": "a", "leaseDurationSeconds": u32::MAX});
        let record = Lease::read(&json!({"spec": spec})).record;
        assert_eq!(record.duration, LONGEST);
    }

    #[test]
    fn a_holder_lives_while_its_record_changes() {
        let at = Duration::from_secs;
        let lease = |version: &str, holder: &str, renewed: &str, seconds: u64| {
            let spec = json!({
                "holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed,
            });
            let metadata = json!({"resourceVersion": version, "uid": "u"});
            Some(Lease::read(&json!({"metadata": metadata, "spec": spec})))
        };
        let seen = Sighting::first(at(100), lease("1", "a", "x", 15));
        assert_eq!((seen.holder(), seen.expiry(at(15))), (Some("a"), at(115)));
        let seen = seen.then(at(105), lease("2", "a", "x", 15));
        assert_eq!(
            seen.expiry(at(15)),
            at(115),
            "somebody has put a label on it"
        );
        let seen = seen.then(at(110), lease("3", "a", "w", 15));
        assert_eq!(
            seen.expiry(at(15)),
            at(125),
            "by a clock that goes backwards"
        );
        let seen = seen.then(at(111), lease("4", "a", "v", 60));
        assert_eq!(seen.expiry(at(15)), at(171), "it asks for more time");
        let seen = seen.then(at(112), lease("5", "a", "u", 1));
        assert_eq!(seen.expiry(at(15)), at(127), "nobody gets less");
        let seen = seen.then(at(113), lease("6", "", "t", 1));
        assert_eq!((seen.holder(), seen.expiry(at(15))), (None, at(114)));
        let seen = seen.then(at(120), None);
        assert_eq!(seen.expiry(at(15)), at(120));
    }

    #[test]
    fn a_claim_is_written_as_the_api_wants_it() {
        let clock = "2001-09-09T01:46:40.000000Z";
        let mut claim = Claim {
            holder: Some("a".to_owned()),
            duration: Duration::from_secs(15),
            transitions: 3,
            is_new: true,
        };
        let spec = claim.spec(clock);
        assert_eq!(spec["renewTime"], clock);
        assert_eq!(spec["acquireTime"], spec["renewTime"]);
        assert_eq!(spec["holderIdentity"], "a");
        assert_eq!(spec["leaseDurationSeconds"], 15);
        assert_eq!(spec["leaseTransitions"], 3);
        claim.holder = None;
        claim.is_new = false;
        let spec = claim.spec(clock);
        assert_eq!(spec["holderIdentity"], "");
        assert!(spec.get("acquireTime").is_none());
    }
}
