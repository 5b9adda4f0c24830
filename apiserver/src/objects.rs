//! Objects as JSON values, and where they are.

use std::cmp::Ordering;

use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client};
use serde_json::Value;

/// A resource, with the plural that it has in paths.
fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// `CiliumNode` objects.
#[must_use]
pub fn cilium_nodes(client: &Client) -> Api<DynamicObject> {
    let of = resource("cilium.io", "v2", "CiliumNode", "ciliumnodes");
    Api::all_with(client.clone(), &of)
}

/// The versions of `CiliumPodIPPool` that there are, the newest first.
pub const POOL_VERSIONS: [&str; 2] = ["v2", "v2alpha1"];

/// `CiliumPodIPPool` objects, in the versions that there are, the newest first.
#[must_use]
pub fn pool_versions(client: &Client) -> Vec<Api<DynamicObject>> {
    let of = |version| pools_of(client, version);
    POOL_VERSIONS.map(of).into()
}

/// `CiliumPodIPPool` objects in one version.
#[must_use]
pub fn pools_of(client: &Client, version: &str) -> Api<DynamicObject> {
    let of = resource("cilium.io", version, "CiliumPodIPPool", "ciliumpodippools");
    Api::all_with(client.clone(), &of)
}

/// `ServiceCIDR` objects, in the versions that there are.
#[must_use]
pub fn service_cidrs(client: &Client) -> Vec<Api<DynamicObject>> {
    let of = |version| {
        let group = "networking.k8s.io";
        let of = resource(group, version, "ServiceCIDR", "servicecidrs");
        Api::all_with(client.clone(), &of)
    };
    ["v1", "v1beta1"].map(of).into()
}

/// `Service` objects of all namespaces.
#[must_use]
pub fn services(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("", "v1", "Service", "services"))
}

/// `NetworkPolicy` objects of all namespaces.
#[must_use]
pub fn policies(client: &Client) -> Api<DynamicObject> {
    let of = resource(
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
    );
    Api::all_with(client.clone(), &of)
}

/// A namespace's `Event` objects.
#[must_use]
pub fn events(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let of = resource("", "v1", "Event", "events");
    Api::namespaced_with(client.clone(), namespace, &of)
}

/// A namespace's `Lease` objects.
#[must_use]
pub fn leases(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let of = resource("coordination.k8s.io", "v1", "Lease", "leases");
    Api::namespaced_with(client.clone(), namespace, &of)
}

/// A namespace's `Deployment` objects.
#[must_use]
pub fn deployments(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let of = resource("apps", "v1", "Deployment", "deployments");
    Api::namespaced_with(client.clone(), namespace, &of)
}

/// A namespace's `DaemonSet` objects.
#[must_use]
pub fn daemon_sets(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let of = resource("apps", "v1", "DaemonSet", "daemonsets");
    Api::namespaced_with(client.clone(), namespace, &of)
}

/// A namespace's `ConfigMap` objects.
#[must_use]
pub fn config_maps(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let of = resource("", "v1", "ConfigMap", "configmaps");
    Api::namespaced_with(client.clone(), namespace, &of)
}

/// `Pod` objects of all namespaces.
#[must_use]
pub fn pods(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("", "v1", "Pod", "pods"))
}

/// `Pod` objects of a namespace.
#[must_use]
pub fn pods_in(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let of = resource("", "v1", "Pod", "pods");
    Api::namespaced_with(client.clone(), namespace, &of)
}

/// `Node` objects.
#[must_use]
pub fn kubernetes_nodes(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("", "v1", "Node", "nodes"))
}

/// The metadata of objects of the core API, of all namespaces.
#[must_use]
pub fn metadata(client: &Client, kind: &str, plural: &str) -> Api<PartialObjectMeta> {
    Api::all_with(client.clone(), &resource("", "v1", kind, plural))
}

/// The metadata of a namespace's pods.
#[must_use]
pub fn pods_of(client: &Client, namespace: &str) -> Api<PartialObjectMeta> {
    let of = resource("", "v1", "Pod", "pods");
    Api::namespaced_with(client.clone(), namespace, &of)
}

/// An object as a value, without its managed fields: they are most of it, and have no use here.
///
/// # Errors
/// When the object cannot be JSON, which one that came as JSON can.
pub fn value(mut object: DynamicObject) -> serde_json::Result<Value> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object)
}

/// True if a version of an object is older than another one of that object; false where that cannot
/// be known.
#[must_use]
pub fn is_older(object: &Value, than: &Value) -> bool {
    let version = |object: &Value| -> Option<u64> {
        let version = object["metadata"]["resourceVersion"].as_str()?;
        version.parse().ok()
    };
    let is_same = object["metadata"]["uid"] == than["metadata"]["uid"];
    is_same && version(object).cmp(&version(than)) == Ordering::Less
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_are_compared_as_numbers_and_of_one_object_only() {
        let object = |uid: &str, version: &str| json!({"metadata": {"uid": uid, "resourceVersion": version}});
        assert!(is_older(&object("a", "99"), &object("a", "100")));
        assert!(!is_older(&object("a", "100"), &object("a", "100")));
        assert!(!is_older(&object("a", "101"), &object("a", "100")));
        assert!(!is_older(&object("b", "99"), &object("a", "100")));
    }
}
