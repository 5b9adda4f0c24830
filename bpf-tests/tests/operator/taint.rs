//! Nodes whose agent is not ready.

use anyhow::{Context as _, Result};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, SOON, node_name};

const PODS: &str = "/api/v1/namespaces/kube-system/pods";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/towpath-operator";
const TAINT: &str = "node.towpath.dev/agent-not-ready";
/// The time after which a leader would have tainted a node, by the shortest time of the setting.
const TAINTED: SignedDuration = SignedDuration::from_secs(15);
/// The taint of another controller.
const FOREIGN: &str = "example.com/maintenance";

/// Creates the agent's pod of a node.
pub(crate) fn add_agent(bed: &Bed, number: usize, is_ready: bool) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("agent-{number}"), "labels": {"app.kubernetes.io/name": "towpath"}
        },
        "spec": {
            "nodeName": node_name(number), "containers": [{"name": "agent", "image": "none"}]
        }
    });
    bed.plane.server.admin().post(PODS, &pod)?.expect(201)?;
    set_ready(bed, number, is_ready)
}

/// Writes the condition of a pod, as its kubelet does.
fn set_ready(bed: &Bed, number: usize, is_ready: bool) -> Result<()> {
    let status = if is_ready { "True" } else { "False" };
    let conditions = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    let path = format!("{PODS}/agent-{number}/status");
    let admin = bed.plane.server.admin();
    admin.merge(&path, &conditions)?.expect(200).map(drop)
}

/// The keys and effects of a node's taints.
fn taints(bed: &Bed, number: usize) -> Result<Vec<(String, String)>> {
    let path = format!("/api/v1/nodes/{}", node_name(number));
    let node = bed.plane.server.admin().get(&path)?.expect(200)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    Ok(taints
        .map(|it| (text(&it["key"]), text(&it["effect"])))
        .collect())
}

/// Waits until a node has the taint, or does not have it. Those of other controllers stay.
fn has_taint(bed: &Bed, number: usize, others: &[(String, String)], has: bool) -> Result<()> {
    let ours = (TAINT.to_owned(), "NoSchedule".to_owned());
    let mut expected = others.to_vec();
    expected.extend(has.then_some(ours));
    let look = || {
        let taints = taints(bed, number)?;
        check(taints == expected, || format!("{taints:?}"))
    };
    let what = format!("node {number} has {expected:?}");
    eventually(SOON, &what, look)
        .map(drop)
        .inspect_err(|_| println!("{}", bed.logs()))
}

/// Waits until the leader has renewed its Lease after this time.
fn renewed_after(bed: &Bed, time: Timestamp) -> Result<()> {
    let look = || {
        let lease = bed.plane.server.admin().get(LEASE)?.expect(200)?;
        let renewed = lease["spec"]["renewTime"].as_str().context("no renewal")?;
        let renewed: Timestamp = renewed.parse()?;
        check(renewed > time, || format!("renewed at {renewed}"))
    };
    eventually(SOON, "the Lease is renewed", look).map(drop)
}

#[test]
fn a_node_is_tainted_by_the_leader_while_its_agent_is_not_ready() {
    let bed = Bed::create(2).unwrap();
    let leader = bed.start(0, &json!({"taint": {"enabled": false}})).unwrap();
    for number in 0..2 {
        bed.add_node(number, 8).unwrap();
        bed.node_has(number, 8).unwrap();
    }
    let foreign = json!({"spec": {"taints": [
        {"key": FOREIGN, "value": "soon", "effect": "NoExecute"}
    ]}});
    let admin = bed.plane.server.admin();
    let patched = admin.merge("/api/v1/nodes/node-0", &foreign).unwrap();
    patched.expect(200).unwrap();
    let others = [0, 1].map(|number| taints(&bed, number).unwrap());
    assert_eq!(others[0], [(FOREIGN.to_owned(), "NoExecute".to_owned())]);
    let follower = bed.start(1, &json!({"taint": {"after": "10s"}})).unwrap();
    follower
        .log_has(&["no other operator serves ENIs"])
        .unwrap();
    let begun = Timestamp::now();
    add_agent(&bed, 0, false).unwrap();
    add_agent(&bed, 1, true).unwrap();
    renewed_after(&bed, begun + TAINTED).unwrap();
    for (number, others) in others.iter().enumerate() {
        assert_eq!(taints(&bed, number).unwrap(), *others, "{number}");
    }
    assert!(leader.stop().unwrap());
    has_taint(&bed, 0, &others[0], true).unwrap();
    set_ready(&bed, 0, true).unwrap();
    has_taint(&bed, 0, &others[0], false).unwrap();
    // A node without an agent's pod has no ready agent.
    let deleted = admin.delete(&format!("{PODS}/agent-0?gracePeriodSeconds=0"));
    deleted.unwrap().expect(200).unwrap();
    set_ready(&bed, 1, false).unwrap();
    for (number, others) in (0..).zip(&others) {
        has_taint(&bed, number, others, true).unwrap();
    }
    assert!(follower.stop().unwrap());
    bed.finish().unwrap();
}
