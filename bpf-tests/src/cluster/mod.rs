//! A whole cluster on this machine: a control plane and worker nodes in one VPC of the fabric.
//!
//! ```text
//!   control: etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!      └─ VPC router, source check per ENI ─┬─ fabric-node:   kubelet, containerd, kube-proxy, agent
//!                                           └─ fabric-node-2: the same
//! ```
//!
//! Everything is real but the cloud and its operator: a [stand-in](operator) writes the ENIs that the
//! fabric has.

mod addons;
mod blocks;
mod operator;
mod spec;
mod worker;
mod workload;

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tempfile::TempDir;
use towpath::intent::Family;

pub use blocks::{PLAIN_POOL, plain_pool};
pub use operator::Operator;
pub use spec::ClusterSpec;
pub use worker::Worker;
pub use workload::{PodAt, deployment};

use crate::fabric::eventually::{check, eventually};
use crate::fabric::layout::Host;
use crate::fabric::{Fabric, Netns};
use crate::kubernetes::{
    ApiServer, Caller, Controllers, Kubectl, MetadataService, ServerSpec, deploy,
};

/// How long a cluster's part may take to become ready on a busy machine.
pub const SOON: Duration = Duration::from_mins(2);
/// The address of the cluster's DNS service.
pub const DNS: &str = "10.96.0.10";
/// The cluster's service CIDRs.
const SERVICES: &str = "10.96.0.0/16,fd5e:96::/108";

/// A running cluster. Dropping it ends everything and removes it.
#[derive(Debug)]
pub struct Cluster {
    /// The stand-in that writes the nodes' ENIs, once it is started.
    pub operator: Option<Operator>,
    /// The nodes.
    pub workers: Vec<Worker>,
    /// Controllers and scheduler.
    pub controllers: Controllers,
    /// The API server.
    pub server: ApiServer,
    control: Netns,
    folder: TempDir,
}

impl Cluster {
    /// A cluster whose nodes have joined and have no network yet: there is no agent.
    ///
    /// # Errors
    /// When a part of it does not start: with its log.
    pub fn create(spec: &ClusterSpec) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        (spec.progress)("making the VPC and its nodes");
        let fabrics = fabrics(spec)?;
        let first = fabrics.first().context("a cluster has a node")?;
        first.make_control()?;
        let control = first.host(Host::Control, Family::V4);
        let (address, control) = (control.address, Netns::foreign(&control.netns.path())?);
        (spec.progress)("starting the control plane");
        let server_spec = ServerSpec {
            address,
            services: SERVICES.to_owned(),
            nodes: fabrics.iter().map(Fabric::name).collect(),
        };
        let server = ApiServer::start_as(&control, folder.path(), server_spec)?;
        let controllers = Controllers::start(&server)?;
        (spec.progress)("starting containerd, kubelet and kube-proxy on each node");
        let image = spec::image()?;
        let start = |fabric| Worker::start(fabric, &server, spec.proxy, &image);
        let workers = thread::scope(|scope| {
            let start = &start;
            let started = fabrics
                .into_iter()
                .map(|fabric| scope.spawn(move || start(fabric)));
            let started: Vec<_> = started.collect();
            started.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        Ok(Self {
            operator: None,
            workers,
            controllers,
            server,
            control,
            folder,
        })
    }

    /// A cluster whose nodes are ready and carry pods, with DNS.
    ///
    /// # Errors
    /// When it does not become ready: with the logs of everything.
    pub fn ready(spec: &ClusterSpec) -> Result<Self> {
        let mut cluster = Self::create(spec)?;
        (spec.progress)("installing Towpath");
        let ready = cluster
            .install("base")
            .and_then(|()| cluster.operate())
            .and_then(|()| cluster.wait_until_nodes_are_ready())
            .and_then(|()| {
                (spec.progress)("starting DNS");
                addons::dns(&cluster)
            });
        match ready {
            Ok(()) => Ok(cluster),
            Err(error) => Err(error.context(cluster.logs())),
        }
    }

    /// Applies the custom resources and a kustomization of `deploy/kubernetes`, with the settings in
    /// which this machine differs from an instance of EC2.
    ///
    /// # Errors
    /// When kubectl or the server refuses.
    pub fn install(&self, kustomization: &str) -> Result<()> {
        let kubectl = self.kubectl()?;
        let crds = deploy().join("crds");
        let made = kubectl.run(&["create", "-k", &crds.to_string_lossy()])?;
        check(made.success || made.text.contains("AlreadyExists"), || {
            made.text.clone()
        })?;
        let mut objects = kubectl.build(&deploy().join("kubernetes").join(kustomization))?;
        objects.iter_mut().try_for_each(adapt)?;
        self.apply(&objects)
    }

    /// Starts the stand-in for the operator, which gives every node its ENIs.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn operate(&mut self) -> Result<()> {
        let fabrics: Vec<_> = self.workers.iter().map(|worker| &worker.fabric).collect();
        self.operator = Some(Operator::start(&self.server, &fabrics)?);
        Ok(())
    }

