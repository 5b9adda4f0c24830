//! A whole cluster on this machine: a control plane and worker nodes in one VPC of the fabric.
//!
//! ```text
//!   control: etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!      └─ VPC router, source check per ENI ─┬─ fabric-node:   kubelet, containerd, kube-proxy, agent
//!                                           └─ fabric-node-2: the same
//! ```
//!
//! Everything is real except the cloud. It is emulated, with a real operator ([`crate::cloud`]).
//! Alternatively, a stand-in (`operator.rs`) for both writes the ENIs of the fabric.

mod addons;
mod blocks;
mod deployed;
mod operator;
mod spec;
mod worker;
mod workload;

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::{Value, json};
use tempfile::TempDir;

pub use blocks::{PLAIN_POOL, plain_pool};
pub use operator::Operator;
pub use spec::ClusterSpec;
pub use worker::Worker;
pub use workload::{PodAt, deployment};

use crate::cloud::Site;
use crate::fabric::eventually::{check, eventually};
use crate::fabric::layout::{Eni, Host};
use crate::fabric::{Fabric, Netns, Spec};
use crate::kubernetes::{
    ApiServer, Caller, Controllers, Kubectl, MetadataService, ServerSpec, deploy,
};

/// The time that a cluster's part may take to become ready on a busy machine.
pub const SOON: Duration = Duration::from_mins(2);
/// The address of the cluster's DNS service.
pub const DNS: &str = "10.96.0.10";
/// The cluster's service CIDRs.
const SERVICES: &str = "10.96.0.0/16,fd5e:96::/108";

/// A running cluster. Dropping it ends everything and removes it.
#[derive(Debug)]
pub struct Cluster {
    /// The stand-in that writes the nodes' ENIs, once started.
    pub operator: Option<Operator>,
    /// The cloud and its operator, if nodes are its instances.
    pub site: Option<Site>,
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
        let site = spec.site.clone();
        let site = site.map(|site| Site::create(site, spec.workers));
        let mut site = site.transpose()?;
        let fabrics = fabrics(spec, site.as_ref())?;
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
        if let Some(site) = &mut site {
            site.serve_at(&control, address)?;
        }
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
            site,
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
        cluster.make_ready(spec)?;
        Ok(cluster)
    }

    /// Installs Towpath and DNS on nodes that have joined, and waits until all of it is ready.
    ///
    /// # Errors
    /// When it does not become ready: with the logs of everything.
    pub fn make_ready(&mut self, spec: &ClusterSpec) -> Result<()> {
        (spec.progress)("installing Towpath");
        let ready = self
            .install("base")
            .and_then(|()| self.operate())
            .and_then(|()| self.wait_until_nodes_are_ready())
            .and_then(|()| {
                (spec.progress)("starting DNS");
                addons::dns(self)
            });
        ready.with_context(|| self.logs())
    }

    /// Applies the custom resources and a kustomization of `deploy/kubernetes`, with the settings
    /// for this machine, which is no EC2 instance.
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

    /// Starts the operator, or the stand-in for it, which gives every node its ENIs.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn operate(&mut self) -> Result<()> {
        if let Some(site) = &mut self.site {
            if site.spec().is_deployed {
                return deployed::install(self);
            }
            return site.operate(&self.server);
        }
        let fabrics: Vec<_> = self.workers.iter().map(|worker| &worker.fabric).collect();
        self.operator = Some(Operator::start(&self.server, &fabrics)?);
        Ok(())
    }

    /// Terminates the instance of a node, and makes another one join under the same name.
    ///
    /// # Errors
    /// When the node has no instance, an ENI of it sent a foreign packet, or the new one does not start.
    pub fn replace(&mut self, name: &str, spec: &ClusterSpec) -> Result<()> {
        let mut workers = self.workers.iter();
        let position = workers.position(|worker| worker.name() == name);
        let position = position.with_context(|| format!("the cluster has no node {name}"))?;
        let site = self.site.as_mut().context("there is no cloud")?;
        let index = self.workers[position].fabric.index();
        let instance = site.replace(index)?;
        self.workers.remove(position).into_fabric().finish()?;
        let first = self.workers.first().context("another node is left")?;
        let fabric = Spec {
            instance: Some(instance),
            ..spec.fabric.clone()
        };
        let fabric = first.fabric.join(index, &fabric)?;
        site.join(&fabric, spec.fabric.mtu)?;
        let worker = Worker::start(fabric, &self.server, spec.proxy, &spec::image()?)?;
        self.workers.push(worker);
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

    /// Waits until a node is ready, or not ready, with a message that contains a text.
    ///
    /// # Errors
    /// When there is no such condition in time: the present one.
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

    /// The ENIs of a node, as its VPC has them.
    #[must_use]
    pub fn enis(&self, worker: &Worker) -> Vec<Eni> {
        match &self.site {
            Some(site) => site.enis(worker.fabric.index()),
            None => worker.fabric.enis.clone(),
        }
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

    /// The last lines of all logs.
    #[must_use]
    pub fn logs(&self) -> String {
        let operator = self.site.as_ref().map(Site::log).unwrap_or_default();
        let mut logs = vec![self.controllers.log(), operator];
        logs.extend(self.workers.iter().flat_map(Worker::logs));
        let logs = logs.iter().map(|log| end_of(log));
        logs.collect::<Vec<_>>().join("\n----\n")
    }

    /// Ends the cluster in order, and checks that no ENI sent a packet with a foreign source.
    ///
    /// # Errors
    /// When one did: by node, ENI and family.
    pub fn finish(mut self) -> Result<()> {
        self.operator = None;
        let site = self.site.take();
        let workers = std::mem::take(&mut self.workers);
        drop(self);
        site.map_or(Ok(()), Site::finish)?;
        let fabrics: Vec<Fabric> = workers.into_iter().map(Worker::into_fabric).collect();
        fabrics.into_iter().try_for_each(Fabric::finish)
    }
}

/// The fabric of each node, all in one VPC.
fn fabrics(spec: &ClusterSpec, site: Option<&Site>) -> Result<Vec<Fabric>> {
    let mut fabrics: Vec<Fabric> = Vec::new();
    for node in 0..spec.workers {
        let instance = site.map(|site| site.instance(node)).transpose()?.cloned();
        let spec = Spec {
            instance,
            ..spec.fabric.clone()
        };
        let made = match fabrics.first() {
            None => Fabric::create(&spec)?,
            Some(first) => first.join(node, &spec)?,
        };
        if let Some(site) = site {
            site.join(&made, spec.mtu)?;
        }
        fabrics.push(made);
    }
    Ok(fabrics)
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Adapts an object to this machine: the metadata service's address, both families for pods,
/// untranslated plain pools, and a capability that its processes may lack.
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
