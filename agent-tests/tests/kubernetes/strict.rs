//! The server refuses fields that it does not know: none of the agent's writes has one.

use std::time::Instant;

use serde_json::json;
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::proxy::{Kind, Noted};

use crate::cluster::{Cluster, NODE, SOON, requested};

/// A write of the agent: its method, and how its path ends.
const WRITES: [(&str, &str); 5] = [
    ("POST", "/ciliumnodes"),
    ("PATCH", "/ciliumnodes/fabric-node"),
    ("POST", "/events"),
    ("PATCH", "/nodes/fabric-node"),
    ("PATCH", "/nodes/fabric-node/status"),
];

/// Waits until every kind of write was made, and returns all of them.
fn every_kind_is_made(cluster: &Cluster) -> Vec<Noted> {
    let began = Instant::now();
    let all_made = || {
        let writes = cluster.proxy().writes();
        let is_made = |(method, end): &(&str, &str)| {
            writes
                .iter()
                .any(|write| write.request.method == *method && write.request.path.ends_with(end))
        };
        let missing: Vec<_> = WRITES.iter().filter(|write| !is_made(write)).collect();
        check(missing.is_empty(), || {
            format!("{missing:?}, {:?}", began.elapsed())
        })?;
        Ok(writes)
    };
    eventually(SOON, "every kind of write was made", all_made)
        .unwrap()
        .0
}

#[test]
fn every_write_of_the_agent_has_known_fields_alone() {
    let cluster = Cluster::prepare(true).unwrap();
    cluster.proxy().be_strict();
    let admin = cluster.server.admin();
    let taints = json!({"spec": {"taints": [
        {"key": "node.towpath.dev/agent-not-ready", "effect": "NoSchedule"}
    ]}});
    let node = "/api/v1/nodes/fabric-node";
    admin.merge(node, &taints).unwrap().expect(200).unwrap();
    let condition = json!({"status": {"conditions": [
        {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"}
    ]}});
    let status = format!("{node}/status");
    admin
        .merge(&status, &condition)
        .unwrap()
        .expect(200)
        .unwrap();
    let cluster = cluster.made_ready().unwrap();
    let admin = cluster.server.admin();
    let blue = json!({"ipam.cilium.io/ip-pool": "blue"});
    cluster.namespace("blue", &blue).unwrap();
    let pod = cluster.pod("blue", "one", &json!({})).unwrap();
    assert_ne!(pod.try_add(&cluster.fabric).0, 200);
    cluster
        .node_is("its demand is written", |node| {
            requested(node, "blue") == Some(1)
        })
        .unwrap();
    let writes = every_kind_is_made(&cluster);
    for write in &writes {
        assert!(
            write.code.is_some_and(|code| code < 300 || code == 409),
            "{write:?}"
        );
    }

    // The check is one: an unknown field is refused.
    let odd = json!({"status": {"conditions": [], "no-such-field": 1}});
    let strict = format!("{status}?fieldValidation=Strict");
    let answer = admin.merge(&strict, &odd).unwrap();
    assert_eq!(answer.code, 422, "{answer}");
    let kinds = [Kind::MakeNode, Kind::ChangeNode];
    for kind in kinds {
        assert!(
            writes.iter().any(|write| write.request.is(kind)),
            "{kind:?}"
        );
    }
    assert_eq!(admin.get(NODE).unwrap().code, 200);
    cluster.fabric.finish().unwrap();
}
