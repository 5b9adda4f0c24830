//! The taint of nodes whose agent is not ready, so that no pod is scheduled where it would get no
//! network.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

/// The key of the taint. A node may have it from its start, with an effect of its own choice.
pub const TAINT: &str = "node.towpath.dev/agent-not-ready";
/// The effect: pods that run go on.
const EFFECT: &str = "NoSchedule";

/// An agent's pod as far as it counts here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    /// The node that it is on.
    pub node: String,
    /// True if it is ready.
    pub is_ready: bool,
}

impl AgentPod {
    /// Reads a pod; `None` where it has no node yet.
    #[must_use]
    pub fn read(pod: &Value) -> Option<Self> {
        let node = pod["spec"]["nodeName"].as_str()?;
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_ready = conditions.any(|one| one["type"] == "Ready" && one["status"] == "True");
        let is_ending = !pod["metadata"]["deletionTimestamp"].is_null();
        (!node.is_empty()).then(|| Self {
            node: node.to_owned(),
            is_ready: is_ready && !is_ending,
        })
    }
}

/// The nodes whose agent is not ready, and since when.
///
/// Times are since a moment of the caller's own choice, on a clock that does not jump. A new leader
/// begins without memory: a taint that is there stays until the agent is ready.
#[derive(Debug)]
pub struct Readiness {
    after: Duration,
    /// `None` stands for a ready one.
    nodes: BTreeMap<String, Option<Duration>>,
}

impl Readiness {
    /// Taints a node after this time.
    #[must_use]
    pub const fn new(after: Duration) -> Self {
        Self {
            after,
            nodes: BTreeMap::new(),
        }
    }

    /// Updates our nodes and the agents' pods. A node without an agent's pod is not ready.
    ///
    /// Without any such pod nothing is concluded: the agents are not installed yet, or are being
    /// removed, or have other labels.
    pub fn see<'a>(
        &mut self,
        now: Duration,
        nodes: impl IntoIterator<Item = &'a str>,
        pods: &[AgentPod],
    ) {
        if pods.is_empty() {
            self.nodes.clear();
            return;
        }
        let ready = pods.iter().filter(|pod| pod.is_ready);
        let ready: BTreeSet<&str> = ready.map(|pod| pod.node.as_str()).collect();
        let known = std::mem::take(&mut self.nodes);
        for node in nodes {
            let since = if ready.contains(node) {
                None
            } else {
                Some(known.get(node).copied().flatten().unwrap_or(now))
            };
            self.nodes.insert(node.to_owned(), since);
        }
    }

    /// The verdict on a node: `true` adds the taint, `false` removes it, and `None` changes
    /// nothing.
    #[must_use]
    pub fn verdict(&self, now: Duration, node: &str) -> Option<bool> {
        match self.nodes.get(node)? {
            None => Some(false),
            Some(since) => (now >= *since + self.after).then_some(true),
        }
    }

    /// The next moment at which a verdict changes by itself; `None` where none does.
    #[must_use]
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let due = self
            .nodes
            .values()
            .flatten()
            .map(|since| *since + self.after);
        due.filter(|due| *due > now).min()
    }
}

