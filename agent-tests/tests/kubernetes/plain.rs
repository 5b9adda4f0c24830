//! Plain pools: the operator adds blocks, and the node takes them away.

use ipnet::IpNet;
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, Guest, NODE, SOON, allocated, requested};

const POOL: &str = "mars";

/// A cluster with a plain pool, and a namespace whose pods are on it.
fn cluster() -> Cluster {
    let settings = json!({
        "ipam": {"cooldown": 1, "pre-allocate": "default=8,mars=4"},
        "plain-pools": {"native": true}
    });
    let cluster = Cluster::prepare(false).unwrap();
    cluster.fabric.agent.configure(&settings).unwrap();
    let cluster = cluster.made_ready().unwrap();
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": POOL},
        "spec": {"ipv4": {"cidrs": ["172.20.0.0/24"], "maskSize": 28}}
    });
    let pools = "/apis/cilium.io/v2alpha1/ciliumpodippools";
    let made = cluster.server.admin().post(pools, &pool).unwrap();
    made.expect(201).unwrap();
    let annotations = json!({"ipam.cilium.io/ip-pool": POOL});
    cluster.namespace(POOL, &annotations).unwrap();
    cluster
}

/// Adds blocks to what the node has, as the operator does.
fn give(cluster: &Cluster, blocks: &[&str]) {
    let add = || {
        let admin = cluster.server.admin();
        let node = admin.get(NODE)?.expect(200)?;
        let pools = &node["spec"]["ipam"]["pools"];
        let mut entries: Vec<Value> = pools["allocated"].as_array().cloned().unwrap_or_default();
        let mut cidrs = allocated(&node, POOL);
        cidrs.extend(blocks.iter().map(|&block| block.to_owned()));
        entries.retain(|entry| entry["pool"] != POOL);
        entries.push(json!({"pool": POOL, "cidrs": cidrs}));
        let patch = json!({
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"ipam": {"pools": {"allocated": entries}}}
        });
        // The node may write in between.
        admin.merge(NODE, &patch)?.expect(200)
    };
    eventually(SOON, "the operator writes", add).unwrap();
}

fn address(answer: &Value) -> &str {
    answer["addresses"][0]["address"]
        .as_str()
        .unwrap_or_default()
}

/// No address is there yet: the pod's ADD fails, and raises the demand.
fn a_pod_without_an_address_raises_the_demand(cluster: &Cluster, pod: &Guest) {
    let exhausted = || {
        let (_, answer) = pod.try_add(&cluster.fabric);
        let code = &answer["error"]["code"];
        check(code == "pool-exhausted", || answer.to_string())
    };
    eventually(SOON, "the pool is known", exhausted).unwrap();
    let events = || {
        let path = format!("/api/v1/namespaces/{POOL}/events");
        let events = cluster.server.admin().get(&path)?.expect(200)?;
        let said = events.to_string();
        check(said.contains("PoolExhausted"), || said.clone())
    };
    eventually(SOON, "an event tells of it", events).unwrap();
    cluster
        .node_is("it asks for more, rounded up", |node| {
            requested(node, POOL) == Some(8)
        })
        .unwrap();
}

/// More blocks come than are needed. The pod gets an address, and its block alone stays.
fn blocks_that_are_not_needed_go_back(cluster: &Cluster, pod: &Guest) -> IpNet {
    give(
        cluster,
        &["172.20.0.0/28", "172.20.0.16/28", "172.20.0.32/28"],
    );
    let add = || {
        let (status, answer) = pod.try_add(&cluster.fabric);
        check(status == 200, || answer.to_string())?;
        Ok(answer)
    };
    let (answer, _) = eventually(SOON, "the pod is added", add).unwrap();
    assert!(address(&answer).starts_with("172.20.0."), "{answer}");
    let node = cluster
        .node_is("one block is enough", |node| {
            allocated(node, POOL).len() == 1
        })
        .unwrap();
    let kept = allocated(&node, POOL).remove(0);
    let net: IpNet = kept.parse().unwrap();
    assert!(net.contains(&address(&answer).parse::<std::net::IpAddr>().unwrap()));
    net
}

/// A block that goes and comes back is as good as any.
fn a_block_that_comes_back_is_used(cluster: &Cluster, pod: &Guest) {
    give(cluster, &["172.20.0.16/28"]);
    let add = || {
        let (status, answer) = pod.try_add(&cluster.fabric);
        check(status == 200, || answer.to_string())
    };
    eventually(SOON, "the last pod is added", add).unwrap();
}

#[test]
fn blocks_come_when_they_are_asked_for_and_go_when_nobody_needs_them() {
    let mut cluster = cluster();
    cluster
        .node_is("it asks for what is kept in store", |node| {
            requested(node, POOL) == Some(4)
        })
        .unwrap();
    let pod = cluster.pod(POOL, "one", &json!({})).unwrap();
    a_pod_without_an_address_raises_the_demand(&cluster, &pod);

    let net = blocks_that_are_not_needed_go_back(&cluster, &pod);

    // Nor does another agent think of them as its own.
    cluster.restart().unwrap();
    cluster.wait_until_ready().unwrap();
    let guests: Vec<_> = (0..20)
        .map(|n| cluster.pod(POOL, &format!("more-{n}"), &json!({})).unwrap())
        .collect();
    let answers = guests.iter().map(|guest| guest.try_add(&cluster.fabric));
    let added: Vec<_> = answers.filter(|(status, _)| *status == 200).collect();
    assert_eq!(added.len(), 13, "all that one block has");
    for (_, answer) in &added {
        assert!(net.contains(&address(answer).parse::<std::net::IpAddr>().unwrap()));
    }

    a_block_that_comes_back_is_used(&cluster, guests.last().unwrap());

    for guest in guests.iter().chain([&pod]) {
        guest.delete(&cluster.fabric);
    }
    // Those that got nothing wait until their objects are gone.
    let names = (0..20).map(|n| format!("more-{n}"));
    for name in names.chain(["one".to_owned()]) {
        let pods = format!("/api/v1/namespaces/{POOL}/pods");
        let path = format!("{pods}/{name}?gracePeriodSeconds=0");
        let admin = cluster.server.admin();
        admin.delete(&path).unwrap().expect(200).unwrap();
    }
    cluster
        .node_is("what is kept in store is left", |node| {
            requested(node, POOL) == Some(4) && allocated(node, POOL).len() == 1
        })
        .unwrap();
    cluster.fabric.finish().unwrap();
}
