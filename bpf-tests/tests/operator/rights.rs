//! The rights of the operator, as shipped: each that is taken away is named.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::deploy;

use super::bed::{Bed, SOON};

pub(crate) const CLUSTER_ROLE: &str =
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/towpath-operator";
pub(crate) const ROLE: &str =
    "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/towpath-operator";

/// Takes every rule about a resource away.
fn take_away(bed: &Bed, path: &str, resource: &str) -> Result<()> {
    let mut role = bed.plane.server.admin().get(path)?.expect(200)?;
    let rules = role["rules"].as_array_mut().context("a role has rules")?;
    let before = rules.len();
    rules.retain(|rule| {
        let resources = rule["resources"].as_array();
        resources.is_none_or(|resources| !resources.contains(&json!(resource)))
    });
    ensure!(rules.len() < before, "{path} has no rule about {resource}");
    put(bed, path, &role)
}

/// Puts a role in the place of the one that is there.
pub(crate) fn put(bed: &Bed, path: &str, role: &Value) -> Result<()> {
    let answer = bed.plane.server.admin().put(path, role)?;
    answer.expect(200).map(drop)
}

/// Both roles of the operator, as the manifests have them.
pub(crate) fn roles(bed: &Bed) -> Result<[Value; 2]> {
    let read = |path| bed.plane.server.admin().get(path)?.expect(200);
    Ok([read(CLUSTER_ROLE)?, read(ROLE)?])
}

/// Gives the operator all of its rights again.
pub(crate) fn put_back(bed: &Bed, roles: &[Value; 2]) -> Result<()> {
    for (path, role) in [CLUSTER_ROLE, ROLE].into_iter().zip(roles) {
        let mut role = role.clone();
        if let Some(metadata) = role["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        put(bed, path, &role)?;
    }
    Ok(())
}

#[test]
fn each_right_that_is_taken_away_is_named() {
    let bed = Bed::create(1).unwrap();
    bed.add_node(0, 8).unwrap();
    let roles = roles(&bed).unwrap();
    let cases = [
        (CLUSTER_ROLE, "ciliumnodes", "follow CiliumNodes: "),
        (
            CLUSTER_ROLE,
            "ciliumpodippools",
            "follow CiliumPodIPPools: ",
        ),
        (CLUSTER_ROLE, "servicecidrs", "follow ServiceCIDRs: "),
        (CLUSTER_ROLE, "nodes", "follow Nodes: "),
        (CLUSTER_ROLE, "pods", "follow pods that wait: "),
        (ROLE, "leases", "lease: "),
        (ROLE, "deployments", "look for another operator: "),
        (ROLE, "daemonsets", "look for another operator: "),
        (ROLE, "configmaps", "look for another operator: "),
    ];
    for (number, (path, resource, named)) in (0..).zip(cases) {
        take_away(&bed, path, resource).unwrap();
        let operator = bed.start(number, &json!({})).unwrap();
        operator.log_has(&[named, "forbidden", resource]).unwrap();
        if resource == "ciliumnodes" {
            let unlisted = "the API server has not listed the CiliumNodes yet: see the log";
            let answer = operator.probe("/readyz").unwrap();
            assert_eq!(answer, (503, unlisted.to_owned()));
            // A restart would not help.
            assert_eq!(operator.probe("/healthz").unwrap().0, 200);
        }
        operator.kill().unwrap();
        put_back(&bed, &roles).unwrap();
    }
    bed.free_lease().unwrap();
    take_away(&bed, CLUSTER_ROLE, "ciliumnodes/status").unwrap();
    let operator = bed.start(9, &json!({})).unwrap();
    let look = || {
        let why = operator.ask("why node-0")?;
        check(why.contains("forbidden"), || why)
    };
    eventually(SOON, "the refused write is shown", look).unwrap();
    bed.finish().unwrap();
}

#[test]
fn kubectl_applies_the_manifests_twice_without_a_change() {
    let bed = Bed::create(1).unwrap();
    let folder = deploy().join("kubernetes/operator");
    let words = ["apply", "-k", folder.to_str().unwrap()];
    bed.kubectl(&words).unwrap();
    let all = [
        "get",
        "deployment,configmap,pdb,serviceaccount,role",
        "-A",
        "-o",
        "json",
    ];
    let versions = || {
        let all: Value = serde_json::from_str(&bed.kubectl(&all).unwrap()).unwrap();
        let items = all["items"].as_array().unwrap().clone();
        let ours = items
            .into_iter()
            .filter(|it| it.to_string().contains("towpath-operator"));
        let version = |it: Value| {
            let metadata = &it["metadata"];
            format!("{} {}", metadata["name"], metadata["resourceVersion"])
        };
        ours.map(version).collect::<Vec<_>>()
    };
    let before = versions();
    assert!(before.len() >= 5, "{before:?}");
    bed.kubectl(&words).unwrap();
    assert_eq!(versions(), before);
    bed.finish().unwrap();
}