/// The merge patch of a Node that adds or removes the taint; `None` if there is no change. It is
/// valid for one version of the object, because a list is replaced as a whole and foreign taints
/// must stay.
#[must_use]
pub fn patch(node: &Value, is_tainted: bool) -> Option<Value> {
    let taints = node["spec"]["taints"].as_array();
    let taints: Vec<&Value> = taints.into_iter().flatten().collect();
    let is_ours = |taint: &Value| taint["key"] == TAINT && taint["effect"] == EFFECT;
    if taints.iter().any(|taint| is_ours(taint)) == is_tainted {
        return None;
    }
    let ours = json!({"key": TAINT, "effect": EFFECT});
    let left = taints.into_iter().filter(|taint| !is_ours(taint));
    let taints: Vec<&Value> = left.chain(is_tainted.then_some(&ours)).collect();
    let metadata = &node["metadata"];
    Some(json!({
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"taints": taints},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pod(node: &str, is_ready: bool) -> AgentPod {
        AgentPod {
            node: node.to_owned(),
            is_ready,
        }
    }

    #[test]
    fn an_agent_is_ready_as_its_pod_says() {
        let of = |status: &str, metadata: Value| {
            AgentPod::read(&json!({
                "metadata": metadata, "spec": {"nodeName": "n1"},
                "status": {"conditions": [
                    {"type": "Initialized", "status": "True"}, {"type": "Ready", "status": status}
                ]}
            }))
        };
        assert_eq!(of("True", json!({})), Some(pod("n1", true)));
        for status in ["False", "Unknown"] {
            assert_eq!(of(status, json!({})), Some(pod("n1", false)));
        }
        let ending = json!({"deletionTimestamp": "2026-11-27T09:00:00Z"});
        assert_eq!(of("True", ending), Some(pod("n1", false)));
        assert_eq!(AgentPod::read(&json!({"spec": {"nodeName": ""}})), None);
        assert_eq!(AgentPod::read(&json!({})), None);
    }

    #[test]
    fn a_node_is_tainted_when_its_agent_has_not_been_ready_for_the_time() {
        let mut readiness = Readiness::new(at(120));
        let nodes = ["n1", "n2", "n3"];
        let pods = [pod("n1", true), pod("n2", false)];
        readiness.see(at(10), nodes, &pods);
        assert_eq!(readiness.verdict(at(10), "n1"), Some(false));
        readiness.see(at(100), nodes, &pods);
        for node in ["n2", "n3"] {
            assert_eq!(readiness.verdict(at(129), node), None, "{node}");
            assert_eq!(readiness.verdict(at(130), node), Some(true), "{node}");
        }
        assert_eq!(readiness.due(at(100)), Some(at(130)));
        assert_eq!(readiness.due(at(130)), None);
        assert_eq!(readiness.verdict(at(130), "unknown"), None);
        // It is ready for a moment: the time begins again.
        readiness.see(at(140), nodes, &[pod("n1", true), pod("n2", true)]);
        assert_eq!(readiness.verdict(at(140), "n2"), Some(false));
        readiness.see(at(141), nodes, &pods);
        assert_eq!(readiness.verdict(at(260), "n2"), None);
        assert_eq!(readiness.verdict(at(261), "n2"), Some(true));
    }

    #[test]
    fn a_pod_that_is_replaced_counts_by_its_successor() {
        let mut readiness = Readiness::new(at(120));
        let pods = [pod("n1", false), pod("n1", true)];
        readiness.see(at(0), ["n1"], &pods);
        assert_eq!(readiness.verdict(at(0), "n1"), Some(false));
    }

    #[test]
    fn a_cluster_without_any_agent_is_left_alone() {
        let mut readiness = Readiness::new(at(120));
        readiness.see(at(0), ["n1"], &[pod("n1", false)]);
        readiness.see(at(200), ["n1"], &[]);
        assert_eq!(readiness.verdict(at(999), "n1"), None);
        readiness.see(at(1000), ["n1"], &[pod("n1", false)]);
        assert_eq!(
            readiness.verdict(at(1000), "n1"),
            None,
            "its time begins again"
        );
    }

    #[test]
    fn a_patch_leaves_foreign_taints_as_they_are() {
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        let foreign = [
            json!({"key": "a", "value": "b", "effect": "NoExecute", "timeAdded": "t"}),
            taint(TAINT, "NoExecute"),
        ];
        let node = |taints: Value| json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"taints": taints}});
        let bare = node(json!(foreign));
        let added = patch(&bare, true).unwrap();
        let both = json!([foreign[0], foreign[1], taint(TAINT, "NoSchedule")]);
        assert_eq!(added["spec"]["taints"], both);
        assert_eq!(added["metadata"], bare["metadata"]);
        assert_eq!(patch(&node(both.clone()), true), None);
        let removed = patch(&node(both), false).unwrap();
        assert_eq!(removed["spec"]["taints"], json!(foreign));
        assert_eq!(patch(&bare, false), None);
        let first = patch(&json!({"metadata": {}, "spec": {}}), true).unwrap();
        assert_eq!(first["spec"]["taints"], json!([taint(TAINT, "NoSchedule")]));
    }
}
