//! A cluster's life with Towpath: nodes become ready with it and by nothing else, its agents are
//! replaced, a node leaves, Towpath goes.

use ipam::Family;
use serde_json::{Value, json};
use testkit::cluster::{Cluster, ClusterSpec, PodAt, SOON, Worker, deployment};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::{Kubectl, ProxyMode, deploy};

use crate::across;

/// The node that leaves.
const LEAVES: &str = "fabric-node-2";

pub(crate) fn cilium_node(cluster: &Cluster, name: &str) -> anyhow::Result<Value> {
    let path = format!("/apis/cilium.io/v2/ciliumnodes/{name}");
    cluster.admin().get(&path)?.expect(200)
}

/// Pools that are bound to ENI 1: one by the namespace's annotation, one by labels of pods.
fn make_pools(cluster: &Cluster) {
    let subnet = format!("subnet-0fab{:013x}", 1);
    let pool = |name: &str, selector: Value| {
        json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
            "metadata": {"name": name, "annotations": {"ipam.towpath.dev/subnet-ids": subnet}},
            "spec": {"ipv4": {"cidrs": ["10.0.0.0/16"], "maskSize": 32}, "podSelector": selector}
        })
    };
    let blue = json!({"matchLabels": {"app": "blue"}});
    cluster.apply(&[pool("blue", blue)]).unwrap();
}

/// The pods of a Deployment, whose addresses are all of an ENI of this number.
fn on_eni(cluster: &Cluster, app: &str, count: usize, number: u16) -> Vec<PodAt> {
    let pods = cluster
        .pods("default", &format!("app={app}"), count)
        .unwrap();
    for pod in &pods {
        assert_eq!(
            across::owner(cluster, pod, Family::V4) % 100,
            number,
            "{}",
            pod.name
        );
    }
    pods
}

/// Every transition of the nodes' condition `Ready`, by node.
fn transitions(cluster: &Cluster) -> Vec<Value> {
    let workers = cluster.workers.iter();
    let conditions = workers.map(|worker| cluster.condition(&worker.name()).unwrap());
    conditions
        .map(|condition| condition["lastTransitionTime"].clone())
        .collect()
}

fn kustomize(kubectl: &Kubectl<'_>, verb: &str, overlay: &str) {
    let folder = deploy().join("kubernetes").join(overlay);
    let done = kubectl
        .run(&[verb, "-k", &folder.to_string_lossy()])
        .unwrap();
    assert!(done.success, "{}", done.text);
}

/// The agents run and wait for ENIs; so do the nodes.
fn nodes_wait_for_enis(cluster: &Cluster) {
    for worker in &cluster.workers {
        let name = worker.name();
        let made = || cilium_node(cluster, &name);
        let (node, _) = eventually(SOON, "the agent makes its CiliumNode", made).unwrap();
        let owner = &node["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["name"]),
            (&json!("Node"), &json!(name))
        );
        cluster.node_is_ready(&name, false, "cni").unwrap();
        assert!(!worker.has_network());
    }
}

/// The agents are replaced: the nodes stay ready, pods keep their network.
fn agents_are_replaced(cluster: &Cluster, chosen: &[&PodAt]) {
    let ready_since = transitions(cluster);
    let kubectl = cluster.kubectl().unwrap();
    let words = [
        "-n",
        "kube-system",
        "rollout",
        "restart",
        "daemonset/towpath",
    ];
    kubectl.succeed(&words).unwrap();
    across::everywhere(cluster, chosen);
    cluster
        .rolled_out("kube-system", "daemonset/towpath")
        .unwrap();
    across::everywhere(cluster, chosen);
    assert_eq!(transitions(cluster), ready_since);
}

#[test]
fn nodes_are_ready_with_the_plugin_alone_and_leave_with_their_objects() {
    let spec = ClusterSpec::new(ProxyMode::Iptables);
    let mut cluster = Cluster::create(&spec).unwrap();
    for worker in &cluster.workers {
        cluster.node_is_ready(&worker.name(), false, "cni").unwrap();
    }

    cluster.install("base").unwrap();
    nodes_wait_for_enis(&cluster);
    cluster.operate().unwrap();
    cluster.wait_until_nodes_are_ready().unwrap();
    assert!(cluster.workers.iter().all(Worker::has_network));
    cluster
        .rolled_out("kube-system", "daemonset/towpath")
        .unwrap();

    make_pools(&cluster);
    let apps = ["web", "blue"].map(|app| deployment("default", app, 4));
    cluster.apply(&apps).unwrap();
    for app in ["web", "blue"] {
        cluster
            .rolled_out("default", &format!("deployment/{app}"))
            .unwrap();
    }
    let plain = on_eni(&cluster, "web", 4, 0);
    let blue = on_eni(&cluster, "blue", 4, 1);
    let all: Vec<_> = plain.into_iter().chain(blue).collect();
    let chosen = across::one_of_each_eni(&cluster, &all);
    assert_eq!(chosen.len(), 4, "{chosen:?}");
    across::everywhere(&cluster, &chosen);

    agents_are_replaced(&cluster, &chosen);
    drop(chosen);
    drop(all);

    leaves(&mut cluster);
    is_removed(&cluster);
    cluster.finish().unwrap();
}

/// A node that is deleted takes its `CiliumNode` along: the garbage collector knows the owner.
fn leaves(cluster: &mut Cluster) {
    // Another one of the same name would be made at once.
    let worker = cluster
        .workers
        .iter_mut()
        .find(|worker| worker.name() == LEAVES);
    worker.unwrap().kubelet = None;
    let kubectl = cluster.kubectl().unwrap();
    let owner = cilium_node(cluster, LEAVES).unwrap()["metadata"]["ownerReferences"][0].clone();
    kubectl.succeed(&["delete", "node", LEAVES]).unwrap();
    let gone = || match cilium_node(cluster, LEAVES) {
        Err(_gone) => Ok(()),
        // The agent there still runs, and may create another one without an owner.
        Ok(node) => check(node["metadata"]["ownerReferences"][0] != owner, || {
            node.to_string()
        }),
    };
    eventually(SOON, "its CiliumNode is gone", gone).unwrap();
    for app in ["web", "blue"] {
        cluster
            .rolled_out("default", &format!("deployment/{app}"))
            .unwrap();
    }
}

/// Towpath goes: the node that is left is ready no more.
fn is_removed(cluster: &Cluster) {
    cluster.install("overlays/removal").unwrap();
    let kubectl = cluster.kubectl().unwrap();
    cluster
        .rolled_out("kube-system", "daemonset/towpath")
        .unwrap();
    kustomize(&kubectl, "delete", "overlays/removal");
    let worker = &cluster.workers[0];
    cluster.node_is_ready(&worker.name(), false, "cni").unwrap();
    assert!(!worker.has_network());
}
