//! Nodes that are instances of a cloud, with the operator: ENIs come as pods do, packets go by them, and
//! both outlive what befalls the cloud.

use std::collections::BTreeSet;

use anyhow::Context as _;
use ipam::Family;
use serde_json::json;
use testkit::cloud::{Site, SiteSpec, audit};
use testkit::cluster::{Cluster, ClusterSpec, PodAt, SOON, deployment};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Host;
use testkit::kubernetes::ProxyMode;

use crate::across;

const PODS: u32 = 60;
/// The extended resource of Nodes that has the addresses of the pool `default`.
const RESOURCE: &str = "towpath.dev/ipv4-default";
/// The addresses that a node can have for pods: 14 of each of four ENIs.
const ROOM: usize = 56;

pub(crate) fn spec() -> ClusterSpec {
    ClusterSpec::in_cloud(ProxyMode::Nftables, SiteSpec::default())
}

pub(crate) fn site(cluster: &Cluster) -> &Site {
    cluster.site.as_ref().unwrap()
}

/// Scales the Deployment, and returns its pods.
pub(crate) fn scale(cluster: &Cluster, replicas: u32) -> Vec<PodAt> {
    let replicas_word = format!("--replicas={replicas}");
    let kubectl = cluster.kubectl().unwrap();
    kubectl
        .succeed(&["scale", "deployment/web", &replicas_word])
        .unwrap();
    cluster.rolled_out("default", "deployment/web").unwrap();
    let pods = cluster.pods("default", "app=web", replicas as usize);
    pods.with_context(|| cluster.logs()).unwrap()
}

/// One pod of the primary ENI of each node, and one of another ENI.
pub(crate) fn two_of_each_node(cluster: &Cluster, pods: &[PodAt]) -> Vec<PodAt> {
    let mut chosen = Vec::new();
    for worker in &cluster.workers {
        for is_primary in [true, false] {
            let found = pods.iter().find(|pod| {
                let number = across::owner(cluster, pod, Family::V4) % 100;
                pod.node == worker.name() && (number == 0) == is_primary
            });
            let found = found.with_context(|| format!("{}: {is_primary}", worker.name()));
            chosen.push(found.unwrap().name.clone());
        }
    }
    let all = cluster.pods("default", "app=web", pods.len()).unwrap();
    let chosen = all.into_iter().filter(|pod| chosen.contains(&pod.name));
    chosen.collect()
}

/// Pods of both nodes exchange packets with each other and with a host outside of the VPC.
pub(crate) fn packets_go(cluster: &Cluster, pods: &[PodAt]) {
    let pods: Vec<&PodAt> = pods.iter().collect();
    across::everywhere(cluster, &pods);
    for pod in pods {
        for family in Family::ALL {
            let outside = cluster.workers[0].fabric.host(Host::Outside, family);
            across::exchange_all(pod.at(family).unwrap(), outside);
        }
    }
}

/// Every ENI of the VPC is a primary one, or one of the cluster's that is attached; every published
/// address has one owner.
pub(crate) fn is_in_order(cluster: &Cluster) {
    let look = || {
        let nodes = cluster.admin().get("/apis/cilium.io/v2/ciliumnodes")?;
        let nodes = nodes.expect(200)?;
        site(cluster).cloud.peek(|cloud| {
            audit::addresses(cloud, &nodes)?;
            let loose = audit::loose(cloud);
            check(loose.is_empty(), || format!("loose: {loose:?}"))?;
            let foreign = cloud.interfaces().filter(|eni| {
                let is_ours = eni.tags.contains_key("ipam.towpath.dev/cluster");
                let is_primary = eni.attachment.as_ref().is_some_and(|it| it.index == 0);
                !is_ours && !is_primary
            });
            let foreign: Vec<_> = foreign.map(|eni| &eni.id).collect();
            check(foreign.is_empty(), || format!("of nobody: {foreign:?}"))
        })
    };
    let settled = eventually(SOON, "all ENIs are accounted for", look);
    settled.with_context(|| cluster.logs()).unwrap();
}

/// A cluster whose operator is deployed by its manifests, and advertises addresses.
fn advertising() -> ClusterSpec {
    let site = SiteSpec {
        operator: json!({"pools": {"advertise": true}}),
        is_deployed: true,
        ..SiteSpec::default()
    };
    ClusterSpec::in_cloud(ProxyMode::Nftables, site)
}

/// Waits until the scheduler counts all addresses of each node.
fn addresses_are_advertised(cluster: &Cluster) {
    let right = json!([{"op": "add", "path": "/rules/-", "value": {
        "apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]
    }}]);
    let right = right.to_string();
    let role = ["patch", "clusterrole", "towpath-operator", "--type=json"];
    let kubectl = cluster.kubectl().unwrap();
    kubectl
        .succeed(&[&role[..], &["-p", right.as_str()]].concat())
        .unwrap();
    for worker in &cluster.workers {
        let path = format!("/api/v1/nodes/{}", worker.name());
        let advertised = || {
            let node = cluster.admin().get(&path)?.expect(200)?;
            let allocatable = &node["status"]["allocatable"];
            check(allocatable[RESOURCE] == json!(ROOM.to_string()), || {
                allocatable.to_string()
            })
        };
        let seen = eventually(SOON, "addresses as extended resource", advertised);
        seen.with_context(|| cluster.logs()).unwrap();
    }
}

