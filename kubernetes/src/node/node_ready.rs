//! Marks that keep pods off a node until its network works: a taint that it was started with, and
//! the condition `NetworkUnavailable` that a cloud provider may have set. Both are removed once,
//! when the agent is ready, and never restored: running pods need no taint.

use serde_json::{Value, json};

/// The condition by which a node says that it has no network
/// (`NodeNetworkUnavailable` in `k8s.io/api/core/v1/types.go`).
const CONDITION: &str = "NetworkUnavailable";

/// The merge patch that removes a taint from a Node; none if it has no taint of that key. It is
/// valid only for this version of the object.
#[must_use]
pub fn without_taint(node: &Value, key: &str) -> Option<Value> {
    let taints = node["spec"]["taints"].as_array()?;
    let left: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != key).collect();
    if left.len() == taints.len() {
        return None;
    }
    let metadata = &node["metadata"];
    Some(json!({
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"taints": left},
    }))
}

/// The strategic merge patch of a Node's status that reports its network as available. None if the
/// Node has no such condition, or has it so already. `now` is a time in RFC 3339 format.
#[must_use]
pub fn network_available(node: &Value, now: &str) -> Option<Value> {
    let mut conditions = node["status"]["conditions"].as_array()?.iter();
    let there = conditions.find(|condition| condition["type"] == CONDITION)?;
    if there["status"] == "False" {
        return None;
    }
    Some(json!({"status": {"conditions": [{
        "type": CONDITION, "status": "False", "reason": "TowpathIsReady",
        "message": "Towpath gives pods their network on this node",
        "lastTransitionTime": now, "lastHeartbeatTime": now,
    }]}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_taint_of_that_key_goes_with_any_effect() {
        let key = "node.towpath.dev/agent-not-ready";
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        let mut node = json!({
            "metadata": {"uid": "u-1", "resourceVersion": "7"},
            "spec": {"taints": [
                taint(key, "NoSchedule"), taint("other", "NoSchedule"), taint(key, "NoExecute")
            ]}
        });
        assert_eq!(
            without_taint(&node, key),
            Some(json!({
                "metadata": {"uid": "u-1", "resourceVersion": "7"},
                "spec": {"taints": [taint("other", "NoSchedule")]}
            }))
        );
        assert_eq!(without_taint(&node, "of-nobody"), None);
        node["spec"] = json!({});
        assert_eq!(without_taint(&node, key), None);
    }

    #[test]
    fn a_condition_that_is_there_is_made_right_and_none_is_made() {
        let node = |conditions: Value| json!({"status": {"conditions": conditions}});
        let condition = |status: &str| json!({"type": CONDITION, "status": status});
        let ready = json!({"type": "Ready", "status": "True"});
        for status in ["True", "Unknown"] {
            let patch = network_available(&node(json!([ready, condition(status)])), "now").unwrap();
            let conditions = patch["status"]["conditions"].as_array().unwrap();
            assert_eq!(conditions.len(), 1);
            assert_eq!(conditions[0]["status"], "False");
        }
        for node in [
            node(json!([ready])),
            node(json!([condition("False")])),
            json!({}),
        ] {
            assert_eq!(network_available(&node, "now"), None);
        }
    }
}
