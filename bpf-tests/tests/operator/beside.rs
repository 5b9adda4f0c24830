//! Operators that must change nothing.

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, SOON};

/// Amazon VPC CNI, as its daemon set.
fn vpc_cni() -> Value {
    let labels = json!({"k8s-app": "aws-node"});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "aws-node", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "aws-node", "image": "none"}]}
            }
        }
    })
}

/// The number of calls so far that change something.
fn changes(bed: &Bed) -> usize {
    let is_change = |name: &str| !name.starts_with("Describe") && !name.starts_with("Get");
    bed.cloud
        .peek(|cloud| cloud.log().filter(|it| is_change(it.action)).count())
}

#[test]
fn nothing_is_changed_beside_the_vpc_cni_until_it_goes() {
    let bed = Bed::create(1).unwrap();
    bed.plane.server.apply(&[vpc_cni()]).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 8).unwrap();
    operator
        .log_has(&["nothing is changed", "kube-system/aws-node"])
        .unwrap();
    let look = || {
        let shown = operator.ask("nodes")?;
        check(shown.contains("AssignPrivateIpAddresses"), || shown)
    };
    eventually(SOON, "the step is shown", look).unwrap();
    assert_eq!(changes(&bed), 0);
    assert!(bed.node(0).unwrap()["status"]["eni"]["enis"].is_null());
    let path = "/apis/apps/v1/namespaces/kube-system/daemonsets/aws-node";
    bed.plane
        .server
        .admin()
        .delete(path)
        .unwrap()
        .expect(200)
        .unwrap();
    bed.node_has(0, 8).unwrap();
    bed.finish().unwrap();
}

/// Cilium's Lease, renewed just now.
fn cilium_lease() -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ");
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "cilium-operator-resource-lock", "namespace": "kube-system"},
        "spec": {
            "holderIdentity": "cilium-operator-1", "leaseDurationSeconds": 15,
            "renewTime": now.to_string()
        }
    })
}

#[test]
fn nothing_is_changed_beside_cilium_s_operator_until_its_lease_ends() {
    let bed = Bed::create(1).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": {"ipam": "eni"}
    });
    let server = &bed.plane.server;
    server.apply(&[config, cilium_lease()]).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 8).unwrap();
    operator
        .log_has(&["nothing is changed", "cilium-operator-resource-lock"])
        .unwrap();
    let look = || {
        server.apply(&[cilium_lease()])?;
        let shown = operator.ask("nodes")?;
        check(shown.contains("AssignPrivateIpAddresses"), || shown)
    };
    eventually(SOON, "the step is shown", look).unwrap();
    assert_eq!(changes(&bed), 0);
    bed.node_has(0, 8).unwrap();
    bed.finish().unwrap();
}

#[test]
fn a_dry_run_shows_steps_and_leaves_the_lease_to_others() {
    let bed = Bed::create(1).unwrap();
    let dry = bed.start(0, &json!({"dry-run": true})).unwrap();
    bed.add_node(0, 8).unwrap();
    let look = || {
        let shown = dry.ask("nodes")?;
        check(shown.contains("AssignPrivateIpAddresses"), || shown)
    };
    eventually(SOON, "the step is shown", look).unwrap();
    assert_eq!(changes(&bed), 0);
    let real = bed.start(1, &json!({})).unwrap();
    bed.node_has(0, 8).unwrap();
    drop(real);
    bed.finish().unwrap();
}
