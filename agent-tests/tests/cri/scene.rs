//! A node whose pods get addresses of two pools: ENIs 0 and 1 serve `default`, ENI 2 serves `blue`.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use ipnet::IpNet;
use serde_json::{Value, json};
use testkit::cri::Plugins;
use testkit::fabric::agent;
use testkit::fabric::document::{document, pool};
use testkit::fabric::layout::Eni;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Netns, Place, Spec};

use crate::driver::Network;

/// The pool that ENI 2 is bound to.
pub(crate) const BLUE: &str = "blue";
/// The names of our plugin.
const NAMES: [&str; 2] = ["towpath-cni", "towpath-ipam"];
/// The network's name.
pub(crate) const NETWORK: &str = "towpath";
/// Prefixes (/28) of ENIs 0, 1 and 2: 64, 224 and 48 addresses.
const PREFIXES: [u8; 3] = [4, 14, 3];
/// The time that a released address is unavailable, in seconds: tests make more pods than there are
/// addresses.
const COOLDOWN: u32 = 1;
/// Names the file from which the agent reads a fault point.
const FILE_VARIABLE: &str = "TOWPATH_FAULT_FILE";
/// The time that the agent may take to reach a point after its trigger.
const REACH: Duration = Duration::from_secs(10);

/// A node, and the paths for its plugins.
pub(crate) struct Scene {
    pub(crate) fabric: Fabric,
}

impl Scene {
    /// A node with its agent running.
    pub(crate) fn ready() -> Result<Self> {
        let mut scene = Self::create()?;
        match scene.fabric.start_agent() {
            Ok(()) => Ok(scene),
            Err(error) => Err(error.context(scene.fabric.describe())),
        }
    }

    /// A node without its agent.
    pub(crate) fn create() -> Result<Self> {
        Self::with_prefixes(PREFIXES)
    }

    /// A node without its agent, with a number of prefixes on ENIs 0, 1 and 2.
    pub(crate) fn with_prefixes(prefixes: [u8; 3]) -> Result<Self> {
        let enis: Vec<_> = (0..)
            .zip(prefixes)
            .map(|(number, count)| Eni::with_prefixes(number, count))
            .collect();
        let mut node = document(&enis);
        node["status"]["eni"]["enis"][enis[2].id()]["tags"] = json!({"team": BLUE});
        let spec = Spec {
            document: Some(serde_json::to_string_pretty(&node)?),
            ..Spec::default()
        };
        let scene = Self {
            fabric: Fabric::create(&spec)?,
        };
        let fabric = &scene.fabric;
        let pools = fabric.file("pools");
        fs::create_dir_all(&pools)?;
        let mut blue = pool(BLUE, false);
        blue["metadata"]["annotations"]["ipam.towpath.dev/eni-tags"] =
            json!(format!("team={BLUE}"));
        fs::write(pools.join("blue.yaml"), blue.to_string())?;
        fabric.agent.configure(&json!({
            "masquerade": {"pools": pools},
            "ipam": {"enabled": true, "families": ["ipv4", "ipv6"], "cooldown": COOLDOWN},
            "cni": {"pending-deletes": scene.queue()},
        }))?;
        let plugins = scene.plugins();
        fs::create_dir_all(&plugins)?;
        for name in NAMES {
            std::os::unix::fs::symlink(plugin()?, plugins.join(name))?;
        }
        Ok(scene)
    }

    /// Starts the agent so that a fault point in a file kills it; no point is armed during the
    /// start.
    pub(crate) fn start_armed_by(&mut self, file: &Path) -> Result<()> {
        let _not_there = fs::remove_file(file);
        let fabric = &mut self.fabric;
        let variable = (FILE_VARIABLE, &*file.to_string_lossy());
        fabric.agent.start(&fabric.node, &[variable])?;
        fabric.wait_until_ready()
    }

    /// True if the agent reaches its fault point. An answer may go out before it does.
    pub(crate) fn wait_for_fault(&mut self, has_answered: bool) -> bool {
        let patience = if has_answered { REACH / 10 } else { REACH };
        self.fabric.agent.wait_for_fault(patience).is_ok()
    }

