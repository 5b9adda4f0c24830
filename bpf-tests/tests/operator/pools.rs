//! Pools that are bound to ENIs, and blocks that go back.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::cloud::audit::published;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, NODES, SOON, node_name, world};

pub(crate) const POOLS: &str = "/apis/cilium.io/v2alpha1/ciliumpodippools";

/// The cloud with two more security groups.
pub(crate) fn with_groups(instances: usize) -> Value {
    let mut world = world(instances);
    if let Some(groups) = world["groups"].as_array_mut() {
        groups.push(json!({"id": "sg-blue", "vpc": "vpc-1", "name": "blue"}));
        groups.push(json!({"id": "sg-red", "vpc": "vpc-1", "name": "red"}));
    }
    world
}

pub(crate) fn pool(name: &str, subnet: &str, group: &str) -> Value {
    json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": name, "annotations": {
            "ipam.towpath.dev/subnet-ids": subnet,
            "ipam.towpath.dev/security-groups": group
        }},
        "spec": {"ipv4": {"cidrs": ["10.9.0.0/16"], "maskSize": 28}}
    })
}

#[test]
fn two_pools_have_enis_of_their_own_on_the_same_nodes() {
    let bed = Bed::of_world(with_groups(2)).unwrap();
    let admin = bed.plane.server.admin();
    for pool in [
        pool("blue", "subnet-2", "sg-blue"),
        pool("red", "subnet-2", "sg-red"),
    ] {
        admin.post(POOLS, &pool).unwrap().expect(201).unwrap();
    }
    let operator = bed.start(0, &json!({})).unwrap();
    for number in 0..2 {
        bed.add_node(number, 8).unwrap();
        let requested = json!([
            {"pool": "default", "needed": {"ipv4-addrs": 8}},
            {"pool": "blue", "needed": {"ipv4-addrs": 3}},
            {"pool": "red", "needed": {"ipv4-addrs": 2}}
        ]);
        let patch = json!({"spec": {"ipam": {"pools": {"requested": requested}}}});
        let path = format!("{NODES}/{}", node_name(number));
        admin.merge(&path, &patch).unwrap().expect(200).unwrap();
    }
    for number in 0..2 {
        let node = bed.node_has(number, 13).unwrap();
        let enis = node["status"]["eni"]["enis"].as_object().unwrap();
        for (name, count) in [("blue", 3), ("red", 2)] {
            let mut of_pool = enis
                .values()
                .filter(|eni| eni["tags"]["ipam.towpath.dev/pool"] == name);
            let eni = of_pool.next().unwrap();
            assert!(of_pool.next().is_none(), "{name}");
            assert_eq!(eni["addresses"].as_array().unwrap().len(), count);
            assert_eq!(eni["subnet"]["id"], "subnet-2");
            assert_eq!(eni["security-groups"], json!([format!("sg-{name}")]));
        }
    }
    let shown: Vec<Value> = serde_json::from_str(&operator.ask("pools -o json").unwrap()).unwrap();
    let blue = shown.iter().find(|it| it["name"] == "blue").unwrap();
    assert_eq!((&blue["enis"], &blue["wanted"]), (&json!(2), &json!(6)));
    assert!(operator.ask("pools").unwrap().contains("blue"));
    let metrics = operator.get("/metrics").unwrap();
    assert!(
        metrics.contains("towpath_operator_pool_addresses{pool=\"red\"} 4"),
        "{metrics}"
    );
    bed.finish().unwrap();
}

/// The delay alone takes three minutes.
#[test]
fn a_block_that_nobody_claims_goes_back() {
    if std::env::var_os("TOWPATH_FULL").is_none() {
        return;
    }
    let bed = Bed::create(1).unwrap();
    let _operator = bed
        .start(0, &json!({"addresses": {"release": "on"}}))
        .unwrap();
    bed.add_node(0, 14).unwrap();
    let claim = |count: usize| {
        let all = published(&bed.node(0).unwrap());
        let mut cidrs: Vec<String> = all.iter().map(|(_, it)| format!("{it}/32")).collect();
        cidrs.truncate(count);
        let pools = json!({
            "requested": [{"pool": "default", "needed": {"ipv4-addrs": count}}],
            "allocated": [{"pool": "default", "cidrs": cidrs}]
        });
        let patch = json!({
            "metadata": {"annotations": {"ipam.towpath.dev/agent": "1.0.0"}},
            "spec": {"ipam": {"pools": pools}}
        });
        let path = format!("{NODES}/{}", node_name(0));
        bed.plane
            .server
            .admin()
            .merge(&path, &patch)
            .unwrap()
            .expect(200)
            .unwrap();
    };
    bed.node_has(0, 14).unwrap();
    claim(14);
    let look = || {
        let node = bed.node(0)?;
        let mark = &node["status"]["ipam"]["release-ips"]["ipam.towpath.dev/operator"];
        check(mark.is_string(), || node.to_string())
    };
    eventually(SOON, "the operator's mark", look).unwrap();
    claim(10);
    let look = || {
        let attached: usize = bed.cloud.peek(|cloud| {
            cloud
                .interfaces()
                .map(|eni| eni.addresses.blocks.len())
                .sum()
        });
        check(attached == 10, || {
            format!("{attached} blocks, {}", bed.logs())
        })
    };
    eventually(Duration::from_mins(6), "four addresses are gone", look).unwrap();
    assert_eq!(published(&bed.node(0).unwrap()).len(), 10);
    bed.finish().unwrap();
}
