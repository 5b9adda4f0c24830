//! Objects on the node: after every fault they must match the runtime's containers exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::fabric::eventually::eventually;
use testkit::fabric::state::{State, difference};

use crate::scene::Scene;

/// The time that the node may take to settle.
const REST: Duration = Duration::from_secs(10);
/// Prefix of the names of pods' devices on the node.
const DEVICE: &str = "tow";

/// The state of a node without pods.
pub(crate) struct Census {
    empty: State,
}

impl Census {
    /// Takes the state of a node that has no pods yet, but whose ENIs have all carried packets.
    pub(crate) fn of_empty(scene: &Scene) -> Result<Self> {
        let ((), _) = eventually(REST, "the node is at rest", || at_rest(scene))?;
        Ok(Self {
            empty: scene.fabric.state()?,
        })
    }

    /// Fails unless the node is as it was without pods: in the kernel, at the agent and on disk.
    pub(crate) fn nothing_left(&self, scene: &Scene) -> Result<()> {
        let looked = eventually(REST, "nothing is left of any pod", || {
            quick(scene, &[])?;
            let difference = difference(&self.empty, &scene.fabric.state()?);
            ensure!(difference.is_empty(), "leaked or missing:\n{difference}");
            Ok(())
        });
        looked.map(drop)
    }
}

/// Fails unless devices, routes, endpoints and leases are exactly those of these containers. It
/// makes few requests to the kernel, because it runs after every kill.
pub(crate) fn exactly(scene: &Scene, containers: &[&str]) -> Result<()> {
    let what = format!("exactly {containers:?} are there");
    eventually(REST, &what, || quick(scene, containers)).map(drop)
}

fn quick(scene: &Scene, containers: &[&str]) -> Result<()> {
    let expected: BTreeSet<_> = containers.iter().map(ToString::to_string).collect();
    let agent = &scene.fabric.agent;
    let endpoints = agent.ask("GET", "/v1/endpoints", None)?;
    let mut devices = BTreeSet::new();
    let mut owners = BTreeSet::new();
    let mut given = BTreeMap::new();
    for endpoint in endpoints.as_array().context("a list of endpoints")? {
        let owner = container(&endpoint["owner"])?;
        let device = endpoint["host-device"].as_str().context("a host device")?;
        devices.insert(device.to_owned());
        for address in endpoint["addresses"].as_array().into_iter().flatten() {
            let address = address["address"]
                .as_str()
                .context("an address")?
                .to_owned();
            let other = given.insert(address.clone(), owner.clone());
            ensure!(other.is_none(), "{owner} and {other:?} both have {address}");
        }
        owners.insert(owner);
    }
    ensure!(
        owners == expected,
        "endpoints of {owners:?}, not of {expected:?}"
    );
    leases(&agent.ask("GET", "/v1/addresses", None)?, &given)?;
    let node = &scene.fabric.node;
    let links = names(&node.ip_json("link show")?, "ifname");
    ensure!(links == devices, "devices {links:?}, not {devices:?}");
    let mut routed = BTreeSet::new();
    for line in ["-4 route show table 220", "-6 route show table 220"] {
        routed.extend(names(&node.ip_json(line)?, "dev"));
    }
    ensure!(
        routed == devices,
        "routes to {routed:?}, not to {devices:?}"
    );
    let queued = files(&scene.queue(), "json")?;
    ensure!(queued.is_empty(), "still queued: {queued:?}");
    at_rest(scene)
}

/// Fails unless an endpoint is unchanged: complete, with the same addresses.
pub(crate) fn unchanged(scene: &Scene, path: &str, addresses: &[IpAddr]) -> Result<()> {
    let answer = scene.fabric.agent.ask("GET", path, None)?;
    let problems = answer["problems"].as_array().context("problems")?;
    ensure!(problems.is_empty(), "{answer}");
    let listed = answer["attachment"]["addresses"].as_array();
    let listed = listed.into_iter().flatten();
    let has: BTreeSet<_> = listed
        .filter_map(|address| address["address"].as_str()?.parse().ok())
        .collect();
    let had: BTreeSet<_> = addresses.iter().copied().collect();
    ensure!(has == had, "{path}: {has:?}, not {had:?}");
    Ok(())
}

/// Checks that the leases are those of the endpoints' addresses.
fn leases(answer: &Value, given: &BTreeMap<String, String>) -> Result<()> {
    let mut leased = BTreeMap::new();
    for lease in answer["leases"].as_array().context("a list of leases")? {
        let owner = container(&lease["owner"])?;
        let address = lease["address"]
            .as_str()
            .context("a lease's address")?
            .to_owned();
        let other = leased.insert(address.clone(), owner);
        ensure!(other.is_none(), "{address} is leased twice: {answer}");
    }
    ensure!(leased == *given, "leases {leased:?}, not {given:?}");
    Ok(())
}

/// Checks that no object of ours is missing in the kernel or superfluous.
fn at_rest(scene: &Scene) -> Result<()> {
    let objects = scene.fabric.agent.ask("GET", "/v1/routes", None)?;
    let list = objects.as_array().into_iter().flatten();
    let differing: Vec<_> = list.filter(|object| object["state"] != "present").collect();
    ensure!(differing.is_empty(), "{differing:?}");
    Ok(())
}

fn container(owner: &Value) -> Result<String> {
    let id = owner["container-id"].as_str();
    Ok(id.with_context(|| format!("an owner: {owner}"))?.to_owned())
}

/// The pods' devices in a list of `ip`.
fn names(list: &Value, key: &str) -> BTreeSet<String> {
    let entries = list.as_array().into_iter().flatten();
    let names = entries.filter_map(|entry| entry[key].as_str());
    names
        .filter(|name| name.starts_with(DEVICE))
        .map(str::to_owned)
        .collect()
}

/// The files of a folder with this extension; a missing folder has none.
pub(crate) fn files(folder: &Path, extension: &str) -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == extension) {
            found.push(path.display().to_string());
        }
    }
    Ok(found)
}
