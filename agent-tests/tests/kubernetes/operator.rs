//! Beside the operator: what the node waits for, and what both have to agree on.

use serde_json::{Value, json};

use crate::cluster::{Cluster, NODE};

const NODE_STATUS: &str = "/apis/cilium.io/v2/ciliumnodes/fabric-node/status";

fn write_status(cluster: &Cluster, status: &Value) {
    let patch = json!({"status": status});
    let answer = cluster.server.admin().merge(NODE_STATUS, &patch).unwrap();
    answer.expect(200).unwrap();
}

#[test]
fn pods_wait_for_the_public_address_that_the_node_is_to_have() {
    let mut cluster = Cluster::create().unwrap();
    cluster.node().unwrap();
    cluster.operate().unwrap();
    cluster.wait_until_ready().unwrap();
    // From the settings, before any document has them.
    let tags = json!({"kubernetes": {"ipam": {"static-ip-tags": "team=a"}}});
    cluster.fabric.agent.configure(&tags).unwrap();
    cluster.restart().unwrap();
    cluster
        .node_is("it asks for the address", |node| {
            node["spec"]["ipam"]["static-ip-tags"] == json!({"team": "a"})
        })
        .unwrap();
    // For a moment after the restart it waits for the pools as well.
    cluster
        .status_is("it says what it waits for", |status| {
            let waiting = status["allocation"]["waiting"].as_array();
            let waiting = waiting.is_some_and(|all| {
                let awaited = |one: &Value| one.to_string().contains("assigned-static-ip");
                all.len() == 1 && all.iter().all(awaited)
            });
            let notes = status["document"]["notes"].to_string();
            waiting && notes.contains("no public address with the tags team=a")
        })
        .unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let pod = cluster.pod("plain", "one", &json!({})).unwrap();
    let (_, answer) = pod.try_add(&cluster.fabric);
    assert_eq!(answer["error"]["code"], "not-ready", "{answer}");
    assert_eq!(answer["error"]["retry"], true, "{answer}");
    let assigned = json!({"ipam": {"assigned-static-ip": "203.0.113.7"}});
    write_status(&cluster, &assigned);
    cluster
        .status_is("it has come", |status| {
            status["allocation"]["waiting"] == json!([])
        })
        .unwrap();
    pod.add(&cluster.fabric);
    cluster.fabric.finish().unwrap();
}

/// Makes the pool blue, bound to ENI 1, and one that selects no pod.
fn make_pools(cluster: &Cluster) {
    let subnet = format!("subnet-0fab{:013x}", cluster.eni(1).number);
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": "blue", "annotations": {"ipam.towpath.dev/subnet-ids": subnet}},
        "spec": {"ipv4": {"cidrs": ["10.0.0.0/16"], "maskSize": 32}}
    });
    let odd = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": "odd"},
        "spec": {
            "ipv4": {"cidrs": ["10.99.0.0/16"], "maskSize": 32},
            "podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}
        }
    });
    for pool in [pool, odd] {
        let pools = "/apis/cilium.io/v2alpha1/ciliumpodippools";
        let answer = cluster.server.admin().post(pools, &pool).unwrap();
        answer.expect(201).unwrap();
    }
}

#[test]
fn a_pool_of_an_eni_counts_more_than_its_exclusion_and_conflicts_are_told() {
    let mut cluster = Cluster::create().unwrap();
    cluster.node().unwrap();
    let id = cluster.eni(1).id();
    make_pools(&cluster);
    let tags = json!({"kubernetes": {"eni": {"exclude-interface-tags": "cilium=off"}}});
    cluster.fabric.agent.configure(&tags).unwrap();
    cluster.restart().unwrap();
    cluster.operate().unwrap();
    cluster.wait_until_ready().unwrap();
    let conflict = format!("ENI 1 ({id}) is bound to pool blue, and its tags do not match");
    let status = cluster
        .status_is("the operator would count it for another pool", |status| {
            let problems = status["allocation"]["problems"].to_string();
            problems.contains(&conflict)
        })
        .unwrap();
    let reasons = status["health"]["reasons"].to_string();
    assert!(reasons.contains("pool odd selects no pod"), "{reasons}");

    let tags = json!({"eni": {"enis": {id: {"tags": {"cilium": "off"}}}}});
    write_status(&cluster, &tags);
    cluster
        .status_is("both agree", |status| {
            let eni = &status["enis"][1];
            let notes = eni["notes"].to_string();
            let problems = status["allocation"]["problems"].to_string();
            notes.contains("for pods because pool blue is bound to it")
                && eni["readiness"]["state"] == "ready"
                && !problems.contains("is bound to pool")
        })
        .unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let blue = json!({"ipam.cilium.io/ip-pool": "blue"});
    let of_blue = cluster.pod("plain", "blue", &blue).unwrap();
    assert_eq!(of_blue.add(&cluster.fabric).1, 1);
    let plain = cluster.pod("plain", "plain", &json!({})).unwrap();
    assert_eq!(plain.add(&cluster.fabric).1, 0);
    // Without the pool it is left alone, as the operator leaves it.
    of_blue.delete(&cluster.fabric);
    let admin = cluster.server.admin();
    let path = "/apis/cilium.io/v2alpha1/ciliumpodippools/blue";
    admin.delete(path).unwrap().expect(200).unwrap();
    cluster
        .status_is("it is excluded", |status| {
            status["enis"][1]["readiness"]["state"] == "excluded"
        })
        .unwrap();
    admin.get(NODE).unwrap().expect(200).unwrap();
    cluster.fabric.finish().unwrap();
}
