//! An API server and a cloud in one network namespace, and operators in it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bpf_tests::fabric::Netns;
use bpf_tests::fabric::eventually::{check, eventually};
use bpf_tests::kubernetes::{ApiServer, Kubectl, read_manifest};
use ec2_fake::Cloud;
use ec2_fake::server::{Fake, serve};
use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The name of the cluster.
pub(crate) const CLUSTER: &str = "blue";
/// A deadline for what takes seconds.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// The path of `CiliumNode` objects.
pub(crate) const NODES: &str = "/apis/cilium.io/v2/ciliumnodes";
/// The account of the operator.
const ACCOUNT: (&str, &str) = ("kube-system", "towpath-operator");
/// The first port of operators.
const PORT: u16 = 9973;

/// An API server, a cloud and operators.
pub(crate) struct Bed {
    pub(crate) server: ApiServer,
    pub(crate) cloud: Fake,
    /// The cloud's URL.
    url: String,
    kubeconfig: PathBuf,
    folder: TempDir,
    netns: Netns,
}

impl Bed {
    /// A cluster without nodes, in a cloud with this many instances of type `m5.large`.
    pub(crate) fn create(instances: usize) -> Result<Self> {
        Self::of_world(world(instances))
    }

    /// A cluster without nodes, in a cloud that begins so.
    pub(crate) fn of_world(world: Value) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let name = folder.path().file_name().and_then(|name| name.to_str());
        let name = name.context("a folder's name is UTF-8")?;
        let netns = Netns::create(&format!("operator{name}"))?;
        let server = ApiServer::start(&netns, folder.path())?;
        server.make_crds()?;
        for manifest in ["serviceaccount", "rbac"] {
            let path = format!("kubernetes/operator/{manifest}.yaml");
            server.apply(&read_manifest(&path)?)?;
        }
        let token = server.token_of(ACCOUNT.0, ACCOUNT.1)?;
        let kubeconfig = server.kubeconfig("operator", &server.url(), &token)?;
        let cloud = Cloud::build(&serde_json::from_value(world)?, Timestamp::now())?;
        let cloud = Fake::new(cloud, Box::new(|_, _| ()));
        let url = netns.enter(|| start(cloud.clone()))?;
        Ok(Self {
            server,
            cloud,
            url,
            kubeconfig,
            folder,
            netns,
        })
    }

    /// Starts an operator. Each has another number.
    pub(crate) fn start(&self, number: u16, settings: &Value) -> Result<Operator> {
        let address = SocketAddr::from(([127, 0, 0, 1], PORT + number));
        let mut config = json!({
            "cluster-name": CLUSTER,
            "log-level": "debug",
            "kubernetes": {"kubeconfig": self.kubeconfig},
            "ec2": {"region": "eu-central-1", "endpoint": self.url},
            "http": {"address": address},
        });
        merge(&mut config, settings);
        let path = |suffix: &str| {
            self.folder
                .path()
                .join(format!("operator{number}.{suffix}"))
        };
        fs::write(path("yaml"), serde_json::to_string_pretty(&config)?)?;
        let log = path("log");
        let mut command = self
            .netns
            .command(binary()?.to_str().context("a path is UTF-8")?);
        command
            .args([
                "--config".as_ref(),
                path("yaml").as_os_str(),
                "run".as_ref(),
            ])
            .env("AWS_ACCESS_KEY_ID", "any")
            .env("AWS_SECRET_ACCESS_KEY", "any")
            .env("POD_NAME", format!("operator-{number}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(&log)?);
        Ok(Operator {
            child: command.spawn().context("start the operator")?,
            address,
            log,
            netns: Netns::foreign(&self.netns.path())?,
        })
    }

    /// Makes the Node and the `CiliumNode` of an instance, as its agent does. It wants this many
    /// addresses, of which its pods have `requested` less 8.
    pub(crate) fn add_node(&self, number: usize, requested: u32) -> Result<()> {
        let name = node_name(number);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let admin = self.server.admin();
        let made = admin.post("/api/v1/nodes", &node)?.expect(201)?;
        let object = json!({
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
        });
        admin.post(NODES, &object)?.expect(201).map(drop)
    }

    /// Has a node want this many addresses.
    pub(crate) fn request(&self, number: usize, requested: u32) -> Result<()> {
        let path = format!("{NODES}/{}", node_name(number));
        let wanted = json!({"spec": {"ipam": {"pools": {"requested": [
            {"pool": "default", "needed": {"ipv4-addrs": requested}}
        ]}}}});
        self.server
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
        self.server.admin().merge(path, &free).map(drop)
    }

    /// The output of kubectl, with all rights.
    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String> {
        Kubectl::new(&self.server, &self.netns, self.folder.path())?.succeed(words)
    }

    /// A node's object.
    pub(crate) fn node(&self, number: usize) -> Result<Value> {
        let path = format!("{NODES}/{}", node_name(number));
        self.server.admin().get(&path)?.expect(200)
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
            .with_context(|| self.logs())?
            .0)
    }

    /// Checks what has to hold at the end of each test: every published address is one that the cloud
    /// gives to an ENI of that instance, and no ENI of the cluster is loose.
    pub(crate) fn finish(self) -> Result<()> {
        let admin = self.server.admin();
        // A resource that was defined a moment ago is not served yet.
        let (nodes, _) = eventually(SOON, "nodes are listed", || admin.get(NODES)?.expect(200))?;
        let mut owners = BTreeMap::new();
        for node in nodes["items"].as_array().into_iter().flatten() {
            let instance = node["spec"]["instance-id"].as_str().unwrap_or_default();
            for (eni, address) in published(node) {
                let is_there = self
                    .cloud
                    .peek(|cloud| owns(cloud, &eni, instance, &address));
                check(is_there, || {
                    format!("{address} of {eni} is not of {instance}\n{}", self.logs())
                })?;
                let other = owners.insert(address.clone(), instance.to_owned());
                check(other.is_none(), || {
                    format!("{address} is of {instance} and of {other:?}")
                })?;
            }
        }
        let look = || {
            let loose = self.cloud.peek(loose);
            check(loose.is_empty(), || format!("loose: {loose:?}"))
        };
        eventually(SOON, "no ENI is loose", look).with_context(|| self.logs())?;
        Ok(())
    }

    /// The logs of all operators.
    pub(crate) fn logs(&self) -> String {
        let files = fs::read_dir(self.folder.path())
            .into_iter()
            .flatten()
            .flatten();
        let logs = files.map(|file| file.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|it| it == "log"));
        let tail = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.len().saturating_sub(60);
            format!("{}:\n{}", path.display(), lines[last..].join("\n"))
        };
        logs.filter(|path| path.to_string_lossy().contains("operator"))
            .map(tail)
            .collect()
    }
}

