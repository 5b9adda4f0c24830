//! Cost of a pod's network, on a node with other pods. Three providers take turns: containerd with
//! our network, containerd with a plugin that does nothing, and the agent's socket.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Bed, Containerd, Plugins, PodRequest, Sandbox, Setup};
use crate::fabric::agent;
use crate::fabric::document::document;
use crate::fabric::layout::Eni;
use crate::fabric::{Fabric, Netns, Spec};
use crate::interrupt;

/// Prefixes of each ENI: two ENIs have more addresses than the pods of a full node.
const PREFIXES: u8 = 14;
/// Pods that start at once before the measurement: more would only wait for each other.
const BATCH: usize = 10;
/// The runtime handler whose pods get the plugin that does nothing.
const FLOOR: &str = "floor";
/// Names the CNI plugin that is measured.
const PLUGIN_VARIABLE: &str = "TOWPATH_CNI_BIN";

/// Providers of a pod's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// The runtime: `RunPodSandbox` and `StopPodSandbox`.
    Runtime,
    /// The runtime with a plugin that does nothing: the runtime's own cost.
    Floor,
    /// The agent, at its socket.
    Socket,
}

/// Requests for a pod's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// A pod starts.
    Add,
    /// A pod ends.
    Del,
}

impl Provider {
    /// All providers, in the order of their turns.
    pub const ALL: [Self; 3] = [Self::Runtime, Self::Floor, Self::Socket];
}

impl Verb {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Add, Self::Del];
}

/// Durations of each request, in the order of the requests.
pub type Costs = BTreeMap<(Provider, Verb), Vec<Duration>>;

/// Times a number of pods with each provider, for each number of other pods. `present` grows.
///
/// # Errors
/// When the fabric cannot be made, a request fails, or a packet left by the wrong ENI.
pub fn measure(present: &[usize], samples: usize) -> Result<Vec<Costs>> {
    let node = Node::start()?;
    let mut others = Vec::new();
    let mut all = Vec::new();
    for &count in present {
        node.populate(&mut others, count)?;
        let mut costs = Costs::new();
        for sample in 0..samples {
            for turn in 0..Provider::ALL.len() {
                interrupt::check()?;
                // The first provider changes with each sample.
                let provider = Provider::ALL[(sample + turn) % Provider::ALL.len()];
                for (verb, took) in Verb::ALL.into_iter().zip(node.time(provider)?) {
                    costs.entry((provider, verb)).or_default().push(took);
                }
            }
        }
        all.push(costs);
    }
    for pods in others.chunks(BATCH) {
        node.end(pods)?;
    }
    let Node { fabric, bed, .. } = node;
    drop(bed);
    fabric.finish()?;
    Ok(all)
}

/// A node with its agent and containerd, and a namespace for a pod without a runtime.
struct Node {
    fabric: Fabric,
    bed: Bed,
    netns: Netns,
}

impl Node {
    fn start() -> Result<Self> {
        let node = document(&[0, 1].map(|number| Eni::with_prefixes(number, PREFIXES)));
        let mut fabric = Fabric::create(&Spec {
            document: Some(node.to_string()),
            // Log lines for each step of each pod are for tests only.
            settings: json!({
                "ipam": {"enabled": true, "families": ["ipv4", "ipv6"], "cooldown": 0},
                "log-level": "info",
            }),
            ..Spec::default()
        })?;
        fabric.start_agent()?;
        let list = |name: &str, plugin: Value| json!({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]});
        let ours = json!({
            "type": "towpath-cni",
            "socket": fabric.agent.socket(),
            "state-dir": fabric.file("cni"),
        });
        let bed = Bed::start(
            &fabric,
            &Setup {
                containerd: Containerd::One,
                plugins: Plugins::Old,
                own_plugins: vec![plugin()?, idle_plugin(&fabric)?],
                networks: &[
                    ("runc", list("towpath", ours)),
                    (FLOOR, list(FLOOR, json!({"type": FLOOR}))),
                ],
            },
        )?;
        let netns = Netns::create(&format!("{}-alone", fabric.cgroup()))?;
        Ok(Self { fabric, bed, netns })
    }

    /// Runs pods until there are `count`.
    fn populate(&self, pods: &mut Vec<Sandbox>, count: usize) -> Result<()> {
        while pods.len() < count {
            interrupt::check()?;
            let next = pods.len()..count.min(pods.len() + BATCH);
            let requests: Vec<_> = next
                .map(|number| PodRequest::new(&format!("other{number}")))
                .collect();
            for pod in self.bed.cri.run_pods(&requests) {
                pods.push(pod?);
            }
        }
        Ok(())
    }

    /// Stops and removes pods, and returns the durations of their stops.
    fn end(&self, pods: &[Sandbox]) -> Result<Vec<Duration>> {
        let stopped = self.bed.cri.stop_pods(pods).into_iter().collect();
        for removed in self.bed.cri.remove_pods(pods) {
            removed?;
        }
        stopped
    }

    /// Durations of a pod's start and stop.
    fn time(&self, provider: Provider) -> Result<[Duration; 2]> {
        let handler = match provider {
            Provider::Runtime => "",
            Provider::Floor => FLOOR,
            Provider::Socket => return self.time_socket(),
        };
        let mut request = PodRequest::new("timed");
        handler.clone_into(&mut request.handler);
        let pod = self.bed.cri.run_pod(&request)?;
        let began = pod.took;
        let ended = self.end(&[pod])?;
        Ok([began, *ended.first().context("a pod was stopped")?])
    }

    fn time_socket(&self) -> Result<[Duration; 2]> {
        let body = json!({
            "owner": {"container-id": "timed", "interface": "eth0"},
            "netns": self.netns.path(),
        });
        let agent = &self.fabric.agent;
        let start = Instant::now();
        agent.ask("PUT", "/v1/endpoints", Some(&body))?;
        let began = start.elapsed();
        let start = Instant::now();
        agent.ask("DELETE", "/v1/endpoints/timed/eth0", None)?;
        Ok([began, start.elapsed()])
    }
}

/// Our plugin: named by a variable, or next to the agent's binary.
fn plugin() -> Result<PathBuf> {
    let plugin = match env::var_os(PLUGIN_VARIABLE) {
        Some(path) => path.into(),
        None => agent::binary()?.with_file_name("towpath-cni"),
    };
    plugin.try_exists()?.then_some(plugin).with_context(|| {
        format!("there is no towpath-cni: `cargo xtask bench` builds it and sets {PLUGIN_VARIABLE}")
    })
}

/// A plugin that only answers with an address: a runtime accepts no pod without one.
fn idle_plugin(fabric: &Fabric) -> Result<PathBuf> {
    let script = fabric.file("idle").join(FLOOR);
    fs::create_dir_all(fabric.file("idle"))?;
    let result = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": "/"}],
        "ips": [{"address": "192.0.2.1/32", "interface": 0}],
    });
    fs::write(
        &script,
        format!("#!/bin/sh\n[ $CNI_COMMAND = DEL ] || echo '{result}'\n"),
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script)
}
