//! The agent's own addresses in the node's object, and the event for missing ones.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, SOON};

/// Changes the settings of the agent's own addresses, and restarts the agent.
fn restart(cluster: &mut Cluster, settings: &Value) {
    let state = json!({"state-dir": cluster.fabric.file("own")});
    for settings in [&state, settings] {
        let section = json!({"agent-addresses": settings});
        cluster.fabric.agent.configure(&section).unwrap();
    }
    cluster.restart().unwrap();
    cluster.wait_until_ready().unwrap();
}

/// The addresses in the agent's list, by the names of the families in `spec.ingress`.
fn listed(cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    let listed = cluster.fabric.agent.ask("GET", "/v1/addresses", None)?;
    let leases = listed["leases"].as_array().into_iter().flatten();
    let own = leases.filter(|lease| lease["state"] == "agent");
    let by_family = own.map(|lease| {
        let address = &lease["address"];
        let is_ipv6 = address.as_str().is_some_and(|text| text.contains(':'));
        let family = if is_ipv6 { "ipv6" } else { "ipv4" };
        (family.to_owned(), address.clone())
    });
    Ok(by_family.collect())
}

#[test]
fn the_nodes_object_has_the_agents_addresses_for_as_long_as_the_agent() {
    let cluster = Cluster::prepare(false).unwrap();
    let families = json!({"ipam": {"families": ["ipv4", "ipv6"]}});
    cluster.fabric.agent.configure(&families).unwrap();
    let mut cluster = cluster.made_ready().unwrap();
    let node = cluster.node().unwrap();
    assert_eq!(node["spec"]["ingress"], json!(null), "they are off");

    restart(&mut cluster, &json!({"ingress": "on"}));
    let has_both = |node: &Value| {
        let ingress = &node["spec"]["ingress"];
        ingress["ipv4"].is_string() && ingress["ipv6"].is_string()
    };
    let node = cluster
        .node_is("both addresses are there", has_both)
        .unwrap();
    let ingress = node["spec"]["ingress"].clone();
    assert_eq!(json!(listed(&cluster).unwrap()), ingress);
    // An agent that starts clears nothing, not even for a moment: the watch has every write.
    let version = node["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!(
        "/apis/cilium.io/v2/ciliumnodes?watch=true&timeoutSeconds=1&resourceVersion={version}"
    );
    cluster.restart().unwrap();
    cluster.wait_until_ready().unwrap();
    eventually(SOON, "the next agent has the same", || {
        let listed = json!(listed(&cluster)?);
        check(listed == ingress, || listed.to_string())
    })
    .unwrap();
    let body = cluster.server.admin().get(&path).unwrap().body;
    let text = body
        .as_str()
        .map_or_else(|| body.to_string(), str::to_owned);
    for line in text.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let is_write = event["type"] == "MODIFIED";
        assert!(
            !is_write || event["object"]["spec"]["ingress"] == ingress,
            "{event}"
        );
    }

    restart(&mut cluster, &json!({"ingress": "off"}));
    let has_none = |node: &Value| node["spec"]["ingress"].is_null();
    cluster.node_is("both are gone", has_none).unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn an_event_of_the_node_names_what_is_missing() {
    let mut cluster = Cluster::ready().unwrap();
    restart(&mut cluster, &json!({"ingress": "on", "pool": "gateways"}));
    let events = "/api/v1/namespaces/default/events?fieldSelector=reason=AgentAddressMissing";
    let found = eventually(SOON, "the event is there", || {
        let list = cluster.server.admin().get(events)?.expect(200)?;
        check(
            list["items"].as_array().is_some_and(|all| all.len() == 1),
            || list.to_string(),
        )?;
        Ok(list["items"][0].clone())
    });
    let (event, _) = found.unwrap();
    assert_eq!(event["involvedObject"]["kind"], "Node", "{event}");
    assert_eq!(event["type"], "Warning", "{event}");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("pool gateways"), "{message}");
    let node = cluster.node().unwrap();
    assert_eq!(node["spec"]["ingress"], json!(null), "{node}");
    // Pods do not wait for these addresses.
    cluster.namespace("apps", &json!({})).unwrap();
    cluster
        .pod("apps", "web", &json!({}))
        .unwrap()
        .add(&cluster.fabric);
    cluster.fabric.finish().unwrap();
}