/// A running operator. Dropping it kills it.
pub(crate) struct Operator {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
    netns: Netns,
}

impl Operator {
    /// Kills it, as a node that dies does.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop).context("wait for the operator")
    }

    /// Ends it by SIGTERM. Returns true if it ended well.
    pub(crate) fn stop(mut self) -> Result<bool> {
        let pid = self.child.id().to_string();
        self.netns.run(&format!("kill -TERM {pid}"))?;
        Ok(self.child.wait()?.success())
    }

    /// The output of its command line.
    pub(crate) fn ask(&self, arguments: &str) -> Result<String> {
        let binary = binary()?;
        let line = format!(
            "{} {arguments} --address {}",
            binary.display(),
            self.address
        );
        self.netns.run(&line)
    }

    /// The answer to a path.
    pub(crate) fn get(&self, path: &str) -> Result<String> {
        self.netns.run(&format!(
            "curl -sS --max-time 5 http://{}{path}",
            self.address
        ))
    }

    /// Its resident memory, in KiB.
    pub(crate) fn resident(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.context("there is no VmRSS")?.parse()?)
    }

    /// Waits until its log has all of these.
    pub(crate) fn log_has(&self, parts: &[&str]) -> Result<()> {
        let look = || {
            let log = fs::read_to_string(&self.log)?;
            let has = |line: &str| parts.iter().all(|part| line.contains(part));
            check(log.lines().any(has), || {
                format!("no line has {parts:?}: {log}")
            })
        };
        eventually(SOON, "the log has a line", look).map(drop)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// The operator's binary, beside the test.
fn binary() -> Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let folders = executable.ancestors().skip(1).take(2);
    let found = folders
        .map(|folder| folder.join("towpath-operator"))
        .find(|it| it.is_file());
    found.context(
        "there is no towpath-operator to test: build it with `cargo build -p towpath-operator \
         --features sdk`",
    )
}

/// Serves a cloud on loopback, until the process ends. Returns its URL.
fn start(cloud: Fake) -> Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime starts");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it listens");
            let ended = serve(listener, cloud).await;
            eprintln!("the cloud ended: {ended:?}");
        });
    });
    Ok(format!("http://{address}"))
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

/// The addresses in a node's status, each with its ENI.
pub(crate) fn published(node: &Value) -> Vec<(String, String)> {
    let enis = node["status"]["eni"]["enis"].as_object();
    let of_eni = |(id, eni): (&String, &Value)| {
        let addresses = eni["addresses"].as_array().cloned().unwrap_or_default();
        let pairs = addresses
            .into_iter()
            .filter_map(|it| it.as_str().map(str::to_owned));
        pairs
            .map(|address| (id.clone(), address))
            .collect::<Vec<_>>()
    };
    enis.into_iter().flatten().flat_map(of_eni).collect()
}

/// Reports if an address is one of an ENI that the instance holds.
fn owns(cloud: &Cloud, eni: &str, instance: &str, address: &str) -> bool {
    cloud.interface(eni).is_some_and(|it| {
        let is_held = it
            .attachment
            .as_ref()
            .is_some_and(|it| it.instance == instance);
        let address = address.parse::<IpAddr>().ok();
        is_held && address.is_some_and(|address| it.nets().any(|net| net.contains(&address)))
    })
}

/// The cluster's ENIs that nothing holds.
pub(crate) fn loose(cloud: &Cloud) -> Vec<String> {
    let ours = cloud.interfaces().filter(|eni| {
        let cluster = eni.tags.get("ipam.towpath.dev/cluster");
        cluster.is_some_and(|name| name == CLUSTER)
    });
    let loose = ours.filter(|eni| eni.attachment.is_none());
    loose.map(|eni| eni.id.clone()).collect()
}

/// Merges settings (RFC 7386, without removal).
fn merge(into: &mut Value, from: &Value) {
    match (into.as_object_mut(), from.as_object()) {
        (Some(into), Some(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        _ => *into = from.clone(),
    }
}
