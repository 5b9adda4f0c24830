//! A node of the fabric in a cluster. The agent has its service account's rights, and the test
//! writes the operator's part of the objects.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::fabric::document::{NODE_NAME, document};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Eni;
use testkit::fabric::{Fabric, Netns, Spec};
use testkit::kubernetes::proxy::Proxy;
use testkit::kubernetes::{ApiServer, Component, MetadataService};

/// Deadline for changes that need the API server and the agent.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// Path of the node's object.
pub(crate) const NODE: &str = "/apis/cilium.io/v2/ciliumnodes/fabric-node";
/// The cluster's service CIDR.
pub(crate) const SERVICE_CIDR: &str = "10.96.0.0/16";

/// The node and its cluster.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    /// The proxy before the API server, if the test needs one.
    proxy: Option<Proxy>,
    pub(crate) fabric: Fabric,
    pub(crate) token: String,
    pub(crate) metadata: MetadataService,
    folder: TempDir,
}

impl Cluster {
    /// A cluster with the node in it. The agent is started; it has no ENI yet.
    pub(crate) fn create() -> Result<Self> {
        let mut cluster = Self::prepare(false)?;
        cluster.start()?;
        Ok(cluster)
    }

    /// A cluster with the node in it and settings of the agent, which is started.
    pub(crate) fn create_with(settings: &Value) -> Result<Self> {
        let mut cluster = Self::prepare(false)?;
        cluster.fabric.agent.configure(settings)?;
        cluster.start()?;
        Ok(cluster)
    }

    /// A cluster with the node in it, with a proxy before the API server, or without; the agent is
    /// not started.
    pub(crate) fn prepare(is_behind_proxy: bool) -> Result<Self> {
        Self::prepare_on(&Spec::default(), is_behind_proxy)
    }

    /// A cluster like that of [`Self::prepare`], on a node of another kind.
    pub(crate) fn prepare_on(spec: &Spec, is_behind_proxy: bool) -> Result<Self> {
        let fabric = Fabric::create(spec)?;
        let folder = tempfile::tempdir()?;
        let server = ApiServer::start(&fabric.node, folder.path())?;
        server.make_crds()?;
        let token = server.admit(Component::Agent)?.token;
        let eni = fabric.eni(0)?;
        let primary = Family::ALL
            .into_iter()
            .find_map(|family| eni.own_address(family));
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": NODE_NAME, "labels": {"zone": "a"}},
            "status": {"addresses": [
                {"type": "InternalIP", "address": primary}, {"type": "Hostname", "address": NODE_NAME}
            ]}
        });
        server.admin().post("/api/v1/nodes", &node)?.expect(201)?;
        let proxy = is_behind_proxy
            .then(|| Proxy::start(&fabric.node, &server.url(), &server.certificate()))
            .transpose()?;
        let url = proxy.as_ref().map_or_else(|| server.url(), Proxy::url);
        let kubeconfig: PathBuf = server.kubeconfig("agent", &url, &token)?;
        let on_loopback = SocketAddr::from(([127, 0, 0, 1], 1338));
        let metadata = fabric.node.enter(|| MetadataService::start(on_loopback))?;
        fabric.agent.configure(&json!({
            "services": {"cidrs": [SERVICE_CIDR]},
            "kubernetes": {
                "enabled": true, "node-name": NODE_NAME, "kubeconfig": kubeconfig, "update-interval": 1,
                "metadata-endpoint": metadata.endpoint()
            }
        }))?;
        Ok(Self {
            server,
            proxy,
            fabric,
            token,
            metadata,
            folder,
        })
    }

    /// Starts the agent, or restarts it.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.fabric.agent.start(&self.fabric.node, &[])
    }

    /// The folder of the API server's files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The proxy.
    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    /// A cluster whose node has the ENIs of the fabric and is ready.
    pub(crate) fn ready() -> Result<Self> {
        Self::prepare(false)?.made_ready()
    }

    /// A cluster whose node has the ENIs of the fabric and is ready, behind a proxy.
    pub(crate) fn ready_behind_proxy() -> Result<Self> {
        Self::prepare(true)?.made_ready()
    }

    pub(crate) fn made_ready(self) -> Result<Self> {
        let mut cluster = self;
        cluster.start()?;
        cluster.node()?;
        cluster.operate()?;
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// Waits until the agent is ready and allocates addresses: it may learn pools later than its
    /// ENIs.
    pub(crate) fn wait_until_ready(&mut self) -> Result<()> {
        self.fabric.wait_until_ready()?;
        let gives = |status: &Value| status["allocation"]["waiting"] == json!([]);
        self.status_is("addresses are given", gives).map(drop)
    }

    /// Replaces the agent by another one.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.fabric.agent.stop()?;
        self.fabric.agent.start(&self.fabric.node, &[])
    }

    /// The node's object, as soon as it exists.
    pub(crate) fn node(&self) -> Result<Value> {
        let look = || self.server.admin().get(NODE)?.expect(200);
        Ok(eventually(SOON, "there is a CiliumNode", look)?.0)
    }

    /// Waits until the node's object fulfils a condition.
    pub(crate) fn node_is(&self, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        let look = || {
            let node = self.server.admin().get(NODE)?.expect(200)?;
            check(is(&node), || node["spec"].to_string())?;
            Ok(node)
        };
        let log = || self.fabric.agent.log();
        Ok(eventually(SOON, what, look).with_context(log)?.0)
    }

    /// Writes the ENIs of the fabric, as the operator does.
    pub(crate) fn operate(&self) -> Result<()> {
        let status = document(&self.fabric.enis)["status"].clone();
        let answer = self
            .server
            .admin()
            .merge(&format!("{NODE}/status"), &json!({"status": status}))?;
        answer.expect(200).map(drop)
    }

    /// Creates a namespace.
    pub(crate) fn namespace(&self, name: &str, annotations: &Value) -> Result<()> {
        self.server.apply(&[json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "annotations": annotations}
        })])
    }

    /// Creates a pod on the node, and its namespace.
    pub(crate) fn pod(&self, namespace: &str, name: &str, annotations: &Value) -> Result<Guest> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": NODE_NAME, "containers": [{"name": "one", "image": "none"}]}
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let made = self.server.admin().post(&path, &pod)?.expect(201)?;
        Ok(Guest {
            netns: Netns::create(&format!("{}-{name}", self.fabric.node.name()))?,
            pod: json!({
                "namespace": namespace, "name": name, "uid": made["metadata"]["uid"]
            }),
            families: Some(vec![Family::V4]),
        })
    }

    /// The agent's status.
    pub(crate) fn status(&self) -> Result<Value> {
        self.fabric.agent.ask("GET", "/v1/status", None)
    }

    /// Waits until the agent's status fulfils a condition.
    pub(crate) fn status_is(&self, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        let look = || {
            let status = self.status()?;
            check(is(&status), || status.to_string())?;
            Ok(status)
        };
        let log = || self.fabric.agent.log();
        Ok(eventually(SOON, what, look).with_context(log)?.0)
    }

    /// The ENI of a number.
    pub(crate) fn eni(&self, number: u8) -> &Eni {
        self.fabric.eni(number).unwrap()
    }
}

