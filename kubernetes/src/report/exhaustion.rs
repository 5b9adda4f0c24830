//! The Node's condition for pools without an address for new pods, for alerts, dashboards and
//! `kubectl describe node`. It affects neither scheduling nor eviction.

use std::time::Duration;

use serde_json::{Value, json};

/// Type of the condition.
pub const CONDITION: &str = "TowpathAddressesExhausted";
/// Most characters of its message.
const MESSAGE_MAX: usize = 2048;

/// When the condition is written. Times are since whatever moment, on a clock that does not jump.
#[derive(Debug, Default)]
pub struct Exhaustion {
    /// Since when pools have no address left.
    since: Option<Duration>,
    /// The last try to write, good or not.
    tried: Option<Duration>,
    written: Option<Written>,
}

/// The last that was written.
#[derive(Debug)]
struct Written {
    exhausted: Vec<String>,
    at: Duration,
    /// True if the Node has the condition.
    is_there: bool,
}

impl Exhaustion {
    /// Two tries are at least so far apart.
    pub const APART: Duration = Duration::from_secs(10);
    /// The time that pools are without an address before that is written: a node that has just come
    /// waits for its first blocks.
    pub const LASTS: Duration = Duration::from_secs(10);
    /// The time between heartbeats of an unchanged condition.
    pub const HEARTBEAT: Duration = Duration::from_mins(5);

    /// True if the condition is to be written now, where these pools have no address left.
    pub fn is_due(&mut self, now: Duration, exhausted: &[String]) -> bool {
        let since = *self.since.get_or_insert(now);
        if exhausted.is_empty() {
            self.since = None;
        }
        if self.tried.is_some_and(|tried| now < tried + Self::APART) {
            return false;
        }
        let was_exhausted = self.written.as_ref().map(|last| !last.exhausted.is_empty());
        let begins = !exhausted.is_empty() && was_exhausted != Some(true);
        if begins && now < since + Self::LASTS {
            return false;
        }
        self.written.as_ref().is_none_or(|last| {
            last.exhausted != exhausted || (last.is_there && now >= last.at + Self::HEARTBEAT)
        })
    }

    /// A try begins.
    pub const fn tries(&mut self, now: Duration) {
        self.tried = Some(now);
    }

    /// The Node is right: it has the condition, or needs none.
    pub fn written(&mut self, now: Duration, exhausted: Vec<String>, is_there: bool) {
        self.written = Some(Written {
            exhausted,
            at: now,
            is_there,
        });
    }
}

/// The strategic merge patch of a Node's status that corrects its condition. A Node without the
/// condition needs none while all pools have addresses. `now` is a time in RFC 3339 format.
#[must_use]
pub fn patch(node: &Value, exhausted: &[String], now: &str) -> Option<Value> {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let there = conditions.find(|condition| condition["type"] == CONDITION);
    if there.is_none() && exhausted.is_empty() {
        return None;
    }
    let (status, reason, message) = if exhausted.is_empty() {
        let message = "each pool that pods ask for has an address left".to_owned();
        ("False", "AddressesLeft", message)
    } else {
        ("True", "PoolExhausted", exhausted.join("; "))
    };
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let same = there.filter(|there| there["status"] == status);
    let since = same.and_then(|there| there["lastTransitionTime"].as_str());
    Some(json!({"status": {"conditions": [{
        "type": CONDITION, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since.unwrap_or(now), "lastHeartbeatTime": now,
    }]}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn full(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn a_change_is_written_once_it_lasts_and_tries_are_apart() {
        let mut due = Exhaustion::default();
        let v4 = full("pool default has no IPv4 address left");
        // A node that comes has no blocks for a moment.
        assert!(!due.is_due(at(0), &v4));
        assert!(!due.is_due(at(9), &v4));
        assert!(due.is_due(at(10), &[]), "the first look is written");
        due.tries(at(10));
        due.written(at(10), Vec::new(), false);
        assert!(!due.is_due(at(25), &v4), "the spell has begun again");
        assert!(due.is_due(at(35), &v4));
        due.tries(at(35));
        // That failed.
        assert!(!due.is_due(at(44), &v4));
        assert!(due.is_due(at(45), &v4));
        due.tries(at(45));
        due.written(at(45), v4.clone(), true);
        assert!(!due.is_due(at(60), &v4));
        // Other words are news, and room is news at once.
        assert!(!due.is_due(at(54), &[]));
        assert!(due.is_due(at(55), &full("pool default and another")));
        assert!(due.is_due(at(55), &[]));
    }

    #[test]
    fn a_condition_that_is_there_has_heartbeats_and_a_node_without_it_is_left_alone() {
        let heartbeat = Exhaustion::HEARTBEAT.as_secs();
        for is_there in [true, false] {
            let mut due = Exhaustion::default();
            assert!(due.is_due(at(0), &[]));
            due.tries(at(0));
            due.written(at(0), Vec::new(), is_there);
            assert!(!due.is_due(at(heartbeat - 1), &[]));
            assert_eq!(due.is_due(at(heartbeat), &[]), is_there);
        }
    }

    #[test]
    fn the_transition_is_when_the_status_changed_and_the_heartbeat_is_now() {
        let v4 = full("pool default has no IPv4 address left");
        let apply = |node: &Value, exhausted: &[String], now: &str| {
            let patch = patch(node, exhausted, now)?;
            let conditions = patch["status"]["conditions"].as_array()?.clone();
            assert_eq!(conditions.len(), 1);
            Some(conditions[0].clone())
        };
        let node = |condition: &Value| {
            let ready = json!({"type": "Ready", "status": "True"});
            json!({"status": {"conditions": [ready, condition]}})
        };
        assert_eq!(apply(&json!({}), &[], "t0"), None);
        let began = apply(&json!({}), &v4, "t1").unwrap();
        assert_eq!(began["status"], "True");
        assert_eq!(began["reason"], "PoolExhausted");
        assert_eq!(began["message"], v4[0].as_str());
        assert_eq!(began["lastTransitionTime"], "t1");
        let lasts = apply(&node(&began), &full("also IPv6"), "t2").unwrap();
        assert_eq!(lasts["lastTransitionTime"], "t1");
        assert_eq!(lasts["lastHeartbeatTime"], "t2");
        assert_eq!(lasts["message"], "also IPv6");
        let over = apply(&node(&lasts), &[], "t3").unwrap();
        assert_eq!(over["status"], "False");
        assert_eq!(over["lastTransitionTime"], "t3");
        let still = apply(&node(&over), &[], "t4").unwrap();
        assert_eq!(still["lastTransitionTime"], "t3");
        assert_eq!(still["lastHeartbeatTime"], "t4");
        // A corrupted condition is repaired.
        let odd = json!({"type": CONDITION, "status": "True", "lastTransitionTime": 7});
        let mended = apply(&node(&odd), &v4, "t5").unwrap();
        assert_eq!(mended["lastTransitionTime"], "t5");
        let long = apply(&json!({}), &full(&"é".repeat(9000)), "t6").unwrap();
        let message = long["message"].as_str().unwrap();
        assert_eq!(message.chars().count(), MESSAGE_MAX);
    }
}