    /// The folder of our plugins, under both names.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.fabric.file("plugins")
    }

    /// Our plugins, for a runtime's folder of plugins.
    pub(crate) fn own_plugins(&self) -> Vec<PathBuf> {
        NAMES.map(|name| self.plugins().join(name)).into()
    }

    /// The plugin's folder of state.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.fabric.file("cni")
    }

    /// The folder of queued DELs.
    pub(crate) fn queue(&self) -> PathBuf {
        self.state_dir().join("pending-deletes")
    }

    /// Our plugin's part of a network.
    pub(crate) fn entry(&self, pool: Option<&str>) -> Value {
        let mut entry = json!({
            "type": "towpath-cni",
            "socket": self.fabric.agent.socket(),
            "state-dir": self.state_dir(),
        });
        if let Some(pool) = pool {
            entry["pools"] = json!({"ipv4": pool, "ipv6": pool});
        }
        entry
    }

    /// A network of our plugin, and others after it.
    pub(crate) fn network(&self, version: &str, behind: Vec<Value>) -> Result<Network> {
        Ok(Network {
            version: version.to_owned(),
            name: NETWORK.to_owned(),
            plugins: [vec![self.entry(None)], behind].concat(),
            path: vec![self.plugins(), Plugins::New.folder()?],
        })
    }

    /// The number of the ENI that owns an address.
    pub(crate) fn owner(&self, address: IpAddr) -> Result<u8> {
        let mut enis = self.fabric.enis.iter();
        let found = enis.find(|eni| eni.blocks.iter().any(|block| block.contains(&address)));
        Ok(found
            .with_context(|| format!("no ENI owns {address}"))?
            .number)
    }
}

/// The plugin's binary, next to the agent's.
fn plugin() -> Result<PathBuf> {
    let program = agent::binary()?.with_file_name("towpath-cni");
    anyhow::ensure!(
        program.exists(),
        "{} is missing: build it with `cargo build -p towpath-cni --features fault-points`",
        program.display()
    );
    Ok(program)
}

/// A pod's network namespace, with its addresses.
#[derive(Debug)]
pub(crate) struct Reach {
    netns: Netns,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Reach {
    pub(crate) fn new(netns: &Path, addresses: &[IpAddr]) -> Result<Self> {
        Ok(Self {
            netns: Netns::foreign(netns)?,
            addresses: addresses.to_vec(),
        })
    }

    /// By the result of an ADD.
    pub(crate) fn of_result(netns: &Path, result: &Value) -> Result<Self> {
        Self::new(netns, &addresses(result)?)
    }

    /// The pod's end of a flow of a family.
    pub(crate) fn at(&self, family: Family) -> Result<Place<'_>> {
        let mut addresses = self.addresses.iter().copied();
        let address = addresses.find(|address| Family::of(*address) == family);
        Ok(Place {
            netns: &self.netns,
            address: address
                .with_context(|| format!("no {family:?} address: {:?}", self.addresses))?,
        })
    }

    /// One exchange of each protocol and family with a place, and back.
    pub(crate) fn talk<'a>(
        &self,
        protocols: &[Protocol],
        to: impl Fn(Family) -> Result<Place<'a>>,
    ) -> Result<()> {
        for family in Family::ALL {
            let (own, other) = (self.at(family)?, to(family)?);
            for protocol in protocols {
                let exchanged = protocol.exchange(own, other);
                exchanged.with_context(|| {
                    format!("{protocol} from {} to {}", own.address, other.address)
                })?;
            }
        }
        Ok(())
    }
}

/// The addresses in the result of an ADD, in any version of the specification.
pub(crate) fn addresses(result: &Value) -> Result<Vec<IpAddr>> {
    let list = result["ips"].as_array().context("a result has ips")?;
    let addresses = list.iter().map(|ip| {
        let text = ip["address"].as_str().context("an ip has an address")?;
        Ok(text.parse::<IpNet>()?.addr())
    });
    addresses.collect()
}
