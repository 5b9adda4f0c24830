//! Listeners in the host's network, as a gateway has them, on the addresses of each node's agent.

use std::collections::BTreeMap;

use ipam::Family;
use serde_json::{Value, json};
use testkit::cluster::{Cluster, ClusterSpec, SOON, deployment};
use testkit::cri::IMAGE;
use testkit::fabric::Netns;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Host;
use testkit::kubernetes::ProxyMode;

use crate::across;
use crate::lifecycle::cilium_node;

/// API path of the agents' settings.
const SETTINGS: &str =
    "/api/v1/namespaces/kube-system/configmaps?labelSelector=app.kubernetes.io/name=towpath";
/// The gateway's port.
const PORT: u16 = 8081;

/// A listener on each node, in the host's network, which serves the node's name.
fn gateway() -> Value {
    let labels = json!({"app": "gateway"});
    let command = format!("echo $NODE > /tmp/index.html && exec httpd -f -p {PORT} -h /tmp");
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "gateway", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": true,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "gateway", "image": IMAGE, "imagePullPolicy": "Never",
                        "command": ["sh", "-c", command],
                        "env": [{
                            "name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}
                        }],
                        "readinessProbe": {"httpGet": {"port": PORT}, "periodSeconds": 1}
                    }]
                }
            }
        }
    })
}

/// Changes the agents' settings, and restarts the agents.
fn configure(cluster: &Cluster, ingress: &str) {
    let maps = cluster.admin().get(SETTINGS).unwrap().expect(200).unwrap();
    let map = &maps["items"][0];
    let config = map["data"]["config.yaml"].as_str().unwrap();
    let (config, _) = config
        .split_once("agent-addresses:")
        .unwrap_or((config, ""));
    let section = format!("agent-addresses:\n  ingress: \"{ingress}\"\n");
    let name = map["metadata"]["name"].as_str().unwrap();
    let path = format!("/api/v1/namespaces/kube-system/configmaps/{name}");
    let patch = json!({"data": {"config.yaml": format!("{config}{section}")}});
    let patched = cluster.admin().merge(&path, &patch).unwrap();
    patched.expect(200).unwrap();
    let kubectl = cluster.kubectl().unwrap();
    let restart = [
        "-n",
        "kube-system",
        "rollout",
        "restart",
        "daemonset/towpath",
    ];
    kubectl.succeed(&restart).unwrap();
    cluster
        .rolled_out("kube-system", "daemonset/towpath")
        .unwrap();
}

/// The addresses of each node's agent in the nodes' objects.
fn addresses(cluster: &Cluster) -> BTreeMap<String, BTreeMap<Family, String>> {
    let mut all = BTreeMap::new();
    for worker in &cluster.workers {
        let look = || {
            let node = cilium_node(cluster, &worker.name())?;
            let ingress = &node["spec"]["ingress"];
            let of = |family, key: &str| Some((family, ingress[key].as_str()?.to_owned()));
            let both = [of(Family::V4, "ipv4"), of(Family::V6, "ipv6")];
            let both: BTreeMap<Family, String> = both.into_iter().flatten().collect();
            check(both.len() == 2, || node["spec"].to_string())?;
            Ok(both)
        };
        let (both, _) = eventually(SOON, "the agent has addresses", look).unwrap();
        all.insert(worker.name(), both);
    }
    all
}

/// Checks that the gateway of a node answers a client.
fn is_answered(client: &Netns, url: &str, node: &str) {
    let ask = || {
        let command = format!("curl --silent --show-error --globoff --max-time 5 {url}");
        let answer = client.run(&command)?;
        check(answer.trim() == node, || answer.clone())
    };
    eventually(SOON, &format!("{} asks {url}", client.name()), ask).unwrap();
}

#[test]
fn a_gateway_on_each_node_is_reached_by_the_agents_addresses() {
    let cluster = Cluster::ready(&ClusterSpec::new(ProxyMode::Nftables)).unwrap();
    cluster
        .apply(&[gateway(), deployment("default", "web", 8)])
        .unwrap();
    configure(&cluster, "on");
    for workload in ["daemonset/gateway", "deployment/web"] {
        cluster.rolled_out("default", workload).unwrap();
    }
    let all = addresses(&cluster);
    let pods = cluster.pods("default", "app=web", 8).unwrap();
    for (node, both) in &all {
        for (family, address) in both {
            let url = match family {
                Family::V4 => format!("http://{address}:{PORT}/"),
                Family::V6 => format!("http://[{address}]:{PORT}/"),
            };
            let fabric = &cluster.workers[0].fabric;
            let hosts = [Host::Peer, Host::Control, Host::Outside];
            let hosts = hosts.map(|host| fabric.host(host, *family).netns);
            let nodes = cluster.workers.iter().map(|worker| &worker.fabric.node);
            let guests = across::one_of_each_eni(&cluster, &pods).into_iter();
            let guests = guests.map(|pod| &pod.netns);
            for client in hosts.into_iter().chain(nodes).chain(guests) {
                is_answered(client, &url, node);
            }
        }
    }
    // After a restart the addresses are the same. None is left once the setting is off.
    configure(&cluster, "on");
    assert_eq!(addresses(&cluster), all);
    configure(&cluster, "off");
    for worker in &cluster.workers {
        let gone = || {
            let node = cilium_node(&cluster, &worker.name())?;
            let ingress = &node["spec"]["ingress"];
            check(ingress.is_null(), || ingress.to_string())
        };
        eventually(SOON, "the agent has none", gone).unwrap();
    }
    cluster.finish().unwrap();
}
