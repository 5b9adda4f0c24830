//! The manifests of `deploy/`, applied by kubectl to a real API server.

use std::fs;
use std::path::{Path, PathBuf};

use config::Config;
use serde_json::{Value, json};
use testkit::fabric::eventually::eventually;
use testkit::kubernetes::{ApiServer, ControlPlane, deploy, documents, path_of, read_manifest};

use crate::cluster::SOON;

const BASE: &str = "kubernetes/base";
const ADMISSION: &str = "kubernetes/admission";
/// Folders of the overlays.
const OVERLAYS: [&str; 5] = [
    "beside-cilium-operator",
    "privileged",
    "prometheus",
    "removal",
    "stack",
];
/// Name of the `DaemonSet`'s port for metrics.
const METRICS: &str = "metrics";

fn folders() -> Vec<PathBuf> {
    let overlays = OVERLAYS.map(|name| deploy().join("kubernetes/overlays").join(name));
    [vec![deploy().join(BASE)], overlays.into()].concat()
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap()
}

#[test]
fn every_file_is_yaml_and_every_overlay_is_known() {
    let yaml = files(&deploy())
        .into_iter()
        .filter(|file| file.extension().is_some_and(|end| end == "yaml"));
    let mut count = 0;
    for file in yaml {
        let text = fs::read_to_string(&file).unwrap();
        let objects =
            documents(&text).unwrap_or_else(|error| panic!("{}: {error:#}", file.display()));
        assert!(!objects.is_empty(), "{}", file.display());
        count += 1;
    }
    assert!(count > 10, "{count}");
    let overlays = fs::read_dir(deploy().join("kubernetes/overlays")).unwrap();
    let mut names: Vec<_> = overlays
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, OVERLAYS);
}

/// The agent's settings, as the pods of a kustomization read them.
fn settings(objects: &[Value]) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let map = of_kind(objects, "ConfigMap");
    let data = map["data"].as_object().unwrap();
    assert_eq!(data.len(), 1, "{data:?}");
    fs::write(&file, data["config.yaml"].as_str().unwrap()).unwrap();
    Config::load(Some(&file)).unwrap()
}

/// A container of a pod; newer releases of kubectl order them differently.
fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let mut containers = pod["containers"].as_array().unwrap().iter();
    containers
        .find(|container| container["name"] == name)
        .unwrap()
}

/// Every path in the settings is mounted.
fn every_path_is_mounted(config: &Config, agent: &Value, name: &str) {
    let mounts = agent["volumeMounts"].as_array().unwrap();
    for path in [
        config.datapath.pin_root.as_path(),
        config.kernel.sysctls.as_path(),
        config.state_dir.as_path(),
        config.socket.as_path(),
        config.masquerade.ip_masq_agent.path.as_path(),
        config.cni.conf_dir.as_path(),
    ] {
        let mounted = |mount: &Value| path.starts_with(mount["mountPath"].as_str().unwrap());
        assert!(mounts.iter().any(mounted), "{name}: {}", path.display());
    }
}

/// The names that the rules of a Role are limited to, but for those of `ConfigMap` objects.
fn named_resources(role: &Value) -> Vec<&str> {
    let rules = role["rules"].as_array().into_iter().flatten();
    let others = rules.filter(|rule| !rule["resources"].to_string().contains("configmaps"));
    let names = others.flat_map(|rule| rule["resourceNames"].as_array().into_iter().flatten());
    names.filter_map(Value::as_str).collect()
}

/// Kustomize puts the hash of a generated `ConfigMap` wherever a Role has its name.
#[test]
fn no_right_is_limited_to_the_name_of_a_generated_configmap() {
    let plane = ControlPlane::bare().unwrap();
    let kubectl = plane.kubectl().unwrap();
    let operator = deploy().join("kubernetes/operator");
    for folder in folders().into_iter().chain([operator]) {
        let objects = kubectl.build(&folder).unwrap();
        let map = of_kind(&objects, "ConfigMap")["metadata"]["name"].as_str();
        for role in &objects {
            let named = named_resources(role);
            assert!(!named.contains(&map.unwrap()), "{}", folder.display());
        }
    }
}

#[test]
fn what_kubectl_makes_of_them_agrees_with_the_agent() {
    let plane = ControlPlane::bare().unwrap();
    let kubectl = plane.kubectl().unwrap();
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let objects = kubectl.build(&folder).unwrap();
        let config = settings(&objects);
        assert!(config.kubernetes.enabled, "{name}");
        let stack = serde_json::to_value(config.datapath.path).unwrap() == "stack";
        assert_eq!(stack, name == "stack");
        let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
        let agent = container(pod, "agent");
        every_path_is_mounted(&config, agent, name);
        // The configuration is the generated one.
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == "config");
        let wanted = &of_kind(&objects, "ConfigMap")["metadata"]["name"];
        assert_eq!(volume.unwrap()["configMap"]["name"], *wanted, "{name}");
        for container in pod["containers"].as_array().unwrap() {
            let image = container["image"].as_str().unwrap();
            assert_eq!(
                image,
                concat!("localhost/towpath:", env!("CARGO_PKG_VERSION"))
            );
            assert_eq!(
                container["args"].to_string().contains("--uninstall"),
                name == "removal" && container["name"] == "cni"
            );
        }
        assert!(config.http.address.unwrap().ip().is_loopback(), "{name}");
        let port = config.metrics.address.unwrap().port();
        let ports = agent["ports"].as_array().unwrap();
        let is_metrics = |one: &&Value| one["name"] == METRICS;
        let metrics = ports.iter().find(is_metrics).unwrap();
        assert_eq!(metrics["containerPort"], port, "{name}");
        let monitor = objects.iter().find(|object| object["kind"] == "PodMonitor");
        assert_eq!(monitor.is_some(), name == "prometheus");
        if let Some(monitor) = monitor {
            let spec = &monitor["spec"];
            assert_eq!(spec["podMetricsEndpoints"][0]["port"], METRICS);
            let labels = &of_kind(&objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"];
            assert_eq!(spec["selector"]["matchLabels"], *labels);
        }
        let context = &agent["securityContext"];
        let privileged = context["privileged"] == true;
        assert_eq!(privileged, name == "privileged");
        assert_eq!(context["capabilities"].is_null(), privileged, "{context}");
    }
}

