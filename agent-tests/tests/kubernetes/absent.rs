//! A resource that the API server does not have yet, and one that goes.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::{crds, pools_of_v2};

use crate::cluster::{Cluster, Guest, SOON};

const POOLS: &str = "/apis/cilium.io/v2alpha1/ciliumpodippools";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ciliumpodippools.cilium.io";

impl Cluster {
    /// Takes the definition of pools away, and waits until nothing of it is served.
    fn without_pools(&self) {
        let admin = self.server.admin();
        admin.delete(DEFINITION).unwrap().expect(200).unwrap();
        let gone = || {
            [DEFINITION, POOLS].into_iter().try_for_each(|path| {
                let code = admin.get(path)?.code;
                check(code == 404, || format!("{path}: {code}"))
            })
        };
        eventually(SOON, "pools are not served", gone).unwrap();
    }

    /// The reasons that health gives.
    fn reasons_have(&self, part: &str) -> Value {
        let has = |status: &Value| status["health"]["reasons"].to_string().contains(part);
        self.status_is(part, has).unwrap()
    }
}

fn blue(cluster: &Cluster, version: &str) -> Value {
    let subnet = format!("subnet-0fab{:013x}", cluster.eni(1).number);
    json!({
        "apiVersion": format!("cilium.io/{version}"), "kind": "CiliumPodIPPool",
        "metadata": {"name": "blue", "annotations": {
            "ipam.towpath.dev/subnet-ids": subnet, "ipam.towpath.dev/restrict": "namespaces=blue"
        }},
        "spec": {"ipv4": {"cidrs": ["10.0.0.0/16"], "maskSize": 32}}
    })
}

/// Makes the definitions of all resources that the agent reads.
fn make_definitions(cluster: &Cluster) {
    for definition in crds().unwrap() {
        cluster.server.make_crd(&definition).unwrap();
    }
}

/// The pool comes, and with it an address for the pod.
fn a_pool_that_comes_is_followed(cluster: &Cluster, version: &str, pod: &Guest) {
    let path = format!("/apis/cilium.io/{version}/ciliumpodippools");
    let make = || {
        let admin = cluster.server.admin();
        admin.post(&path, &blue(cluster, version))?.expect(201)
    };
    eventually(SOON, "the pool is made", make).unwrap();
    let add = || {
        let (status, answer) = pod.try_add(&cluster.fabric);
        check(status == 200, || answer.to_string())
    };
    eventually(SOON, "a pod of the pool is added", add).unwrap();
}

/// The pool admits pods of its namespace alone.
fn a_pod_of_another_namespace_is_refused(cluster: &Cluster, pod: &Guest) {
    let (status, answer) = pod.try_add(&cluster.fabric);
    let message = answer["error"]["message"].as_str().unwrap();
    assert_ne!(status, 200);
    for part in [
        "pool blue",
        "plain/three",
        "ipam.towpath.dev/restrict",
        "namespaces=blue",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let leases = cluster
        .fabric
        .agent
        .ask("GET", "/v1/addresses", None)
        .unwrap();
    assert!(!leases.to_string().contains("three"), "{leases}");
}

#[test]
fn a_node_without_the_resource_of_pools_gives_addresses_and_learns_of_its_arrival_and_end() {
    let cluster = Cluster::prepare(false).unwrap();
    cluster.without_pools();
    let cluster = cluster.made_ready().unwrap();
    let status = cluster.status().unwrap();
    assert_eq!(status["health"]["state"], "ready", "{status}");
    let notes = status["masquerade-notes"].to_string();
    assert!(
        notes.contains("the API server has no CiliumPodIPPool"),
        "{notes}"
    );
    cluster.namespace("plain", &json!({})).unwrap();
    let named = json!({"ipam.cilium.io/ip-pool": "blue"});
    cluster.namespace("blue", &named).unwrap();
    let one = cluster.pod("plain", "one", &json!({})).unwrap();
    one.add(&cluster.fabric);

    // It comes, with a pool.
    make_definitions(&cluster);
    let two = cluster.pod("blue", "two", &json!({})).unwrap();
    a_pool_that_comes_is_followed(&cluster, "v2alpha1", &two);
    let three = cluster.pod("plain", "three", &named).unwrap();
    a_pod_of_another_namespace_is_refused(&cluster, &three);

    // It goes, and its objects with it: what the pool is stays known.
    cluster.without_pools();
    cluster.reasons_have("the API server has no CiliumPodIPPool any more");
    let four = cluster.pod("blue", "four", &json!({})).unwrap();
    let (_, number) = four.add(&cluster.fabric);
    assert_eq!(number, 1, "the ENI is still the pool's");

    // Back without the pool: now it is really gone.
    make_definitions(&cluster);
    let is_ready = |status: &Value| {
        let reasons = status["health"]["reasons"].as_array().unwrap();
        let reasons: BTreeSet<_> = reasons.iter().map(Value::to_string).collect();
        !reasons
            .iter()
            .any(|reason| reason.contains("CiliumPodIPPool"))
    };
    cluster
        .status_is("the pools are followed", is_ready)
        .unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn pools_are_followed_where_their_resource_has_version_2_alone() {
    let cluster = Cluster::prepare(false).unwrap();
    cluster.without_pools();
    let definition = pools_of_v2().unwrap();
    cluster.server.make_crd(&definition).unwrap();
    let cluster = cluster.made_ready().unwrap();
    let named = json!({"ipam.cilium.io/ip-pool": "blue"});
    cluster.namespace("blue", &named).unwrap();
    let pod = cluster.pod("blue", "one", &json!({})).unwrap();
    a_pool_that_comes_is_followed(&cluster, "v2", &pod);
    let status = cluster.status().unwrap();
    assert_eq!(status["health"]["state"], "ready", "{status}");
    cluster.fabric.finish().unwrap();
}
