//! A cloud for the nodes of a fabric.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ec2_fake::server::Fake;
use ec2_fake::{Answer, Call, Cloud, InstanceState, Request};
use serde_json::{Value, json};

use super::driver::Driver;
use super::world::{self, Incarnation, STRANGER};
use super::{Operator, OperatorSpec, Served};
use crate::fabric::eventually::{check, eventually};
use crate::fabric::groups::Group;
use crate::fabric::layout::{Eni, Host};
use crate::fabric::{Fabric, Instance, Netns};
use crate::kubernetes::{ApiServer, Component};

/// A deadline for events that take seconds.
const SOON: Duration = Duration::from_mins(1);

/// The description of a cloud for the nodes of a fabric.
#[derive(Clone, Debug)]
pub struct SiteSpec {
    /// The type of its instances.
    pub kind: &'static str,
    /// Behaviour of the cloud, as in a world document.
    pub settings: Value,
    /// Settings of the operator.
    pub operator: Value,
    /// True if a cluster runs the operator by its manifests, as pods of its nodes. Otherwise it is a
    /// process beside the API server.
    pub is_deployed: bool,
    /// Security groups beside that of the nodes, which admits everything. With any, the VPC's
    /// router enforces groups.
    pub groups: Vec<Group>,
    /// Hosts of the VPC that have a group.
    pub hosts: Vec<(Host, &'static str)>,
}

impl Default for SiteSpec {
    /// Instances of four ENIs with fifteen addresses each, and an EC2 with small delays.
    fn default() -> Self {
        Self {
            kind: "m5.xlarge",
            settings: json!({"lag_listing": [0, 5000], "unknown": [0, 2000], "pending": [0, 0]}),
            operator: json!({}),
            is_deployed: false,
            groups: Vec::new(),
            hosts: Vec::new(),
        }
    }
}

/// A cloud whose instances are nodes of a fabric, served in a control plane's namespace, and an
/// operator there.
#[derive(Debug)]
pub struct Site {
    /// The cloud.
    pub cloud: Fake,
    spec: SiteSpec,
    driver: Arc<Mutex<Driver>>,
    /// The instance of each node, and the number of its predecessors.
    instances: BTreeMap<u8, (u8, Instance)>,
    operator: Option<Operator>,
    served: Option<Served>,
    address: SocketAddr,
}

impl Site {
    /// A cloud that is not served yet, with instances for a number of nodes.
    ///
    /// # Errors
    /// When the cloud refuses one.
    pub fn create(spec: SiteSpec, nodes: u8) -> Result<Self> {
        let driver = Driver::new(&spec.groups, &spec.hosts);
        let driver = Arc::new(Mutex::new(driver));
        let groups: Vec<Group> = [world::NODES]
            .into_iter()
            .chain(spec.groups.clone())
            .collect();
        let carried_out = Arc::clone(&driver);
        let on_effect = move |cloud: &Cloud, effect| {
            lock(&carried_out).carry_out(cloud, &effect);
        };
        let cloud = Fake::new(world::cloud(&spec.settings, &groups)?, Box::new(on_effect));
        let mut site = Self {
            cloud,
            spec,
            driver,
            instances: BTreeMap::new(),
            operator: None,
            served: None,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
        };
        (0..nodes).try_for_each(|node| site.launch(node, 0).map(drop))?;
        Ok(site)
    }

    /// Terminates the instance of a node, waits until it has ended, and starts another one.
    ///
    /// # Errors
    /// When the node has none, or the cloud refuses.
    pub fn replace(&mut self, node: u8) -> Result<Instance> {
        let former = self.instances.remove(&node);
        let (successor, former) = former.with_context(|| format!("node {node} has no instance"))?;
        self.cloud
            .with(|cloud, now| cloud.terminate(&former.id, now))?;
        let ended = || {
            let ended = |cloud: &mut Cloud, _| cloud.instance(&former.id).map(|it| it.state);
            let state = self.cloud.with(ended);
            check(state == Some(InstanceState::Terminated), || {
                format!("{state:?}")
            })
        };
        eventually(SOON, "the instance has ended", ended)?;
        self.launch(node, successor + 1)
    }

    fn launch(&mut self, node: u8, successor: u8) -> Result<Instance> {
        let kind = self.spec.kind;
        let incarnation = Incarnation { node, successor };
        let instance = self
            .cloud
            .with(|cloud, now| world::start(cloud, now, incarnation, kind))?;
        self.instances.insert(node, (successor, instance.clone()));
        Ok(instance)
    }

