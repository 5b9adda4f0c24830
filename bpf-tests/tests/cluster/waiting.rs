//! Pods that wait for blocks of their pool, with a kubelet that retries at its own pace.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::cluster::{Cluster, ClusterSpec, PLAIN_POOL, SOON, deployment, plain_pool};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::ProxyMode;

use crate::lifecycle::cilium_node;

const PODS: u32 = 2;
/// Attempts of the kubelet for each pod while there is no block.
const ATTEMPTS: u64 = 3;

/// Entries of the plain pool in a list of the node's object.
fn of_pool(cluster: &Cluster, list: &str) -> Result<Vec<Value>> {
    let node = cilium_node(cluster, &cluster.workers[0].name())?;
    let entries = node["spec"]["ipam"]["pools"][list].as_array();
    let entries = entries.into_iter().flatten();
    let of_pool = entries.filter(|entry| entry["pool"] == PLAIN_POOL);
    Ok(of_pool.cloned().collect())
}

/// True if the node requests an address of each family for every pod.
fn is_requested(cluster: &Cluster) -> Result<bool> {
    let requested = of_pool(cluster, "requested")?;
    let is_needed = |family: &str| {
        let needed = requested
            .iter()
            .filter_map(|e| e["needed"][family].as_u64());
        needed.sum::<u64>() >= u64::from(PODS)
    };
    Ok(is_needed("ipv4-addrs") && is_needed("ipv6-addrs"))
}

/// Number of the kubelet's attempts that failed for lack of addresses, by pod.
fn failures(cluster: &Cluster) -> Result<BTreeMap<String, u64>> {
    let path = "/api/v1/namespaces/default/events";
    let events = cluster.admin().get(path)?.expect(200)?;
    let mut failures = BTreeMap::new();
    for event in events["items"].as_array().into_iter().flatten() {
        let message = event["message"].as_str().unwrap_or_default();
        let pod = event["involvedObject"]["name"].as_str().unwrap_or_default();
        if event["reason"] == "FailedCreatePodSandBox" && message.contains("address left") {
            let count = event["count"].as_u64().unwrap_or(1);
            *failures.entry(pod.to_owned()).or_default() += count;
        }
    }
    Ok(failures)
}

/// Each failed attempt is followed by a DEL, and the next one has another sandbox.
#[test]
fn pods_are_up_at_the_kubelet_s_next_try_after_their_blocks_came() {
    let spec = ClusterSpec {
        workers: 1,
        ..ClusterSpec::new(ProxyMode::Nftables)
    };
    let cluster = Cluster::ready(&spec).unwrap();
    let operator = cluster.operator.as_ref().unwrap();
    operator.give_blocks(false);
    let mut pods = deployment("default", PLAIN_POOL, PODS);
    let chosen = json!({"ipam.cilium.io/ip-pool": PLAIN_POOL});
    pods["spec"]["template"]["metadata"]["annotations"] = chosen;
    cluster.apply(&[plain_pool(), pods]).unwrap();

    let requested = || check(is_requested(&cluster)?, || "too little".to_owned());
    eventually(SOON, "both families are requested for each pod", requested).unwrap();
    let refused = || {
        assert!(is_requested(&cluster)?, "who waits was forgotten");
        let failures = failures(&cluster)?;
        let waiting = failures.values().filter(|count| **count >= ATTEMPTS);
        check(waiting.count() >= PODS as usize, || format!("{failures:?}"))
    };
    eventually(SOON, "the kubelet has tried again and again", refused).unwrap();

    operator.give_blocks(true);
    let came = || {
        let allocated = Value::from(of_pool(&cluster, "allocated")?).to_string();
        check(
            allocated.contains("172.30.") && allocated.contains("fd00:30:"),
            || allocated,
        )
    };
    eventually(SOON, "blocks of both families come", came).unwrap();
    let before = failures(&cluster).unwrap();
    let name = format!("deployment/{PLAIN_POOL}");
    cluster.rolled_out("default", &name).unwrap();
    for (pod, count) in failures(&cluster).unwrap() {
        // One attempt may have been in progress.
        let more = count - before[&pod];
        assert!(more <= 1, "{pod}: {more} more attempts failed");
    }
    let label = format!("app={PLAIN_POOL}");
    for pod in cluster.pods("default", &label, PODS as usize).unwrap() {
        assert_eq!(pod.addresses.len(), 2, "{pod:?}");
        let mut texts = pod.addresses.iter().map(ToString::to_string);
        let is_of_pool = |text: String| text.starts_with("172.30.") || text.starts_with("fd00:30:");
        assert!(texts.all(is_of_pool), "{pod:?}");
    }
    cluster.finish().unwrap();
}
