//! Manifests of `deploy/`, as objects.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::{Value, json};

/// Kinds that the manifests have: API path, plural, whether they are of a namespace.
const KINDS: &[(&str, &str, &str, bool)] = &[
    (
        "ClusterRole",
        "/apis/rbac.authorization.k8s.io/v1",
        "clusterroles",
        false,
    ),
    (
        "ClusterRoleBinding",
        "/apis/rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
        false,
    ),
    ("ConfigMap", "/api/v1", "configmaps", true),
    (
        "CustomResourceDefinition",
        "/apis/apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        false,
    ),
    ("DaemonSet", "/apis/apps/v1", "daemonsets", true),
    ("Deployment", "/apis/apps/v1", "deployments", true),
    ("Lease", "/apis/coordination.k8s.io/v1", "leases", true),
    ("Namespace", "/api/v1", "namespaces", false),
    ("Node", "/api/v1", "nodes", false),
    ("Pod", "/api/v1", "pods", true),
    (
        "PodMonitor",
        "/apis/monitoring.coreos.com/v1",
        "podmonitors",
        true,
    ),
    (
        "PodDisruptionBudget",
        "/apis/policy/v1",
        "poddisruptionbudgets",
        true,
    ),
    ("Role", "/apis/rbac.authorization.k8s.io/v1", "roles", true),
    (
        "RoleBinding",
        "/apis/rbac.authorization.k8s.io/v1",
        "rolebindings",
        true,
    ),
    ("ServiceAccount", "/api/v1", "serviceaccounts", true),
    (
        "ValidatingAdmissionPolicy",
        "/apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
        false,
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        "/apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        false,
    ),
];

/// The folder of the manifests.
#[must_use]
pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// The definitions of the custom resources.
///
/// # Errors
/// When one cannot be read.
pub fn crds() -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for name in ["ciliumnodes.yaml", "ciliumpodippools.yaml"] {
        objects.extend(read(&format!("crds/{name}"))?);
    }
    Ok(objects)
}

/// The definition of pools as later releases of Cilium have it: version `v2` alone, with ranges
/// that are in no block.
///
/// # Errors
/// When the present definition cannot be read.
pub fn pools_of_v2() -> Result<Value> {
    let mut definition = read("crds/ciliumpodippools.yaml")?
        .pop()
        .context("crds/ciliumpodippools.yaml has no object")?;
    let version = definition
        .pointer_mut("/spec/versions/0")
        .context("it has no versions")?;
    let fields = version
        .pointer_mut("/schema/openAPIV3Schema/properties/spec/properties/ipv4/properties")
        .context("it has no spec.ipv4")?;
    let text = json!({"type": "string"});
    let range = json!({"type": "object", "properties": {"start": text, "end": text}});
    fields["pool"] = json!({
        "type": "array", "items": {"type": "object", "properties": {
            "cidr": text, "reservedRanges": {"type": "array", "items": range}
        }}
    });
    version["name"] = json!("v2");
    Ok(definition)
}

/// The objects of a manifest, by its path in `deploy/`.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &str) -> Result<Vec<Value>> {
    let file = deploy().join(path);
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    documents(&text).with_context(|| file.display().to_string())
}

/// The documents of a text, as objects.
///
/// # Errors
/// When one is no YAML.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    serde_yaml_ng::Deserializer::from_str(text)
        .map(|document| {
            // Anchors and what refers to them.
            let mut value = serde_yaml_ng::Value::deserialize(document)?;
            value.apply_merge()?;
            Ok(serde_json::to_value(value)?)
        })
        .collect()
}

/// Where an object is, or would be.
///
/// # Errors
/// When its kind is not one of those that the manifests have.
pub fn path_of(object: &Value) -> Result<String> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let known = KINDS.iter().find(|(name, ..)| *name == kind);
    let (_, api, plural, namespaced) = known.with_context(|| format!("kind {kind:?}"))?;
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().context("it has no name")?;
    Ok(
        match metadata["namespace"].as_str().filter(|_| *namespaced) {
            Some(namespace) => format!("{api}/namespaces/{namespace}/{plural}/{name}"),
            None => format!("{api}/{plural}/{name}"),
        },
    )
}