/// A pod, as the runtime sees it.
pub(crate) struct Guest {
    netns: Netns,
    pod: Value,
    /// The families that its request names, if any.
    families: Option<Vec<Family>>,
}

impl Guest {
    /// Leaves the families to the agent's settings, as the request names none.
    pub(crate) fn of_any_family(self) -> Self {
        Self {
            families: None,
            ..self
        }
    }

    /// Adds the pod, and returns the status and the answer.
    pub(crate) fn try_add(&self, fabric: &Fabric) -> (u16, Value) {
        let mut request = json!({
            "owner": {"container-id": self.netns.name(), "interface": "eth0"},
            "netns": self.netns.path(),
            "network": "towpath",
            "pod": self.pod,
        });
        if let Some(families) = &self.families {
            request["families"] = json!(families);
        }
        fabric
            .agent
            .request("PUT", "/v1/endpoints", Some(&request))
            .unwrap()
    }

    /// Adds the pod, and returns its address and the number of its ENI.
    pub(crate) fn add(&self, fabric: &Fabric) -> (String, u64) {
        let (status, answer) = self.try_add(fabric);
        assert_eq!(status, 200, "{answer}");
        let address = &answer["addresses"][0];
        (
            address["address"].as_str().unwrap().to_owned(),
            address["eni"]["number"].as_u64().unwrap(),
        )
    }

    /// Deletes the pod.
    pub(crate) fn delete(&self, fabric: &Fabric) {
        let path = format!("/v1/endpoints/{}/eth0", self.netns.name());
        fabric.agent.ask("DELETE", &path, None).unwrap();
    }
}

/// The blocks of a pool that the node's object lists.
pub(crate) fn allocated(node: &Value, pool: &str) -> Vec<String> {
    let entries = node["spec"]["ipam"]["pools"]["allocated"].as_array();
    let of_pool = entries
        .into_iter()
        .flatten()
        .filter(|entry| entry["pool"] == pool);
    let cidrs = of_pool.flat_map(|entry| entry["cidrs"].as_array().unwrap());
    cidrs
        .map(|cidr| cidr.as_str().unwrap().to_owned())
        .collect()
}

/// The number of IPv4 addresses of a pool that the node requests.
pub(crate) fn requested(node: &Value, pool: &str) -> Option<u64> {
    let entries = node["spec"]["ipam"]["pools"]["requested"].as_array();
    let entry = entries
        .into_iter()
        .flatten()
        .find(|entry| entry["pool"] == pool)?;
    entry["needed"]["ipv4-addrs"].as_u64()
}
