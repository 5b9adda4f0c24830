//! The real kube-proxy on the fabric's node, beside a real API server.

use std::time::Duration;

use anyhow::{Result, bail};
use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::{Fabric, Netns};
use testkit::kubernetes::{ApiServer, KubeProxy as Process, ProxyMode, ServerSpec, User};

use crate::model::{
    BACKEND_PORT, Policy, SERVICE_PORT, STICKY_SECONDS, Served, Service, Transport,
};

/// The time that kube-proxy may take to write its first rules.
const START: Duration = Duration::from_mins(1);
/// Where kube-proxy has its metrics.
const METRICS: &str = "127.0.0.1:10249";
/// The metric that is there once a family's rules have been written; a time is its value.
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=";
/// Services' CIDRs.
const CIDRS: &str = "172.20.0.0/16,fd5e::/108";

/// A running kube-proxy. Dropping it ends it; its rules stay.
#[derive(Debug)]
pub(crate) struct KubeProxy {
    process: Process,
    _server: ApiServer,
}

impl KubeProxy {
    /// Starts kube-proxy, and waits until it has written its rules.
    pub(crate) fn start(fabric: &Fabric, mode: ProxyMode, served: &[Served]) -> Result<Self> {
        let spec = ServerSpec {
            services: CIDRS.to_owned(),
            ..ServerSpec::default()
        };
        let server = ApiServer::start_as(&fabric.node, &fabric.file("api-server"), spec)?;
        publish(&server, fabric, served)?;
        let kubeconfig = server.kubeconfig_of(&User::Proxy)?;
        let mut proxy = Self {
            process: Process::start(fabric, &kubeconfig, mode)?,
            _server: server,
        };
        proxy.wait_for_rules(&fabric.node)?;
        Ok(proxy)
    }

    /// Waits until it has written the rules of every service for both families. Its health does not say
    /// so: it is healthy while it starts up.
    fn wait_for_rules(&mut self, node: &Netns) -> Result<()> {
        let mut ended = None;
        let synced = eventually(START, "kube-proxy has written its rules", || {
            ended = self.process.ended()?;
            if ended.is_some() {
                return Ok(());
            }
            let ask = "curl --silent --show-error --fail --max-time 2";
            let metrics = node.run(&format!("{ask} http://{METRICS}/metrics"))?;
            let is_synced = |family: &str| metrics.contains(&format!("{LAST_SYNC}\"{family}\"}} "));
            let both = ["IPv4", "IPv6"];
            check(both.into_iter().all(is_synced), || {
                let lines = metrics
                    .lines()
                    .filter(|line| line.contains("last_timestamp"));
                lines.collect::<Vec<_>>().join("\n")
            })
        });
        if let Some(status) = ended {
            bail!("kube-proxy ended with {status}: {}", self.process.log());
        }
        synced
            .map(drop)
            .inspect_err(|_| println!("{}", self.process.log()))
    }
}

/// Makes the node, the services and their endpoints in the API server.
fn publish(server: &ApiServer, fabric: &Fabric, served: &[Served]) -> Result<()> {
    let admin = server.admin();
    let name = fabric.name();
    let addresses = Family::ALL
        .into_iter()
        .map(|family| {
            let address = fabric.node_at(family)?.address;
            Ok(json!({"type": "InternalIP", "address": address}))
        })
        .collect::<Result<Vec<_>>>()?;
    let node = json!({
        "kind": "Node", "apiVersion": "v1", "metadata": {"name": name},
        "status": {"addresses": addresses}
    });
    admin.post("/api/v1/nodes", &node)?.expect(201)?;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    for service in served.iter().flat_map(|family| &family.services) {
        let services = "/api/v1/namespaces/default/services";
        admin.post(services, &object(service))?.expect(201)?;
        if !service.backends.is_empty() {
            admin.post(slices, &slice(service, &name))?.expect(201)?;
        }
    }
    Ok(())
}

fn kubernetes(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn object(service: &Service) -> Value {
    let port = service
        .external
        .map_or(SERVICE_PORT, |external| external.port());
    let ports = Transport::ALL.map(|transport| {
        json!({
            "name": transport.name(), "protocol": transport.name().to_uppercase(),
            "port": port, "targetPort": BACKEND_PORT, "nodePort": service.node_port()
        })
    });
    let mut object = json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"name": service.name(), "namespace": "default"},
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
    if let Some(external) = service.external {
        object["spec"]["externalIPs"] = json!([external.ip()]);
    }
    if service.sticky {
        object["spec"]["sessionAffinity"] = json!("ClientIP");
        object["spec"]["sessionAffinityConfig"] =
            json!({"clientIP": {"timeoutSeconds": STICKY_SECONDS}});
    }
    object
}

fn slice(service: &Service, name: &str) -> Value {
    let endpoints = service.backends.iter().map(|backend| {
        let node = if backend.here { name } else { "another-node" };
        json!({
            "addresses": [backend.address], "conditions": {"ready": true}, "nodeName": node
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
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": service.name(), "namespace": "default",
            "labels": {"kubernetes.io/service-name": service.name()}
        },
        "addressType": kubernetes(service.family()),
        "endpoints": endpoints,
        "ports": ports,
    })
}
