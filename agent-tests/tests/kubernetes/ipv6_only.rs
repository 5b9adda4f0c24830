//! A node without IPv4 in a cluster: its `CiliumNode` has subnets without `cidr` and ENIs without `ip`.

use serde_json::{Value, json};
use testkit::fabric::Spec;
use testkit::fabric::layout::Addressing;

use crate::cluster::Cluster;

/// Demand of the node for the default pool.
fn needed(node: &Value) -> Value {
    let requested = node["spec"]["ipam"]["pools"]["requested"].as_array();
    let mut requested = requested.into_iter().flatten();
    let entry = requested.find(|entry| entry["pool"] == "default");
    entry.map_or(Value::Null, |entry| entry["needed"].clone())
}

#[test]
fn a_node_without_ipv4_asks_for_ipv6_and_gives_it() {
    let spec = Spec {
        v6_only: vec![0, 1],
        addressing: Addressing::Prefixes,
        ..Spec::default()
    };
    let mut cluster = Cluster::prepare_on(&spec, false).unwrap();
    let settings = json!({
        "ipam": {"families": ["ipv6"]}, "services": {"cidrs": ["fd5e::/108"]}
    });
    cluster.fabric.agent.configure(&settings).unwrap();
    cluster.start().unwrap();
    // It requests nothing of the other family, neither at first nor later.
    let asks = |count: u64| {
        let what = format!("{count} of IPv6 and nothing else");
        let wanted = json!({"ipv6-addrs": count});
        cluster
            .node_is(&what, |node| needed(node) == wanted)
            .unwrap()
    };
    asks(8);
    cluster.operate().unwrap();
    let gives = |status: &Value| status["allocation"]["waiting"] == json!([]);
    cluster.status_is("addresses are given", gives).unwrap();
    let ready = |status: &Value| status["health"]["state"] == "ready";
    cluster.status_is("a ready node", ready).unwrap();
    let node = cluster.node().unwrap();
    let enis = node["status"]["eni"]["enis"].as_object().unwrap();
    for eni in enis.values() {
        let has = [&eni["ip"], &eni["subnet"]["cidr"]];
        assert_eq!(has, [&Value::Null; 2], "the server keeps it so");
    }
    cluster.namespace("plain", &json!({})).unwrap();
    let pod = cluster.pod("plain", "one", &json!({})).unwrap();
    let pod = pod.of_any_family();
    let (address, _) = pod.add(&cluster.fabric);
    assert!(address.contains(':'), "{address}");
    asks(9);
    cluster.fabric.agent.ask("GET", "/v1/ready", None).unwrap();
    cluster.fabric.finish().unwrap();
}
