//! Plain pools of clusters that leave another mode of Cilium, or that have a newer resource.

use anyhow::Result;
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::pools_of_v2;

use super::bed::{Bed, NODES, SOON};
use super::plain_pools::{count, has, make_pool, want};

const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ciliumpodippools.cilium.io";
const NEW_POOLS: &str = "/apis/cilium.io/v2/ciliumpodippools";

/// A node of the mode `cluster-pool`.
fn with_pod_cidrs(bed: &Bed, name: &str, cidrs: &[&str]) -> Result<()> {
    let object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode",
        "metadata": {"name": name}, "spec": {"ipam": {"podCIDRs": cidrs}}
    });
    let make = || bed.plane.server.admin().post(NODES, &object)?.expect(201);
    eventually(SOON, "the node is made", make).map(drop)
}

fn default_pool() -> Value {
    json!({
        "ipv4": {"cidrs": ["172.16.0.0/16"], "maskSize": 24},
        "ipv6": {"cidrs": ["fd00:172::/104"], "maskSize": 120}
    })
}

#[test]
fn nodes_that_leave_the_mode_cluster_pool_keep_their_blocks() {
    let bed = Bed::create(1).unwrap();
    let admin = bed.plane.server.admin();
    let both = ["172.16.0.0/24", "fd00:172::/120"];
    with_pod_cidrs(&bed, "old-0", &both).unwrap();
    with_pod_cidrs(&bed, "old-1", &["172.16.1.0/24", "fd00:172::100/120"]).unwrap();
    make_pool(&bed, "default", &default_pool()).unwrap();

    // Without the setting the blocks stay where they are, and nobody else gets them.
    let first = bed.start(0, &json!({})).unwrap();
    want(&bed, "new-0", "default", 8).unwrap();
    assert_eq!(has(&bed, "new-0", 1).unwrap(), ["172.16.2.0/24"]);
    let old = admin.get(&format!("{NODES}/old-0")).unwrap();
    let old = old.expect(200).unwrap();
    assert_eq!(old["spec"]["ipam"]["podCIDRs"], json!(both));
    assert!(first.stop().unwrap());

    let migrate = json!({"pools": {"migrate-pod-cidrs": true}});
    let second = bed.start(1, &migrate).unwrap();
    assert_eq!(has(&bed, "old-0", 2).unwrap(), both);
    has(&bed, "old-1", 2).unwrap();
    for node in ["old-0", "old-1"] {
        let node = admin.get(&format!("{NODES}/{node}")).unwrap();
        let ipam = node.expect(200).unwrap()["spec"]["ipam"].clone();
        assert!(ipam["podCIDRs"].is_null(), "{ipam}");
    }
    // An agent of multi-pool mode wants more than it has.
    want(&bed, "old-0", "default", 400).unwrap();
    has(&bed, "old-0", 3).unwrap();
    assert_eq!(count(&bed).unwrap(), 6);
    assert!(second.stop().unwrap());
    bed.finish().unwrap();
}

/// Makes the API server serve pools in version `v2` alone.
fn serve_v2_alone(bed: &Bed) -> Result<()> {
    let admin = bed.plane.server.admin();
    admin.delete(DEFINITION)?.expect(200)?;
    let is_gone = || {
        let code = admin.get(DEFINITION)?.code;
        check(code == 404, || code.to_string())
    };
    eventually(SOON, "pools are not served", is_gone)?;
    bed.plane.server.make_crd(&pools_of_v2()?)
}

#[test]
fn pools_of_version_2_alone_are_created_and_their_reserved_ranges_stay_free() {
    let bed = Bed::create(1).unwrap();
    let admin = bed.plane.server.admin();
    serve_v2_alone(&bed).unwrap();
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/towpath-operator";
    let mut rules = admin.get(role).unwrap().expect(200).unwrap();
    let create = json!({
        "apiGroups": ["cilium.io"], "resources": ["ciliumpodippools"], "verbs": ["create"]
    });
    rules["rules"].as_array_mut().unwrap().push(create);
    admin.put(role, &rules).unwrap().expect(200).unwrap();
    let blue = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumPodIPPool", "metadata": {"name": "blue"},
        "spec": {"ipv4": {
            "cidrs": ["172.18.0.0/26"], "maskSize": 28,
            "pool": [{"cidr": "172.18.0.0/26", "reservedRanges": [
                {"start": "172.18.0.1", "end": "172.18.0.20"}
            ]}]
        }}
    });
    let make = || admin.post(NEW_POOLS, &blue)?.expect(201);
    eventually(SOON, "the pool is made", make).unwrap();

    let settings = json!({"pools": {"create": {
        "green": {"ipv4": {"cidrs": ["172.19.0.0/24"], "maskSize": 28}}
    }}});
    let operator = bed.start(0, &settings).unwrap();
    want(&bed, "plain-0", "green", 4).unwrap();
    assert_eq!(has(&bed, "plain-0", 1).unwrap(), ["172.19.0.0/28"]);
    want(&bed, "plain-1", "blue", 20).unwrap();
    let given = has(&bed, "plain-1", 2).unwrap();
    assert_eq!(given, ["172.18.0.32/28", "172.18.0.48/28"]);
    // The pool in use is marked in its own version, and goes after its last block.
    let path = format!("{NEW_POOLS}/blue");
    let marked = || {
        let pool = admin.get(&path)?.expect(200)?;
        let finalizers = &pool["metadata"]["finalizers"];
        check(finalizers.is_array(), || pool.to_string())
    };
    eventually(SOON, "the pool is marked", marked).unwrap();
    admin.delete(&path).unwrap();
    admin.delete(&format!("{NODES}/plain-1")).unwrap();
    let is_gone = || {
        let answer = admin.get(&path)?;
        check(answer.code == 404, || answer.to_string())
    };
    eventually(SOON, "the pool is gone", is_gone).unwrap();
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}
