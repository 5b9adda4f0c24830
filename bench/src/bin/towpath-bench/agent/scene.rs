//! The node: two ENIs with room for hundreds of pods, a world beyond the VPC, masquerade on.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use datapath_common::abi;
use ipnet::{IpNet, Ipv4Net};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Addressing;
use testkit::fabric::{Fabric, Pod, Spec};

/// Amounts of measurement.
pub(super) struct Size {
    /// Endpoints of a full node.
    pub(super) endpoints: usize,
    /// Adds and deletes, one after the other.
    pub(super) serial: usize,
    /// Pods of a burst, and number of bursts.
    pub(super) bursts: &'static [(usize, usize)],
    /// Starts of an agent with records, and flushes.
    pub(super) rounds: usize,
    /// Loads of the programs.
    pub(super) loads: usize,
    /// Flows that expire.
    pub(super) expiring: u32,
    /// Duration of the observation at rest.
    pub(super) rest: Duration,
}

impl Size {
    pub(super) const QUICK: Self = Self {
        endpoints: 250,
        serial: 30,
        bursts: &[(30, 2)],
        rounds: 3,
        loads: 3,
        expiring: 250_000,
        rest: Duration::from_secs(5),
    };
    pub(super) const FULL: Self = Self {
        endpoints: 250,
        serial: 200,
        bursts: &[(30, 7), (110, 5), (250, 5)],
        rounds: 9,
        loads: 15,
        expiring: 250_000,
        rest: Duration::from_secs(30),
    };
}

/// Way in which programs are attached to endpoints.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attach {
    /// By clsact, and by TCX to ENIs, as in the manifests.
    Mixed,
    /// By TCX.
    Tcx,
}

impl Attach {
    /// Value of the setting `datapath.attach`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Tcx => "tcx",
        }
    }
}

/// The ENIs of a node, and their programs.
pub(super) struct Layout {
    /// Number of ENIs, the primary included.
    pub(super) enis: u8,
    /// IPv4 prefixes of each.
    pub(super) prefixes: u8,
    /// Way in which programs are attached.
    pub(super) attach: Attach,
}

impl Layout {
    /// A small node with the settings of the manifests.
    pub(super) const SMALL: Self = Self {
        enis: 2,
        prefixes: IN_SUBNET,
        attach: Attach::Mixed,
    };
}

/// IPv4 prefixes that fit into an ENI's /24 after the ENI's own address, except the last.
///
/// A subnet's last address cannot be used.
const IN_SUBNET: u8 = 11;
/// Third octet of the addresses of further prefixes, which lie in no ENI's subnet.
const BEYOND: u16 = 100;
/// Addresses of a prefix (AWS, "Assigning prefixes to network interfaces").
const PREFIX: u8 = 16;
/// Deadline for each answer of the agent.
const DEADLINE: Duration = Duration::from_mins(1);
/// Pause between two attempts to reach an agent that is starting.
const PAUSE: Duration = Duration::from_millis(1);

/// The fabric, the agent, and pods that may be added.
pub(super) struct Scene {
    pub(super) fabric: Fabric,
    /// Namespaces of pods.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The agent's records. They are in memory, like `/run` on a node.
    _records: TempDir,
}

/// A folder in memory (`file-hierarchy(7)`).
const IN_MEMORY: &str = "/dev/shm";

/// A prefix of an ENI.
fn prefix(eni: u8, index: u8, layout: &Layout) -> Result<IpNet> {
    let address = if index < IN_SUBNET {
        Ipv4Addr::new(10, 0, eni, 64 + index * PREFIX)
    } else {
        let further = u16::from(layout.prefixes - IN_SUBNET);
        let number = u16::from(eni) * further + u16::from(index - IN_SUBNET);
        let each = 256 / u16::from(PREFIX);
        let subnet = u8::try_from(BEYOND + number / each)?;
        Ipv4Addr::new(10, 0, subnet, u8::try_from(number % each)? * PREFIX)
    };
    Ok(Ipv4Net::new(address, 28)?.into())
}

impl Scene {
    /// Makes the node with an agent that is ready, and namespaces for its pods.
    pub(super) fn set(size: &Size, layout: &Layout) -> Result<Self> {
        let records = tempfile::tempdir_in(IN_MEMORY).context(IN_MEMORY)?;
        let mut fabric = Fabric::create(&Spec {
            enis: layout.enis,
            addressing: Addressing::Prefixes,
            // As in the manifests; log lines for each step of each pod are for tests only.
            ..Spec::with_world(json!({
                "log-level": "info",
                "datapath": {"attach": layout.attach.name()},
                "state-dir": records.path(),
            }))
        })?;
        let blocks = |number: u8| -> Result<(u8, Vec<IpNet>)> {
            let v6 = fabric.eni(number)?.blocks.iter().copied();
            let v6 = v6.filter(|block| block.addr().is_ipv6());
            let v4 = (0..layout.prefixes).map(|index| prefix(number, index, layout));
            Ok((number, v4.chain(v6.map(Ok)).collect::<Result<_>>()?))
        };
        let blocks = (0..layout.enis).map(blocks).collect::<Result<Vec<_>>>()?;
        fabric.set_blocks(&blocks)?;
        fabric.start_agent()?;
        let mut scene = Self {
            fabric,
            pods: Vec::new(),
            _records: records,
        };
        for index in 0..size.endpoints {
            // Pods alternate between both ENIs; some addresses of each belong to a pool that skips
            // masquerade.
            let eni = u8::try_from(index % 2)?;
            scene.pods.push(scene.fabric.make_pod(eni, 8 + index / 2)?);
        }
        Ok(scene)
    }

    /// Adds some pods to the agent.
    pub(super) fn fill(&self, which: Range<usize>) -> Result<()> {
        let pods = self.pods.iter().skip(which.start).take(which.len());
        for pod in pods {
            self.fabric.add_endpoint(pod)?;
        }
        Ok(())
    }

    /// The agent's process.
    pub(super) fn agent(&self) -> Result<u32> {
        self.fabric.agent.id().context("the agent does not run")
    }

    /// The folder of the agent's pins.
    pub(super) fn version_folder(&self) -> Result<PathBuf> {
        let version = format!("v{}", abi::VERSION);
        let folder = self.fabric.pin_root().join(version);
        check(folder.exists(), || format!("no {}", folder.display()))?;
        Ok(folder)
    }

    /// Waits until the agent's status fulfils a condition, and returns it.
    pub(super) fn wait(&self, what: &str, done: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let status = self.fabric.agent.ask("GET", "/v1/status", None);
            match status {
                Ok(status) if self.works(&status) && done(&status) => return Ok(status),
                last if Instant::now() > deadline => bail!("{what}: {last:?}"),
                _not_yet => thread::sleep(PAUSE),
            }
        }
    }

    fn works(&self, status: &Value) -> bool {
        let none = |part: &Value| part.as_object().is_some_and(serde_json::Map::is_empty);
        status["health"]["state"] != "not-ready"
            && status["endpoints"] == self.pods.len()
            && none(&status["endpoints-not-ready"])
    }

    /// Ends in order, and fails if a packet has left by the wrong ENI.
    pub(super) fn finish(self) -> Result<()> {
        self.fabric.finish()
    }
}
