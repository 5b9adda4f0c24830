//! The real kube-proxy on the fabric's node.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bpf_tests::fabric::document::NODE_NAME;
use bpf_tests::fabric::eventually::{check, eventually};
use bpf_tests::fabric::{Fabric, Netns};
use bpf_tests::kubernetes::KubeProxy as Process;
use serde_json::{Value, json};
use towpath::intent::Family;

use crate::api_server::ApiServer;
use crate::model::{
    BACKEND_PORT, Policy, SERVICE_PORT, STICKY_SECONDS, Served, Service, Transport,
};

/// How long kube-proxy may take to write its first rules.
const START: Duration = Duration::from_mins(1);
/// A running kube-proxy. Dropping it ends it; its rules stay.
#[derive(Debug)]
pub(crate) struct KubeProxy {
    process: Process,
    _api: ApiServer,
}

impl KubeProxy {
    /// Starts kube-proxy, and waits until it has written its rules.
    pub(crate) fn start(fabric: &Fabric, served: &[Served]) -> Result<Self> {
        let api = ApiServer::start(&fabric.node, objects(fabric, served)?)?;
        let kubeconfig = fabric.file("kube-proxy.kubeconfig");
        fs::write(&kubeconfig, kubeconfig_for(&api.url()).to_string())?;
        let mut proxy = Self {
            process: Process::start(fabric, &kubeconfig)?,
            _api: api,
        };
        for family in served {
            proxy.wait_for_rules(&fabric.node, family)?;
        }
        Ok(proxy)
    }

    /// Waits until every backend of every service has its rule.
    fn wait_for_rules(&mut self, node: &Netns, served: &Served) -> Result<()> {
        let save = match served.family {
            Family::V4 => "iptables-nft-save -t nat",
            Family::V6 => "ip6tables-nft-save -t nat",
        };
        let backends: usize = served.services.iter().map(|s| s.backends.len()).sum();
        let wanted = backends * Transport::ALL.len();
        let mut ended = None;
        let rules = eventually(START, "kube-proxy has written its rules", || {
            ended = self.process.ended()?;
            if ended.is_some() {
                return Ok(());
            }
            let rules = node.run(save)?;
            let there = rules.matches("-j DNAT --to-destination").count();
            check(there == wanted, || format!("{there} of {wanted}"))
        });
        if let Some(status) = ended {
            bail!("kube-proxy ended with {status}: {}", self.process.log());
        }
        rules.map(drop).with_context(|| self.process.log())
    }
}

fn kubeconfig_for(server: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fabric", "cluster": {"server": server}}],
        "users": [{"name": "fabric", "user": {}}],
        "contexts": [{"name": "fabric", "context": {"cluster": "fabric", "user": "fabric"}}],
        "current-context": "fabric",
    })
}

/// What the API server has, by path.
fn objects(fabric: &Fabric, served: &[Served]) -> Result<BTreeMap<String, Value>> {
    let services: Vec<_> = served.iter().flat_map(|family| &family.services).collect();
    let list = |kind: &str, version: &str, items: Vec<Value>| {
        json!({
            "kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "1"},
            "items": items
        })
    };
    let slices = services
        .iter()
        .filter(|service| !service.backends.is_empty());
    let node = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": NODE_NAME, "uid": NODE_NAME},
        "status": {"addresses": [
            {"type": "InternalIP", "address": fabric.node_at(Family::V4)?.address}
        ]}
    });
    Ok(BTreeMap::from([
        (
            "/api/v1/services".to_owned(),
            list(
                "ServiceList",
                "v1",
                services.iter().map(|s| object(s)).collect(),
            ),
        ),
        (
            "/apis/discovery.k8s.io/v1beta1/endpointslices".to_owned(),
            list(
                "EndpointSliceList",
                "discovery.k8s.io/v1beta1",
                slices.map(|s| slice(s)).collect(),
            ),
        ),
        (format!("/api/v1/nodes/{NODE_NAME}"), node),
    ]))
}

fn kubernetes(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn object(service: &Service) -> Value {
    let ports = Transport::ALL.map(|transport| {
        json!({
            "name": transport.name(), "protocol": transport.name().to_uppercase(),
            "port": SERVICE_PORT, "targetPort": BACKEND_PORT, "nodePort": service.node_port()
        })
    });
    let mut object = json!({
        "metadata": {"name": service.name(), "namespace": "default", "uid": service.name()},
        "spec": {
            "type": "NodePort",
            "clusterIP": service.address,
            "clusterIPs": [service.address],
            "ipFamilies": [kubernetes(service.family())],
            "ipFamilyPolicy": "SingleStack",
            "ports": ports,
            "externalTrafficPolicy": match service.policy {
                Policy::Cluster => "Cluster",
                Policy::Local => "Local",
            },
            "sessionAffinity": "None",
        }
    });
    if service.sticky {
        object["spec"]["sessionAffinity"] = json!("ClientIP");
        object["spec"]["sessionAffinityConfig"] =
            json!({"clientIP": {"timeoutSeconds": STICKY_SECONDS}});
    }
    object
}

fn slice(service: &Service) -> Value {
    let endpoints = service.backends.iter().map(|backend| {
        let node = if backend.here {
            NODE_NAME
        } else {
            "another-node"
        };
        json!({
            "addresses": [backend.address],
            "conditions": {"ready": true},
            "topology": {"kubernetes.io/hostname": node},
        })
    });
    let endpoints: Vec<_> = endpoints.collect();
    let ports = Transport::ALL.map(|transport| {
        json!({
            "name": transport.name(), "protocol": transport.name().to_uppercase(),
            "port": BACKEND_PORT
        })
    });
    json!({
        "metadata": {
            "name": service.name(), "namespace": "default", "uid": service.name(),
            "labels": {"kubernetes.io/service-name": service.name()}
        },
        "addressType": kubernetes(service.family()),
        "endpoints": endpoints,
        "ports": ports,
    })
}
