//! An API server and a cloud in one network namespace, and operators in it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use ec2_fake::Cloud;
use ec2_fake::server::Fake;
use jiff::Timestamp;
use serde_json::{Value, json};
use testkit::cloud::audit::{self, published};
use testkit::cloud::{Operator, OperatorSpec, Served};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::proxy::Proxy;
use testkit::kubernetes::{Access, Component, ControlPlane};

/// A deadline for events that take seconds.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// The last lines of an operator's log that a failure shows.
const LINES: usize = 200;
/// The path of `CiliumNode` objects.
pub(crate) const NODES: &str = "/apis/cilium.io/v2/ciliumnodes";

/// An API server, a cloud and operators.
pub(crate) struct Bed {
    pub(crate) cloud: Fake,
    served: Served,
    operator: Access,
    pub(crate) plane: ControlPlane,
}

impl Bed {
    /// A cluster without nodes, in a cloud with this many instances of type `m5.large`.
    pub(crate) fn create(instances: usize) -> Result<Self> {
        Self::of_world(world(instances))
    }

    /// A cluster without nodes, in a cloud with this initial state.
    pub(crate) fn of_world(world: Value) -> Result<Self> {
        let plane = ControlPlane::create()?;
        let operator = plane.server.admit(Component::Operator)?;
        let cloud = Cloud::build(&serde_json::from_value(world)?, Timestamp::now())?;
        let cloud = Fake::new(cloud, Box::new(|_, _| ()));
        let served = Served::start(&plane.netns, (Ipv4Addr::LOCALHOST, 0).into(), cloud.clone())?;
        Ok(Self {
            cloud,
            served,
            operator,
            plane,
        })
    }

    /// A proxy of the API server, and the operator's kubeconfig for it.
    pub(crate) fn proxy(&self) -> Result<(Proxy, PathBuf)> {
        let server = &self.plane.server;
        let proxy = Proxy::start(&self.plane.netns, &server.url(), &server.certificate())?;
        let token = &self.operator.token;
        let kubeconfig = server.kubeconfig("proxied", &proxy.url(), token)?;
        Ok((proxy, kubeconfig))
    }

    /// Starts an operator. Each has another number.
    pub(crate) fn start(&self, number: u16, settings: &Value) -> Result<Operator> {
        self.start_as("any", number, settings)
    }

    /// Starts an operator with an access key of EC2.
    pub(crate) fn start_as(&self, key: &str, number: u16, settings: &Value) -> Result<Operator> {
        let spec = OperatorSpec {
            key,
            netns: &self.plane.netns,
            folder: self.folder(),
            number,
            kubeconfig: &self.operator.kubeconfig,
            url: &self.served.url(),
        };
        Operator::start(spec, settings)
    }

    /// Creates the Node and the `CiliumNode` of an instance, as its agent does. It requests this
    /// many addresses, of which its pods have `requested` less 8.
    pub(crate) fn add_node(&self, number: usize, requested: u32) -> Result<()> {
        let object = self.add_host(number, requested)?;
        let admin = self.plane.server.admin();
        admin.post(NODES, &object)?.expect(201).map(drop)
    }