    /// Waits until every node is ready for pods.
    ///
    /// # Errors
    /// When one is not: its condition.
    pub fn wait_until_nodes_are_ready(&self) -> Result<()> {
        self.workers
            .iter()
            .try_for_each(|worker| self.node_is_ready(&worker.name(), true, ""))
    }

    /// Waits until a node is ready, or not, with a message that contains this.
    ///
    /// # Errors
    /// When it is not so in time: its condition.
    pub fn node_is_ready(&self, node: &str, ready: bool, message: &str) -> Result<()> {
        let look = || {
            let condition = self.condition(node)?;
            let said = condition["message"].as_str().unwrap_or_default();
            let status = if ready { "True" } else { "False" };
            check(
                condition["status"] == status && said.contains(message),
                || condition.to_string(),
            )
        };
        let what = format!("{node} is ready: {ready}");
        eventually(SOON, &what, look).map(drop)
    }

    /// The condition `Ready` of a node.
    ///
    /// # Errors
    /// When there is no such node, or it has none yet.
    pub fn condition(&self, node: &str) -> Result<Value> {
        let path = format!("/api/v1/nodes/{node}");
        let node = self.admin().get(&path)?.expect(200)?;
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.find(|condition| condition["type"] == "Ready");
        Ok(ready.context("the node has no condition Ready")?.clone())
    }

    /// Applies objects as kubectl does.
    ///
    /// # Errors
    /// When one is refused.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = tempfile::Builder::new()
            .suffix(".json")
            .tempfile_in(self.folder.path())?;
        fs::write(file.path(), list.to_string())?;
        let path = file.path().to_string_lossy();
        self.kubectl()?.succeed(&["apply", "-f", &path]).map(drop)
    }

    /// A client of the API server with all rights.
    #[must_use]
    pub fn admin(&self) -> Caller<'_> {
        self.server.admin()
    }

    /// kubectl in the control plane's namespace.
    ///
    /// # Errors
    /// When it was not fetched.
    pub fn kubectl(&self) -> Result<Kubectl<'_>> {
        Kubectl::new(&self.server, &self.control, self.folder.path())
    }

    /// The namespace of the control plane.
    #[must_use]
    pub fn control(&self) -> &Netns {
        &self.control
    }

    /// The end of what everything wrote.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut logs = vec![self.controllers.log()];
        logs.extend(self.workers.iter().flat_map(Worker::logs));
        let logs = logs.iter().map(|log| end_of(log));
        logs.collect::<Vec<_>>().join("\n----\n")
    }

    /// Ends the cluster in order: no ENI sent a packet with a foreign source.
    ///
    /// # Errors
    /// When one did: by node, ENI and family.
    pub fn finish(mut self) -> Result<()> {
        self.operator = None;
        let workers = std::mem::take(&mut self.workers);
        drop(self);
        let fabrics: Vec<Fabric> = workers.into_iter().map(Worker::into_fabric).collect();
        fabrics.into_iter().try_for_each(Fabric::finish)
    }
}

/// The fabric of each node, all in one VPC.
fn fabrics(spec: &ClusterSpec) -> Result<Vec<Fabric>> {
    let first = Fabric::create(&spec.fabric)?;
    let mut fabrics = vec![first];
    for node in 1..spec.workers {
        let joined = fabrics
            .first()
            .context("it was made")?
            .join(node, &spec.fabric)?;
        fabrics.push(joined);
    }
    Ok(fabrics)
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Changes what differs on this machine: where the metadata service is, that pods have both families,
/// that pools which no ENI backs need no translation, and a capability that its processes may lack.
fn adapt(object: &mut Value) -> Result<()> {
    match object["kind"].as_str() {
        Some("ConfigMap") => {
            let config = object["data"]["config.yaml"].as_str();
            let config = config.context("the agent's ConfigMap has no config.yaml")?;
            let endpoint = MetadataService::NODE_ENDPOINT;
            let enabled = "  enabled: true\n";
            let config = config.replace(
                enabled,
                &format!("{enabled}  metadata-endpoint: {endpoint}\n"),
            );
            let families = "ipam:\n  families: [ipv4, ipv6]\n";
            let plain = "plain-pools:\n  native: true\n";
            object["data"]["config.yaml"] = json!(format!("{config}\n{families}{plain}"));
            Ok(())
        }
        Some("DaemonSet") => worker::leave_out_missing_capability(object),
        _ => Ok(()),
    }
}

/// The last lines of a log.
fn end_of(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
