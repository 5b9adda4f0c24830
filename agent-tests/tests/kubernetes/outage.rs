//! The agent starts while the API server is away: what an earlier one learned still counts.

use std::fs;

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, Guest, SOON};

const POOLS: &str = "/apis/cilium.io/v2alpha1/ciliumpodippools";
/// The annotation that names a pool.
const IP_POOL: &str = "ipam.cilium.io/ip-pool";

/// Makes a pool of ENI 1's addresses that selects the pods of namespace green.
fn make_blue(cluster: &Cluster) {
    let subnet = format!("subnet-0fab{:013x}", cluster.eni(1).number);
    make_pool(
        cluster,
        "blue",
        &json!({"ipam.towpath.dev/subnet-ids": subnet}),
    );
}

fn make_pool(cluster: &Cluster, name: &str, annotations: &Value) {
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "ipv4": {"cidrs": ["10.0.0.0/16"], "maskSize": 32},
            "podSelector": {"matchLabels": {
                "io.kubernetes.pod.namespace": if name == "blue" { "green" } else { name }
            }}
        }
    });
    let answer = cluster.server.admin().post(POOLS, &pool).unwrap();
    answer.expect(201).unwrap();
}

/// Waits until what the agent keeps is as it should be.
fn keeps(cluster: &Cluster, record: &str, is: impl Fn(&str) -> bool) {
    let path = cluster.fabric.agent.state_dir().join(record);
    let look = || {
        let text = fs::read_to_string(&path)?;
        check(is(&text), || text.clone())
    };
    eventually(SOON, &format!("{record} is kept"), look).unwrap();
}

fn refused(cluster: &Cluster, pod: &Guest, part: &str) {
    let (status, answer) = pod.try_add(&cluster.fabric);
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(status != 200 && message.contains(part), "{answer}");
}

/// Each record names the server that it is from.
fn records_are_of_a_server(cluster: &Cluster) {
    let is_of_a_server = |text: &str| {
        let record: Value = serde_json::from_str(text).unwrap_or_default();
        let server = &record["server"];
        let url = server["url"].as_str().unwrap_or_default();
        let roots = server["roots"].as_array();
        url.starts_with("https://") && roots.is_some_and(|roots| !roots.is_empty())
    };
    for record in ["node.json", "pools.json", "pods.json", "namespaces.json"] {
        keeps(cluster, record, is_of_a_server);
    }
}

/// Waits until the pools are followed again.
fn pools_are_followed(cluster: &Cluster) {
    let is_followed = |status: &Value| {
        let reasons = status["health"]["reasons"].to_string();
        !reasons.contains("the pools")
    };
    cluster
        .status_is("the pools are followed", is_followed)
        .unwrap();
}

#[test]
fn pods_get_the_pools_that_were_chosen_for_them_before_the_restart() {
    let mut cluster = Cluster::ready().unwrap();
    make_blue(&cluster);
    make_pool(&cluster, "old", &json!({}));
    let named = json!({IP_POOL: "blue"});
    cluster.namespace("named", &named).unwrap();
    cluster.namespace("green", &json!({})).unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let of_blue = [
        cluster.pod("plain", "annotated", &named).unwrap(),
        cluster.pod("named", "by-namespace", &json!({})).unwrap(),
        cluster.pod("green", "selected", &json!({})).unwrap(),
    ];
    let plain = cluster.pod("plain", "plain", &json!({})).unwrap();
    let of_old = json!({IP_POOL: "old"});
    let of_old = cluster.pod("plain", "of-old", &of_old).unwrap();
    keeps(&cluster, "pools.json", |text| text.contains("old"));
    let admin = cluster.server.admin();
    let deleted = admin.delete(&format!("{POOLS}/old")).unwrap();
    deleted.expect(200).unwrap();
    keeps(&cluster, "pools.json", |text| {
        text.contains("blue") && !text.contains("old")
    });
    keeps(&cluster, "pods.json", |text| text.contains("of-old"));
    keeps(&cluster, "namespaces.json", |text| text.contains("plain"));
    records_are_of_a_server(&cluster);

    cluster.server.kill();
    cluster.restart().unwrap();
    cluster.wait_until_ready().unwrap();
    for pod in &of_blue {
        assert_eq!(pod.add(&cluster.fabric).1, 1);
    }
    assert_eq!(plain.add(&cluster.fabric).1, 0);
    refused(&cluster, &of_old, "there is no CiliumPodIPPool old");
    let status = cluster.status().unwrap();
    let reasons = status["health"]["reasons"].to_string();
    assert!(
        reasons.contains("the pools kept from before the restart"),
        "{reasons}"
    );

    // Another one changes nothing of it, and the server's word counts as soon as it comes.
    cluster.restart().unwrap();
    cluster.wait_until_ready().unwrap();
    for pod in &of_blue {
        pod.delete(&cluster.fabric);
        assert_eq!(pod.add(&cluster.fabric).1, 1);
    }
    cluster.server.resume().unwrap();
    pools_are_followed(&cluster);
    let new = cluster.pod("green", "new", &json!({})).unwrap();
    assert_eq!(new.add(&cluster.fabric).1, 1);
    cluster.fabric.finish().unwrap();
}

#[test]
fn damaged_records_are_named_and_keep_nobody_from_the_server() {
    let mut cluster = Cluster::ready().unwrap();
    make_blue(&cluster);
    cluster.namespace("green", &json!({})).unwrap();
    let pod = cluster.pod("green", "one", &json!({})).unwrap();
    let records = ["pools.json", "pods.json", "namespaces.json"];
    keeps(&cluster, "pools.json", |text| text.contains("blue"));
    keeps(&cluster, "pods.json", |text| text.contains("green"));
    cluster.fabric.agent.stop().unwrap();
    let state = cluster.fabric.agent.state_dir();
    for record in records {
        fs::write(state.join(record), "{\"boot\":").unwrap();
    }
    cluster.server.kill();
    cluster.start().unwrap();
    let are_logged = || {
        let log = cluster.fabric.agent.log();
        check(records.iter().all(|record| log.contains(record)), || log)?;
        // They are read before the agent listens.
        let socket = cluster.fabric.agent.socket();
        check(socket.exists(), || "there is no socket yet".to_owned())
    };
    eventually(SOON, "each is named", are_logged).unwrap();
    refused(&cluster, &pod, "the pools were not read yet");
    cluster.server.resume().unwrap();
    let added = || {
        let (status, answer) = pod.try_add(&cluster.fabric);
        check(status == 200, || answer.to_string())?;
        Ok(answer["addresses"][0]["eni"]["number"].clone())
    };
    let (eni, _) = eventually(SOON, "the pod is added", added).unwrap();
    assert_eq!(eni, 1);
    cluster.fabric.finish().unwrap();
}