    /// Creates the Node of an instance alone. Returns the object that [`Self::add_node`] creates.
    pub(crate) fn add_host(&self, number: usize, requested: u32) -> Result<Value> {
        let name = node_name(number);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let admin = self.plane.server.admin();
        let made = admin.post("/api/v1/nodes", &node)?.expect(201)?;
        Ok(json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNode",
            "metadata": {"name": name, "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"]
            }]},
            "spec": {
                "instance-id": instance_id(number),
                "eni": {
                    "instance-type": "m5.large", "vpc-id": "vpc-1", "availability-zone": "a",
                    "node-subnet-id": "subnet-1"
                },
                "ipam": {"pools": {"requested": [
                    {"pool": "default", "needed": {"ipv4-addrs": requested}}
                ]}}
            }
        }))
    }

    /// Makes a node request this many addresses.
    pub(crate) fn request(&self, number: usize, requested: u32) -> Result<()> {
        let path = format!("{NODES}/{}", node_name(number));
        let wanted = json!({"spec": {"ipam": {"pools": {"requested": [
            {"pool": "default", "needed": {"ipv4-addrs": requested}}
        ]}}}});
        self.plane
            .server
            .admin()
            .merge(&path, &wanted)?
            .expect(200)
            .map(drop)
    }

    /// Releases the Lease of an operator that was killed, so that the next one need not wait.
    pub(crate) fn free_lease(&self) -> Result<()> {
        let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/towpath-operator";
        let free = json!({"spec": {"holderIdentity": null, "leaseDurationSeconds": 1}});
        // There is none before the first one led.
        self.plane.server.admin().merge(path, &free).map(drop)
    }

    /// The folder of everything that runs here.
    pub(crate) fn folder(&self) -> &Path {
        self.plane.folder()
    }

    /// The output of kubectl, with all rights.
    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.plane.kubectl()?.succeed(words)
    }

    /// A node's object.
    pub(crate) fn node(&self, number: usize) -> Result<Value> {
        let path = format!("{NODES}/{}", node_name(number));
        self.plane.server.admin().get(&path)?.expect(200)
    }

    /// Waits until a node's status has at least this many addresses, and returns its object.
    pub(crate) fn node_has(&self, number: usize, addresses: usize) -> Result<Value> {
        let look = || {
            let node = self.node(number)?;
            let has = published(&node).len();
            check(has >= addresses, || {
                let error = &node["status"]["ipam"]["operator-status"]["error"];
                format!("it has {has}, error {error}")
            })?;
            Ok(node)
        };
        let what = format!("node {number} has {addresses} addresses");
        Ok(eventually(SOON, &what, look)
            .inspect_err(|_| println!("{}", self.logs()))?
            .0)
    }

    /// Checks the invariants at the end of each test: every published address is one that the cloud
    /// assigned to an ENI of that instance, and no ENI of the cluster is unattached.
    pub(crate) fn finish(self) -> Result<()> {
        let admin = self.plane.server.admin();
        // A resource that was just defined is not served yet.
        let (nodes, _) = eventually(SOON, "nodes are listed", || admin.get(NODES)?.expect(200))?;
        let audited = self.cloud.peek(|cloud| audit::addresses(cloud, &nodes));
        audited.inspect_err(|_| println!("{}", self.logs()))?;
        let look = || {
            let loose = self.cloud.peek(audit::loose);
            check(loose.is_empty(), || format!("loose: {loose:?}"))
        };
        eventually(SOON, "no ENI is loose", look).inspect_err(|_| println!("{}", self.logs()))?;
        Ok(())
    }

    /// The logs of all operators.
    pub(crate) fn logs(&self) -> String {
        let files = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let logs = files.map(|file| file.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|it| it == "log"));
        let tail = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.len().saturating_sub(LINES);
            format!("{}:\n{}", path.display(), lines[last..].join("\n"))
        };
        logs.filter(|path| path.to_string_lossy().contains("operator"))
            .map(tail)
            .collect()
    }
}

/// A VPC of two subnets with instances in one of them.
pub(crate) fn world(instances: usize) -> Value {
    let instance = |number| {
        json!({
            "id": instance_id(number), "type": "m5.large", "subnet": "subnet-1", "groups": ["sg-1"]
        })
    };
    json!({
        "settings": {"lag_listing": [0, 5000], "unknown": [0, 2000]},
        "vpcs": [{"id": "vpc-1", "cidrs": ["10.0.0.0/16"]}],
        "subnets": [
            {"id": "subnet-1", "vpc": "vpc-1", "zone": "a", "ipv4": "10.0.0.0/20"},
            {"id": "subnet-2", "vpc": "vpc-1", "zone": "a", "ipv4": "10.0.16.0/20"}
        ],
        "route_tables": [
            {"id": "rtb-1", "vpc": "vpc-1", "main": true, "routes": {"10.0.0.0/16": "local"}}
        ],
        "groups": [{"id": "sg-1", "vpc": "vpc-1", "name": "default"}],
        "instances": (0..instances).map(instance).collect::<Vec<_>>(),
    })
}

/// The id of an instance.
pub(crate) fn instance_id(number: usize) -> String {
    format!("i-{number:017x}")
}

/// The name of its node.
pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number}")
}
