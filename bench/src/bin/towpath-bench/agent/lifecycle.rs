//! Times from start to ready, and from a flush to the complete state.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData};
use datapath_common::abi::{Addr, AddressEntry, map};
use ipam::Family;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::fabric::command::run_with_input;
use testkit::fabric::eventually::check;
use testkit::fabric::state::{State, difference};

use super::figures::{against, median_row, millis};
use super::scene::{Scene, Size};
use crate::report::{Row, Unit};

/// Target for the time until every pod works again after a start of an agent with records, in
/// milliseconds.
const START: f64 = 500.0;

/// The pod rule, and the routes of our tables.
const FLUSH: &str = "rule del priority 20\n\
                     route flush table 220\n\
                     route flush table 10\n\
                     route flush table 11\n";

pub(super) fn measure(scene: &mut Scene, size: &Size) -> Result<Vec<Row>> {
    let endpoints = scene.pods.len();
    let starts = (0..size.rounds).map(|_| start(scene));
    let starts = starts.collect::<Result<Vec<_>>>()?;
    // A comparison of a full node's state takes seconds: once is enough.
    let flushes = (0..size.rounds).map(|round| flush(scene, round == 0));
    let flushes = flushes.collect::<Result<Vec<_>>>()?;
    let ready = format!("ready after start, {endpoints} endpoints");
    let whole = format!("all repaired after a flush, {endpoints} endpoints");
    Ok(vec![
        against(START, median_row(ready, &starts, Unit::Milliseconds)),
        median_row(whole, &flushes, Unit::Milliseconds),
    ])
}

/// Restarts the agent, and returns the milliseconds until it reports every pod as working.
fn start(scene: &mut Scene) -> Result<f64> {
    scene.fabric.agent.stop()?;
    let start = Instant::now();
    scene.fabric.agent.start(&scene.fabric.node, &[])?;
    scene.wait("ready after start", |_status| true)?;
    Ok(millis(start.elapsed()))
}

/// Removes all objects of the agent, except devices, while the agent is stopped, and returns the
/// milliseconds until all are restored.
///
/// `compare` also compares the whole state.
fn flush(scene: &Scene, compare: bool) -> Result<f64> {
    let before = compare.then(|| state(scene)).transpose()?;
    let agent = Pid::from_raw(i32::try_from(scene.agent()?)?);
    let repaired = |status: &serde_json::Value| status["repairs"]["total"].as_u64();
    let status = scene.wait("ready before the flush", |_status| true)?;
    let repairs = repaired(&status).context("the number of repairs")?;
    kill(agent, Signal::SIGSTOP)?;
    let removed = remove(scene);
    let start = Instant::now();
    kill(agent, Signal::SIGCONT)?;
    let removed = removed?;
    scene.wait("repaired after the flush", |status| {
        repaired(status) >= Some(repairs + removed)
    })?;
    let took = millis(start.elapsed());
    if let Some(before) = before {
        let difference = difference(&before, &state(scene)?);
        check(difference.is_empty(), || {
            format!("after the repair: {difference}")
        })?;
    }
    Ok(took)
}

/// The state of the node without the generation of the programs' cache, which every change
/// increases.
fn state(scene: &Scene) -> Result<State> {
    let mut state = scene.fabric.state()?;
    for lines in state.values_mut() {
        lines.retain(|line| !line.starts_with(map::CACHE_CONTROL));
    }
    Ok(state)
}

/// Removes the pod rules, every route of our tables, the endpoints' map entries and the links, and
/// returns their least number.
fn remove(scene: &Scene) -> Result<u64> {
    for family in ["-4", "-6"] {
        let mut ip = scene.fabric.node.command("ip");
        run_with_input(ip.args([family, "-batch", "-"]), FLUSH)?;
    }
    let pins = scene.version_folder()?;
    let addresses = MapData::from_pin(pins.join("maps").join(map::ADDRESSES))?;
    let mut addresses: HashMap<_, Addr, AddressEntry> = Map::HashMap(addresses).try_into()?;
    let keys = addresses.keys().collect::<Result<Vec<_>, _>>()?;
    for key in &keys {
        addresses.remove(key)?;
    }
    let mut removed = keys.len();
    for link in fs::read_dir(pins.join("links"))? {
        fs::remove_file(link?.path())?;
        removed += 1;
    }
    // A route to each pod by each family, and the two rules.
    let routes = scene.pods.len() * Family::ALL.len() + Family::ALL.len();
    Ok(u64::try_from(removed + routes)?)
}