    /// The instance of a node.
    ///
    /// # Errors
    /// When it has none.
    pub fn instance(&self, node: u8) -> Result<&Instance> {
        let found = self.instances.get(&node).map(|(_, instance)| instance);
        found.with_context(|| format!("node {node} has no instance"))
    }

    /// Makes the cloud's ENIs appear in a node of the fabric.
    ///
    /// # Errors
    /// When the node has no instance.
    pub fn join(&self, fabric: &Fabric, mtu: u32) -> Result<()> {
        let instance = self.instance(fabric.index())?;
        lock(&self.driver).join(fabric, &instance.id, mtu)?;
        self.cloud.peek(|cloud| lock(&self.driver).enforce(cloud))
    }

    /// The ENIs of a node, as the fabric has them.
    #[must_use]
    pub fn enis(&self, node: u8) -> Vec<Eni> {
        lock(&self.driver).enis(node)
    }

    /// Number of addresses and prefixes that the cloud has taken from ENIs so far.
    #[must_use]
    pub fn unassigned(&self) -> usize {
        lock(&self.driver).unassigned()
    }

    /// Calls the cloud as a client other than the operator.
    ///
    /// # Errors
    /// When the cloud refuses.
    pub fn call(&self, call: Call) -> Result<Answer> {
        let request = Request {
            call,
            dry_run: false,
        };
        let called = |cloud: &mut Cloud, now| cloud.call(now, STRANGER, &request).outcome;
        Ok(self.cloud.with(called)?)
    }

    /// Serves the cloud, on loopback or where it was served before.
    ///
    /// # Errors
    /// When nothing can listen there.
    pub fn serve(&mut self, control: &Netns) -> Result<()> {
        let served = Served::start(control, self.address, self.cloud.clone())?;
        self.address = served.address();
        self.served = Some(served);
        Ok(())
    }

    /// Serves the cloud at an address of a namespace, for operators elsewhere.
    ///
    /// # Errors
    /// When nothing can listen there.
    pub fn serve_at(&mut self, control: &Netns, address: IpAddr) -> Result<()> {
        self.address = (address, 0).into();
        self.serve(control)
    }

    /// Stops serving the cloud: EC2 is unreachable.
    pub fn hide(&mut self) {
        self.served = None;
    }

    /// The URL of EC2.
    ///
    /// # Errors
    /// When the cloud is not served.
    pub fn url(&self) -> Result<String> {
        let served = self.served.as_ref();
        served.map(Served::url).context("the cloud is not served")
    }

    /// The description that it was made by.
    #[must_use]
    pub fn spec(&self) -> &SiteSpec {
        &self.spec
    }

    /// Starts the operator with the rights of its manifests, for an API server.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn operate(&mut self, server: &ApiServer) -> Result<()> {
        let kubeconfig = server.admit(Component::Operator)?.kubeconfig;
        let url = self.url()?;
        let spec = OperatorSpec {
            key: "any",
            netns: server.netns(),
            folder: server.folder(),
            number: 0,
            kubeconfig: &kubeconfig,
            url: &url,
        };
        self.operator = Some(Operator::start(spec, &self.spec.operator)?);
        Ok(())
    }

    /// The operator.
    ///
    /// # Errors
    /// When it was not started.
    pub fn operator(&self) -> Result<&Operator> {
        self.operator.as_ref().context("there is no operator")
    }

    /// The operator's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.operator
            .as_ref()
            .map(Operator::log)
            .unwrap_or_default()
    }

    /// Ends operator and cloud, and checks three things: each effect was carried out, no removed
    /// ENI sent a foreign packet, and the cloud is consistent.
    ///
    /// # Errors
    /// When a check fails.
    pub fn finish(mut self) -> Result<()> {
        self.operator = None;
        self.served = None;
        let complaints = lock(&self.driver).complaints();
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        let refused = self.cloud.refusals();
        check(refused.is_empty(), || format!("requests: {refused:?}"))?;
        self.cloud.peek(Cloud::check).map_err(anyhow::Error::msg)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The cloud's effects hold the driver, which holds the VPC.
        lock(&self.driver).clear();
    }
}

fn lock(driver: &Mutex<Driver>) -> MutexGuard<'_, Driver> {
    // Each effect is recorded once it is carried out.
    driver.lock().unwrap_or_else(PoisonError::into_inner)
}
