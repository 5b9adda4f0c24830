//! Documents as Cilium writes them, through the API server and back through our own types.

use datapath_common::mark::MarkLayout;
use node_document::parse;
use serde_json::{Value, json};
use testkit::kubernetes::ControlPlane;

const NODES: &str = "/apis/cilium.io/v2/ciliumnodes";
const POOLS: &str = "/apis/cilium.io/v2alpha1/ciliumpodippools";

/// Documents of both generations, as the resource has them.
const DOCUMENTS: [(&str, &str); 2] = [
    (
        "secondary addresses",
        include_str!("../../../node-document/tests/fixtures/node-secondary-addresses.json"),
    ),
    (
        "prefix delegation",
        include_str!("../../../node-document/tests/fixtures/node-prefix-delegation.yaml"),
    ),
];

fn parsed(document: &Value) -> loader::intent::Node {
    parse(&document.to_string(), MarkLayout::DEFAULT).unwrap()
}

/// A document as it was written, without what the server adds.
fn bare(mut document: Value) -> Value {
    let name = document["metadata"]["name"].clone();
    document["metadata"] = json!({"name": name});
    document
}

#[test]
fn documents_of_both_generations_come_back_as_they_were_written() {
    let plane = ControlPlane::create().unwrap();
    let server = &plane.server;
    let admin = server.admin();
    for (what, text) in DOCUMENTS {
        let mut written: Value = serde_yaml_ng::from_str(text).unwrap();
        // Further fields of Cilium that our schema does not name.
        written["spec"]["encryption"] = json!({"key": 3});
        written["spec"]["azure"] = json!({"interface-name": "eth1"});
        written["spec"]["ipam"]["of-a-later-release"] = json!({"a": [1, 2]});
        let written = bare(written);
        let made = admin.post(NODES, &written).unwrap().expect(201).unwrap();
        // Its status is written apart, and only so.
        assert_eq!(made["status"], Value::Null, "{what}");
        let name = made["metadata"]["name"].as_str().unwrap();
        let path = format!("{NODES}/{name}");
        let mut with_status = made.clone();
        with_status["status"] = written["status"].clone();
        let answer = admin.put(&format!("{path}/status"), &with_status);
        answer.unwrap().expect(200).unwrap();
        let read = admin.get(&path).unwrap().expect(200).unwrap();
        assert_eq!(bare(read.clone()), written, "{what}");
        assert_eq!(parsed(&read), parsed(&written), "{what}");
        assert!(!parsed(&read).enis.is_empty(), "{what}");
    }
}

#[test]
fn the_schema_refuses_what_nobody_can_read_and_names_the_field() {
    let plane = ControlPlane::create().unwrap();
    let server = &plane.server;
    let admin = server.admin();
    let node = |ipam: &Value| {
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "one"},
            "spec": {"ipam": ipam}
        })
    };
    for (ipam, field) in [
        (json!({"pre-allocate": -1}), "spec.ipam.pre-allocate"),
        (
            json!({"pools": {"requested": [{"pool": "", "needed": {}}]}}),
            "spec.ipam.pools.requested[0].pool",
        ),
        (
            json!({"pools": {"allocated": [{"pool": "a", "cidrs": ["10.0.0.300/32"]}]}}),
            "spec.ipam.pools.allocated[0].cidrs",
        ),
    ] {
        let answer = admin.post(NODES, &node(&ipam)).unwrap();
        assert_eq!(answer.code, 422, "{answer}");
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains(field), "{message}");
    }
    let pool = |spec: &Value| {
        json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
            "metadata": {"name": "blue"}, "spec": spec
        })
    };
    let refused = pool(&json!({"ipv4": {"cidrs": [], "maskSize": 33}}));
    let answer = admin.post(POOLS, &refused).unwrap();
    assert_eq!(answer.code, 422, "{answer}");
    let message = answer.body["message"].as_str().unwrap();
    for field in ["spec.ipv4.cidrs", "spec.ipv4.maskSize"] {
        assert!(message.contains(field), "{message}");
    }
    let good = pool(&json!({
        "ipv4": {"cidrs": ["10.20.0.0/16"], "maskSize": 24},
        "podSelector": {"matchLabels": {"io.kubernetes.pod.namespace": "blue"}},
        "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    }));
    let made = admin.post(POOLS, &good).unwrap().expect(201).unwrap();
    assert_eq!(made["spec"]["allowFirstIP"], false);
}

#[test]
fn who_has_no_rights_gets_none_and_a_restart_keeps_everything() {
    let mut plane = ControlPlane::create().unwrap();
    let server = &mut plane.server;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "nobody", "namespace": "default"}
    });
    server.apply(&[account]).unwrap();
    let token = server.token_of("default", "nobody").unwrap();
    assert_eq!(server.with_token(&token).get(NODES).unwrap().code, 403);
    assert_eq!(server.with_token("wrong").get(NODES).unwrap().code, 401);
    let node = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "one"}, "spec": {}
    });
    server
        .admin()
        .post(NODES, &node)
        .unwrap()
        .expect(201)
        .unwrap();
    server.kill();
    assert!(server.admin().get(NODES).is_err());
    server.resume().unwrap();
    let path = format!("{NODES}/one");
    server.admin().get(&path).unwrap().expect(200).unwrap();
    // Tokens are good for as long as the key is the same.
    assert_eq!(server.with_token(&token).get(NODES).unwrap().code, 403);
}

#[test]
fn what_a_pool_may_not_change_is_refused_by_the_servers_own_rules() {
    let plane = ControlPlane::create().unwrap();
    let server = &plane.server;
    let admin = server.admin();
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": "blue"},
        "spec": {
            "ipv4": {"cidrs": ["10.20.0.0/16"], "maskSize": 24},
            "ipv6": {"cidrs": ["fd00:20::/64"], "maskSize": 96}
        }
    });
    admin.post(POOLS, &pool).unwrap().expect(201).unwrap();
    let path = format!("{POOLS}/blue");
    for (spec, field) in [
        (json!({"ipv4": {"maskSize": 26}}), "spec.ipv4.maskSize"),
        (json!({"ipv6": {"maskSize": 112}}), "spec.ipv6.maskSize"),
        (json!({"allowFirstIP": true}), "spec.allowFirstIP"),
        (json!({"allowLastIP": true}), "spec.allowLastIP"),
    ] {
        let answer = admin.merge(&path, &json!({"spec": spec})).unwrap();
        assert_eq!(answer.code, 422, "{answer}");
        let message = answer.body["message"].as_str().unwrap();
        let expected = format!("{field}: Invalid value: ");
        assert!(message.contains(&expected), "{message}");
        assert!(message.contains("cannot be changed"), "{message}");
    }
    // More addresses and other pods are no such change.
    let more = json!({"spec": {
        "ipv4": {"cidrs": ["10.20.0.0/16", "10.21.0.0/16"]},
        "podSelector": {"matchLabels": {"app": "web"}}
    }});
    admin.merge(&path, &more).unwrap().expect(200).unwrap();
}
