//! Pods that wait on their node for an address.

use std::collections::BTreeMap;

use serde_json::Value;

/// The field selector of pods that may wait. All other conditions are checked here: API servers
/// before 1.32 do not select by `spec.hostNetwork`.
pub const SELECTOR: &str = "status.phase=Pending,spec.nodeName!=";

/// The node on which a pod waits for an address; `None` where it waits for none.
#[must_use]
pub fn waits_on(pod: &Value) -> Option<&str> {
    let (metadata, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
    let has_address = status["podIPs"]
        .as_array()
        .is_some_and(|ips| !ips.is_empty())
        || status["podIP"].as_str().is_some_and(|ip| !ip.is_empty());
    let waits = status["phase"] == "Pending"
        && spec["hostNetwork"] != true
        && metadata["deletionTimestamp"].is_null()
        && !has_address;
    let node = spec["nodeName"].as_str().filter(|node| !node.is_empty());
    node.filter(|_| waits)
}

/// The number of waiting pods by node, of the nodes on which pods wait.
#[must_use]
pub fn surge(waiting: impl IntoIterator<Item = String>) -> BTreeMap<String, u32> {
    let mut nodes = BTreeMap::new();
    for node in waiting {
        let count: &mut u32 = nodes.entry(node).or_default();
        *count = count.saturating_add(1);
    }
    nodes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_pod_that_needs_an_address_of_its_node_waits() {
        let waiting = json!({
            "metadata": {"name": "web"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}
        });
        assert_eq!(waits_on(&waiting), Some("n1"));
        for (pointer, value) in [
            ("/status/phase", json!("Running")),
            ("/status/phase", json!("Failed")),
            ("/status/podIPs", json!([{"ip": "10.0.0.7"}])),
            ("/status/podIP", json!("10.0.0.7")),
            ("/spec/hostNetwork", json!(true)),
            ("/spec/nodeName", json!("")),
            ("/spec/nodeName", json!(null)),
            ("/metadata/deletionTimestamp", json!("2026-11-27T09:00:00Z")),
        ] {
            let mut pod = waiting.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[key] = value.clone();
            assert_eq!(waits_on(&pod), None, "{pointer}: {value}");
        }
        for (pointer, value) in [
            ("/status/podIPs", json!([])),
            ("/status/podIP", json!("")),
            ("/spec/hostNetwork", json!(false)),
        ] {
            let mut pod = waiting.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[key] = value.clone();
            assert_eq!(waits_on(&pod), Some("n1"), "{pointer}: {value}");
        }
        assert_eq!(waits_on(&json!(null)), None);
    }

    #[test]
    fn waiting_pods_are_counted_by_node() {
        let counted = surge(["b", "a", "b"].map(str::to_owned));
        assert_eq!(counted, [("a".to_owned(), 1), ("b".to_owned(), 2)].into());
    }
}
