//! The Node's condition that says that pools have no address left.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde_json::{Value, json};
use testkit::fabric::document::NODE_NAME;
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::Kubectl;

use crate::cluster::{Cluster, SOON};
use crate::crd;

const CONDITION: &str = "TowpathAddressesExhausted";

fn conditions(cluster: &Cluster) -> Result<Vec<Value>> {
    let path = format!("/api/v1/nodes/{NODE_NAME}");
    let node = cluster.server.admin().get(&path)?.expect(200)?;
    let all = node["status"]["conditions"].as_array();
    Ok(all.cloned().unwrap_or_default())
}

/// Waits until the condition has a status.
fn condition_is(cluster: &Cluster, status: &str) -> Value {
    let look = || {
        let all = conditions(cluster)?;
        let mut all = all.into_iter();
        let found = all.find(|one| one["type"] == CONDITION);
        let found = found.context("there is no condition")?;
        check(found["status"] == status, || found.to_string())?;
        Ok(found)
    };
    let log = || cluster.fabric.agent.log();
    let what = format!("the condition is {status}");
    eventually(SOON, &what, look).with_context(log).unwrap().0
}

#[test]
fn a_full_node_has_a_condition_until_addresses_come() {
    let (mut cluster, _) = crd::cluster(2);
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let path = format!("/api/v1/nodes/{NODE_NAME}/status");
    let answer = cluster.server.admin().merge(&path, &ready).unwrap();
    answer.expect(200).unwrap();
    let mut guests = Vec::new();
    for name in ["one", "two"] {
        assert_eq!(conditions(&cluster).unwrap().len(), 1, "none is needed");
        let pod = cluster.pod("plain", name, &json!({})).unwrap();
        pod.add(&cluster.fabric);
        guests.push(pod);
    }
    let full = condition_is(&cluster, "True");
    assert_eq!(full["reason"], "PoolExhausted");
    let message = full["message"].as_str().unwrap();
    assert!(
        message.contains("pool default has no IPv4 address left"),
        "{message}"
    );
    assert!(full["lastTransitionTime"].is_string() && full["lastHeartbeatTime"].is_string());
    assert_eq!(conditions(&cluster).unwrap().len(), 2, "others stay");
    let kubectl = Kubectl::new(&cluster.server, &cluster.fabric.node, cluster.folder()).unwrap();
    let shown = kubectl.succeed(&["describe", "node", NODE_NAME]).unwrap();
    let mut lines = shown.lines();
    let line = lines.find(|line| line.contains(CONDITION)).unwrap();
    assert!(
        line.contains("True") && line.contains("PoolExhausted"),
        "{line}"
    );

    // Another agent goes on with it: it began when it began.
    cluster.restart().unwrap();
    let heartbeat = |last: &Value| {
        let all = conditions(&cluster)?;
        let found = all.iter().find(|one| one["type"] == CONDITION);
        let found = found.context("there is no condition")?;
        check(found["lastHeartbeatTime"] != *last, || found.to_string())?;
        Ok(found.clone())
    };
    let again = eventually(SOON, "it has a heartbeat", || {
        heartbeat(&full["lastHeartbeatTime"])
    });
    let again = again.unwrap().0;
    assert_eq!(again["status"], "True", "{again}");
    assert_eq!(again["lastTransitionTime"], full["lastTransitionTime"]);

    let blocks = cluster.eni(1).blocks.iter().map(IpNet::addr);
    let new = blocks.filter(IpAddr::is_ipv4).nth(2).unwrap();
    crd::pool(&cluster, &[new]);
    let room = condition_is(&cluster, "False");
    assert_eq!(room["reason"], "AddressesLeft");
    assert_ne!(room["lastTransitionTime"], full["lastTransitionTime"]);
    cluster.fabric.finish().unwrap();
}