/// Every pod on the pods' network asks for an address. While one node alone takes pods, those beyond
/// its addresses are not placed, and none of those that are waits for an address. The other node runs
/// them then.
fn pods_beyond_a_node_s_addresses_run_elsewhere(cluster: &Cluster) {
    addresses_are_advertised(cluster);
    let asks = json!({"requests": {RESOURCE: "1"}, "limits": {RESOURCE: "1"}});
    let kubectl = cluster.kubectl().unwrap();
    let dns = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "coredns", "resources": asks}
    ]}}}});
    let dns = dns.to_string();
    let patch = ["-n", "kube-system", "patch", "deployment/coredns", "-p"];
    kubectl
        .succeed(&[&patch[..], &[dns.as_str()]].concat())
        .unwrap();
    cluster
        .rolled_out("kube-system", "deployment/coredns")
        .unwrap();

    let [first, second] = [0, 1].map(|number| cluster.workers[number].name());
    kubectl.succeed(&["cordon", &second]).unwrap();
    let mut web = deployment("default", "web", PODS);
    web["spec"]["template"]["spec"]["containers"][0]["resources"] = asks;
    cluster.apply(&[web]).unwrap();
    let dns = cluster.pods("kube-system", "k8s-app=kube-dns", 2).unwrap();
    let taken = dns.iter().filter(|pod| pod.node == first).count();
    let pods = cluster.pods("default", "app=web", ROOM - taken);
    let pods = pods.with_context(|| cluster.logs()).unwrap();
    assert!(pods.iter().all(|pod| pod.node == first));
    let waiting = "/api/v1/namespaces/default/pods?fieldSelector=spec.nodeName=";
    let waiting = cluster.admin().get(waiting).unwrap().expect(200).unwrap();
    let waiting = waiting["items"].as_array().unwrap();
    assert_eq!(waiting.len(), PODS as usize - pods.len());
    for pod in waiting {
        let named = format!("Insufficient {RESOURCE}");
        let conditions = pod["status"]["conditions"].to_string();
        assert!(conditions.contains(&named), "{conditions}");
    }

    kubectl.succeed(&["uncordon", &second]).unwrap();
    cluster.rolled_out("default", "deployment/web").unwrap();
    let all = cluster.pods("default", "app=web", PODS as usize).unwrap();
    let elsewhere = all.iter().filter(|pod| pod.node == second).count();
    assert_eq!(elsewhere, waiting.len());
}

/// The ids of all ENIs of the VPC.
fn enis(cluster: &Cluster) -> BTreeSet<String> {
    let cloud = &site(cluster).cloud;
    cloud.peek(|cloud| cloud.interfaces().map(|eni| eni.id.clone()).collect())
}

/// The pod that has the operator's Lease.
fn leader(cluster: &Cluster) -> anyhow::Result<String> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/towpath-operator";
    let lease = cluster.admin().get(path)?.expect(200)?;
    let holder = lease["spec"]["holderIdentity"].as_str();
    // The name of the pod, and a number.
    let pod = holder.and_then(|holder| holder.split_once('_'));
    let (pod, _) = pod.with_context(|| lease.to_string())?;
    Ok(pod.to_owned())
}

/// The Deployment of the manifests runs a pod on each node, and its metrics are served there.
fn operators_run(cluster: &Cluster) {
    let operators = "deployment/towpath-operator";
    let ready = cluster.rolled_out("kube-system", operators);
    ready.with_context(|| cluster.logs()).unwrap();
    for worker in &cluster.workers {
        let node = worker.fabric.node_at(Family::V4).unwrap().address;
        let line = format!("curl --silent --show-error --fail http://{node}:9974/metrics");
        let metrics = cluster.control().run(&line).unwrap();
        assert!(metrics.contains("towpath_operator_leader"), "{metrics}");
    }
}

/// The operator at work is deleted, as by a drain, and the other one takes over.
fn another_operator_takes_over(cluster: &Cluster) {
    let before = leader(cluster).unwrap();
    let words = ["--namespace", "kube-system", "delete", "pod", &before];
    cluster.kubectl().unwrap().succeed(&words).unwrap();
    let taken = || {
        let now = leader(cluster)?;
        check(now != before, || now.clone())
    };
    let taken = eventually(SOON, "another operator has the Lease", taken);
    taken.with_context(|| cluster.logs()).unwrap();
    operators_run(cluster);
}

#[test]
fn enis_come_with_sixty_pods_and_carry_their_packets() {
    let spec = advertising();
    let mut cluster = Cluster::create(&spec).unwrap();
    let at_start = enis(&cluster);
    assert_eq!(at_start.len(), 2, "the primary ENIs alone");
    cluster.make_ready(&spec).unwrap();
    operators_run(&cluster);
    cluster.apply(&[deployment("default", "web", 0)]).unwrap();

    let pods = scale(&cluster, PODS);
    let made = enis(&cluster);
    assert!(made.is_superset(&at_start), "{at_start:?} {made:?}");
    assert!(made.len() >= at_start.len() + 2, "{made:?}");
    packets_go(&cluster, &two_of_each_node(&cluster, &pods));
    is_in_order(&cluster);
    drop(pods);

    another_operator_takes_over(&cluster);
    scale(&cluster, 0);
    for worker in &cluster.workers {
        let fabric = &worker.fabric;
        let gone = || {
            let endpoints = fabric.agent.ask("GET", "/v1/endpoints", None)?;
            let pods = endpoints.as_array().into_iter().flatten();
            let web = pods.filter(|pod| pod.to_string().contains("web-"));
            check(web.count() == 0, || endpoints.to_string())
        };
        eventually(SOON, "the pods are gone", gone).unwrap();
    }
    is_in_order(&cluster);
    assert_eq!(enis(&cluster), made, "ENIs stay, and none came");
    pods_beyond_a_node_s_addresses_run_elsewhere(&cluster);
    is_in_order(&cluster);
    cluster.finish().unwrap();
}