/// The resource of Prometheus Operator, as far as an API server needs it.
fn pod_monitors() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "podmonitors.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor",
                "listKind": "PodMonitorList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}]
        }
    })
}

/// Kinds of EKS's nodes, by their label, that a `DaemonSet`'s pods may run on.
fn admitted(pod: &Value) -> Vec<Option<&'static str>> {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = pod["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"].as_array();
    let terms = terms.unwrap();
    let kinds = [
        None,
        Some("ec2"),
        Some("fargate"),
        Some("hybrid"),
        Some("auto"),
    ];
    let admits = |kind: Option<&str>, term: &Value| {
        let mut expressions = term["matchExpressions"].as_array().unwrap().iter();
        expressions.all(|one| {
            assert_eq!(one["key"], "eks.amazonaws.com/compute-type");
            assert_eq!(one["operator"], "NotIn");
            let values = one["values"].as_array().unwrap();
            kind.is_none_or(|kind| !values.contains(&json!(kind)))
        })
    };
    let mut kinds = kinds.to_vec();
    kinds.retain(|kind| terms.iter().any(|term| admits(*kind, term)));
    kinds
}

#[test]
fn the_daemon_set_stays_off_nodes_with_a_network_of_their_own() {
    for object in read_manifest("kubernetes/base/daemonset.yaml").unwrap() {
        let pod = &object["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux");
        assert_eq!(admitted(pod), [None, Some("ec2")]);
    }
}

/// The versions of a kustomization's objects on the server.
fn versions(server: &ApiServer, objects: &[Value]) -> Vec<Value> {
    let version = |object| {
        let read = server.admin().get(&path_of(object).unwrap()).unwrap();
        read.expect(200).unwrap()["metadata"]["resourceVersion"].clone()
    };
    objects.iter().map(version).collect()
}

#[test]
fn kubectl_applies_them_and_again_changes_nothing() {
    let plane = ControlPlane::bare().unwrap();
    let (server, kubectl) = (&plane.server, plane.kubectl().unwrap());
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = server.admin().post(definitions, &pod_monitors()).unwrap();
    made.expect(201).unwrap();
    let served = || {
        let list = "/apis/monitoring.coreos.com/v1/podmonitors";
        server.admin().get(list)?.expect(200).map(drop)
    };
    eventually(SOON, "PodMonitors are served", served).unwrap();
    for folder in folders().into_iter().chain([deploy().join(ADMISSION)]) {
        let path = folder.to_str().unwrap();
        let objects = kubectl.build(&folder).unwrap();
        kubectl.succeed(&["apply", "-k", path]).unwrap();
        let before = versions(server, &objects);
        kubectl.succeed(&["apply", "-k", path]).unwrap();
        assert_eq!(versions(server, &objects), before, "{path}");
        let difference = kubectl.run(&["diff", "-k", path]).unwrap();
        assert!(difference.success, "{path}: {}", difference.text);
        kubectl
            .succeed(&["apply", "--server-side", "-k", path])
            .unwrap();
        let before = versions(server, &objects);
        kubectl
            .succeed(&["apply", "--server-side", "-k", path])
            .unwrap();
        assert_eq!(versions(server, &objects), before, "{path}");
    }
}

#[test]
fn a_custom_resource_that_is_there_stays_as_it_is() {
    let plane = ControlPlane::bare().unwrap();
    let (server, kubectl) = (&plane.server, plane.kubectl().unwrap());
    // A definition in Cilium's version.
    let mut theirs = testkit::kubernetes::crds().unwrap().remove(0);
    theirs["metadata"]["labels"] = json!({"io.cilium.k8s.crd.schema.version": "1.30.4"});
    let path = path_of(&theirs).unwrap();
    let (collection, _) = path.rsplit_once('/').unwrap();
    let admin = server.admin();
    admin
        .post(collection, &theirs)
        .unwrap()
        .expect(201)
        .unwrap();
    let spec = |object: &Value| (object["metadata"]["labels"].clone(), object["spec"].clone());
    let before = admin.get(&path).unwrap().expect(200).unwrap();

    let folder = deploy().join("crds");
    let folder = folder.to_str().unwrap();
    let done = kubectl.run(&["create", "-k", folder]).unwrap();
    assert!(!done.success, "{}", done.text);
    assert!(done.text.contains("AlreadyExists"), "{}", done.text);
    let made = "customresourcedefinition.apiextensions.k8s.io/ciliumpodippools.cilium.io created";
    assert!(done.text.contains(made), "{}", done.text);
    let after = admin.get(&path).unwrap().expect(200).unwrap();
    assert_eq!(spec(&after), spec(&before));
    // Users do not apply them.
    for folder in folders() {
        let objects = kubectl.build(&folder).unwrap();
        let is_crd = |object: &Value| object["kind"] == "CustomResourceDefinition";
        assert!(!objects.iter().any(is_crd), "{}", folder.display());
    }
}
