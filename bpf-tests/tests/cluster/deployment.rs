//! Forty pods that the scheduler spreads over both nodes: services, names, rolling update,
//! eviction, drain.

use std::process::Stdio;

use serde_json::{Value, json};
use testkit::cluster::{Cluster, ClusterSpec, DNS, PodAt, SOON, deployment};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::ProxyMode;

use crate::across;

const PODS: usize = 40;
/// Nodes' names.
const NODES: [&str; 2] = ["fabric-node", "fabric-node-2"];
/// At least so many pods have to be there during voluntary disruptions.
const LEAST: usize = 30;

/// A service of both families, before the Deployment `web`.
fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "ipFamilyPolicy": "RequireDualStack", "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080}]
        }
    })
}

/// The service's addresses, of both families.
fn addresses(cluster: &Cluster) -> Vec<String> {
    let path = "/api/v1/namespaces/default/services/web";
    let service = cluster.admin().get(path).unwrap().expect(200).unwrap();
    let addresses = service["spec"]["clusterIPs"].as_array().unwrap().iter();
    let addresses = addresses.map(|address| address.as_str().unwrap());
    let bracketed = addresses.map(|address| {
        if address.contains(':') {
            format!("[{address}]")
        } else {
            address.to_owned()
        }
    });
    bracketed.collect()
}

/// Pods of each ENI reach the service by both of its addresses, and are answered by pods of both nodes.
fn services_answer(cluster: &Cluster, clients: &[&PodAt], pods: &[PodAt]) {
    for address in addresses(cluster) {
        for client in clients {
            for node in NODES {
                let on_node =
                    |name: &str| pods.iter().any(|pod| pod.name == name && pod.node == node);
                across::asks_service(client, &format!("http://{address}/"), &on_node);
            }
        }
    }
}

/// Names are found from pods of each ENI, by the cluster's DNS service.
fn names_are_found(cluster: &Cluster, clients: &[&PodAt]) {
    let kubectl = cluster.kubectl().unwrap();
    let addresses = addresses(cluster);
    for client in clients {
        let words = [
            "exec",
            &client.name,
            "--",
            "nslookup",
            "web.default.svc.cluster.local",
        ];
        let answer = kubectl.succeed(&words).unwrap();
        assert!(answer.contains(DNS), "{answer}");
        for address in &addresses {
            let address = address.trim_matches(['[', ']']);
            assert!(answer.contains(address), "{answer}");
        }
    }
}

/// The control plane reaches pods: its proxy, logs, commands, and `kubectl port-forward`.
fn the_control_plane_reaches(cluster: &Cluster, pods: &[&PodAt]) {
    let kubectl = cluster.kubectl().unwrap();
    for pod in pods {
        let path = format!("/api/v1/namespaces/default/pods/{}:8080/proxy/", pod.name);
        let answer = cluster.admin().get(&path).unwrap();
        assert_eq!(answer.code, 200, "{answer}");
        assert!(answer.to_string().contains(&pod.name), "{answer}");
        let said = kubectl
            .succeed(&["exec", &pod.name, "--", "hostname"])
            .unwrap();
        assert_eq!(said.trim(), pod.name);
        forwards(cluster, pod);
    }
}

/// `kubectl port-forward` leads to a pod.
fn forwards(cluster: &Cluster, pod: &PodAt) {
    let words = ["port-forward", &pod.name, "18080:8080"];
    let mut forward = cluster.kubectl().unwrap().command(&words);
    let forward = forward.stdout(Stdio::null()).stderr(Stdio::null());
    let mut forward = forward.spawn().unwrap();
    let ask = || {
        let line = "curl --silent --show-error --max-time 5 http://127.0.0.1:18080/";
        let answer = cluster.control().run(line)?;
        check(answer.trim() == pod.name, || answer.clone())
    };
    let outcome = eventually(SOON, "the port is forwarded", ask);
    forward.kill().unwrap();
    forward.wait().unwrap();
    outcome.unwrap();
}

fn spread(pods: &[PodAt]) -> Vec<usize> {
    let on = |node: &&str| pods.iter().filter(|pod| pod.node == **node).count();
    NODES.iter().map(on).collect()
}

#[test]
fn forty_pods_on_two_nodes_live_through_an_update_and_a_drain() {
    let cluster = Cluster::ready(&ClusterSpec::new(ProxyMode::Nftables)).unwrap();
    let web = deployment("default", "web", 40);
    cluster.apply(&[web, service()]).unwrap();
    cluster.rolled_out("default", "deployment/web").unwrap();
    let pods = cluster.pods("default", "app=web", PODS).unwrap();
    assert_eq!(spread(&pods), [PODS / 2; 2]);
    let chosen = across::one_of_each_eni(&cluster, &pods);
    assert!(chosen.len() >= 2, "{chosen:?}");
    across::everywhere(&cluster, &chosen);
    services_answer(&cluster, &chosen, &pods);
    names_are_found(&cluster, &chosen);
    the_control_plane_reaches(&cluster, &chosen);

    // Every pod is replaced.
    let before: Vec<String> = pods.iter().map(|pod| pod.name.clone()).collect();
    let kubectl = cluster.kubectl().unwrap();
    kubectl
        .succeed(&["rollout", "restart", "deployment/web"])
        .unwrap();
    cluster.rolled_out("default", "deployment/web").unwrap();
    let pods = cluster.pods("default", "app=web", PODS).unwrap();
    assert!(pods.iter().all(|pod| !before.contains(&pod.name)));
    let chosen = across::one_of_each_eni(&cluster, &pods);
    across::everywhere(&cluster, &chosen);
    services_answer(&cluster, &chosen, &pods);

    drains(&cluster);
    cluster.finish().unwrap();
}

/// A node is drained by evictions, which a budget slows down, and is used again afterwards.
fn drains(cluster: &Cluster) {
    let kubectl = cluster.kubectl().unwrap();
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"minAvailable": LEAST, "selector": {"matchLabels": {"app": "web"}}}
    });
    cluster.apply(&[budget]).unwrap();
    let words = [
        "drain",
        NODES[1],
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=120s",
    ];
    let done = kubectl.run(&words).unwrap();
    assert!(done.success, "{}", done.text);
    assert!(
        done.text.contains("evicting pod default/web-"),
        "{}",
        done.text
    );
    cluster.rolled_out("default", "deployment/web").unwrap();
    let pods = cluster.pods("default", "app=web", PODS).unwrap();
    assert_eq!(spread(&pods), [PODS, 0]);
    let drained = &cluster.worker(NODES[1]).unwrap().fabric;
    let nothing = || {
        let endpoints = drained.agent.ask("GET", "/v1/endpoints", None)?;
        check(endpoints == json!([]), || endpoints.to_string())
    };
    eventually(SOON, "nothing is left of the drained pods", nothing).unwrap();
    kubectl.succeed(&["uncordon", NODES[1]]).unwrap();
    kubectl
        .succeed(&["rollout", "restart", "deployment/web"])
        .unwrap();
    cluster.rolled_out("default", "deployment/web").unwrap();
    let pods = cluster.pods("default", "app=web", PODS).unwrap();
    assert!(spread(&pods)[1] > 0, "{:?}", spread(&pods));
    let chosen = across::one_of_each_eni(cluster, &pods);
    services_answer(cluster, &chosen, &pods);
}
