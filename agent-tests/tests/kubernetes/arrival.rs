//! A Node that keeps pods off until the agent is ready.

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, SOON};

const NODE: &str = "/api/v1/nodes/fabric-node";
const TAINT: &str = "node.towpath.dev/agent-not-ready";

fn node(cluster: &Cluster) -> Value {
    let answer = cluster.server.admin().get(NODE).unwrap();
    answer.expect(200).unwrap()
}

fn taint(cluster: &Cluster, keys: &[&str]) {
    let taints = keys
        .iter()
        .map(|key| json!({"key": key, "effect": "NoSchedule"}));
    let taints: Vec<Value> = taints.collect();
    let patch = json!({"spec": {"taints": taints}});
    let answer = cluster.server.admin().merge(NODE, &patch).unwrap();
    answer.expect(200).unwrap();
}

fn keys(node: &Value) -> Vec<&str> {
    let taints = node["spec"]["taints"].as_array();
    let taints = taints.into_iter().flatten();
    taints.map(|taint| taint["key"].as_str().unwrap()).collect()
}

fn condition(node: &Value) -> &Value {
    let mut conditions = node["status"]["conditions"].as_array().unwrap().iter();
    conditions
        .find(|condition| condition["type"] == "NetworkUnavailable")
        .unwrap()
}

#[test]
fn the_taint_and_the_condition_go_when_the_agent_is_ready_and_not_before() {
    let mut cluster = Cluster::create().unwrap();
    taint(&cluster, &[TAINT, "other"]);
    let conditions = json!({"status": {"conditions": [
        {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"},
        {"type": "Ready", "status": "True"}
    ]}});
    let status = format!("{NODE}/status");
    let answer = cluster.server.admin().merge(&status, &conditions).unwrap();
    answer.expect(200).unwrap();
    cluster.node().unwrap();
    let agent = &cluster.fabric.agent;
    assert_eq!(agent.request("GET", "/v1/ready", None).unwrap().0, 503);
    assert_eq!(keys(&node(&cluster)), [TAINT, "other"]);
    cluster.operate().unwrap();
    cluster.wait_until_ready().unwrap();
    let look = || {
        let node = node(&cluster);
        let is_done = keys(&node) == ["other"] && condition(&node)["status"] == "False";
        check(is_done, || node.to_string())
    };
    eventually(SOON, "pods are let in", look).unwrap();
    let there = node(&cluster);
    assert_eq!(condition(&there)["reason"], "TowpathIsReady");
    assert_eq!(there["status"]["conditions"].as_array().unwrap().len(), 2);
    // It never comes back, not even when the agent ends.
    cluster.fabric.agent.stop().unwrap();
    assert_eq!(keys(&node(&cluster)), ["other"]);
    cluster.fabric.finish().unwrap();
}

#[test]
fn a_taint_that_nobody_asked_for_stays() {
    let settings = json!({"kubernetes": {"startup-taint": null}});
    let mut cluster = Cluster::create_with(&settings).unwrap();
    taint(&cluster, &[TAINT]);
    let conditions = json!({"status": {"conditions": [
        {"type": "NetworkUnavailable", "status": "Unknown"}
    ]}});
    let status = format!("{NODE}/status");
    let answer = cluster.server.admin().merge(&status, &conditions).unwrap();
    answer.expect(200).unwrap();
    cluster.node().unwrap();
    cluster.operate().unwrap();
    cluster.wait_until_ready().unwrap();
    // That it is done with the Node shows by the condition.
    let look = || {
        let node = node(&cluster);
        check(condition(&node)["status"] == "False", || node.to_string())
    };
    eventually(SOON, "the condition is made right", look).unwrap();
    assert_eq!(keys(&node(&cluster)), [TAINT]);
    cluster.fabric.finish().unwrap();
}
