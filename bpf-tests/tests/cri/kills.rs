//! The agent and the plugin are killed at every point of ADD and DEL, and whatever was asked for is
//! asked for again, or given up: nothing leaks, nobody's address changes, none is there twice.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use towpath::faults;

use crate::census::{Census, exactly};
use crate::containers::{Container, Containers};
use crate::driver::{Network, PLUGIN_FAULT, refusal};
use crate::scene::{Scene, addresses};
use crate::wait::{RETRY, by_length};

/// Kills of an ordinary run at least, and of a full one.
const KILLS: (usize, usize) = (100, 1000);
/// How often each point is hit in a round.
const EACH: usize = 5;
/// How often a point may be missed in a row: the agent looks at the queue too.
const TRIES: usize = 5;
/// Has the agent read a fault point from a file.
const FILE_VARIABLE: &str = "TOWPATH_FAULT_FILE";
/// How long the agent may take to reach a point after it was given reason to.
const REACH: Duration = Duration::from_secs(10);

/// What is being done when the kill comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Add,
    Del,
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Agent,
    Plugin,
}

struct Stage {
    scene: Scene,
    network: Network,
    containers: Containers,
    /// Containers that stay, with what their ADD said.
    residents: Vec<(Container, Value)>,
    fault: PathBuf,
}

impl Stage {
    fn new() -> Result<(Self, Census)> {
        let mut scene = Scene::create()?;
        let fault = scene.fabric.file("fault");
        start(&mut scene, &fault)?;
        let census = Census::of_empty(&scene)?;
        let network = scene.network("1.1.0", Vec::new())?;
        let containers = Containers::new(&scene);
        let mut stage = Self {
            scene,
            network,
            containers,
            residents: Vec::new(),
            fault,
        };
        for _ in 0..2 {
            let container = stage.containers.take()?;
            let result = stage
                .network
                .add(&stage.scene.fabric.node, &container.attachment)?;
            stage.residents.push((container, result));
        }
        Ok((stage, census))
    }

    fn restart(&mut self) -> Result<()> {
        // Nothing may be armed while it comes back.
        let _not_there = fs::remove_file(&self.fault);
        start(&mut self.scene, &self.fault)
    }

    /// The residents are as they were, with one container more, or none.
    fn look(&self, more: Option<&Container>) -> Result<()> {
        let residents = self.residents.iter().map(|(container, _)| container);
        let ids: Vec<_> = residents.chain(more).map(Container::id).collect();
        exactly(&self.scene, &ids)?;
        for (container, result) in &self.residents {
            let path = container.attachment.endpoint();
            let answer = self.scene.fabric.agent.ask("GET", &path, None)?;
            let problems = answer["problems"].as_array().context("problems")?;
            anyhow::ensure!(problems.is_empty(), "{answer}");
            let listed = answer["attachment"]["addresses"]
                .as_array()
                .into_iter()
                .flatten();
            let has: Vec<_> = listed
                .filter_map(|address| address["address"].as_str())
                .collect();
            let had = addresses(result)?;
            let had: Vec<_> = had.iter().map(ToString::to_string).collect();
            anyhow::ensure!(has == had, "{}: {has:?}, not {had:?}", container.id());
        }
        Ok(())
    }

    /// One kill, and what a runtime does then. `give_up` has a failed ADD followed by DEL, not by
    /// another ADD. Whether the point was reached.
    fn kill(&mut self, victim: Victim, verb: Verb, point: &str, give_up: bool) -> Result<bool> {
        let container = self.containers.take()?;
        let node = &self.scene.fabric.node;
        let attachment = &container.attachment;
        let mut result = None;
        if verb == Verb::Del {
            result = Some(self.network.add(node, attachment)?);
        }
        let environment: &[(&str, &str)] = match victim {
            Victim::Agent => &[],
            Victim::Plugin => &[(PLUGIN_FAULT, point)],
        };
        if victim == Victim::Agent {
            fs::write(&self.fault, point)?;
        }
        let done = match verb {
            Verb::Add => self
                .network
                .add_with(node, attachment, environment)
                .map(drop),
            Verb::Del => self
                .network
                .del_with(node, attachment, result.as_ref(), environment),
        };
        let reached = match victim {
            Victim::Plugin => match &done {
                Ok(()) => false,
                Err(error) => refusal(error).killed,
            },
            Victim::Agent => {
                // The answer may go out before the point is reached.
                let patience = if done.is_ok() { REACH / 10 } else { REACH };
                self.scene.fabric.agent.wait_for_fault(patience).is_ok()
            }
        };
        if victim == Victim::Agent {
            self.restart()?;
        }
        let node = &self.scene.fabric.node;
        if verb == Verb::Add && !give_up {
            let result = self.network.add_again(node, attachment, RETRY)?;
            self.look(Some(&container))?;
            self.network.check(node, attachment, &result)?;
            self.network.del(node, attachment, Some(&result))?;
        } else {
            self.network.del(node, attachment, result.as_ref())?;
        }
        self.look(None)?;
        self.containers.give_back(container);
        Ok(reached)
    }

    /// DELs that are killed on their way to the queue, because they find no agent, and who is killed
    /// while he carries a queued one out.
    fn kill_in_queue(&mut self, victim: Victim, point: &str) -> Result<bool> {
        let mut away = self.network.clone();
        away.plugins[0]["socket"] = json!(self.scene.fabric.file("no-agent.sock"));
        let container = self.containers.take()?;
        let (node, attachment) = (&self.scene.fabric.node, &container.attachment);
        self.network.add(node, attachment)?;
        let fault = [(PLUGIN_FAULT, point)];
        let reached = match victim {
            Victim::Agent => {
                fs::write(&self.fault, point)?;
                away.del(node, attachment, None)?;
                let reached = self.scene.fabric.agent.wait_for_fault(REACH).is_ok();
                self.restart()?;
                reached
            }
            Victim::Plugin => {
                let answer = if QUEUING.contains(&point) {
                    away.del_with(node, attachment, None, &fault)
                } else {
                    away.del(node, attachment, None)?;
                    self.network.del_with(node, attachment, None, &fault)
                };
                matches!(&answer, Err(error) if refusal(error).killed)
            }
        };
        let node = &self.scene.fabric.node;
        self.network.del(node, &container.attachment, None)?;
        self.look(None)?;
        self.containers.give_back(container);
        Ok(reached)
    }
}

fn start(scene: &mut Scene, fault: &std::path::Path) -> Result<()> {
    let file = fault.display().to_string();
    let fabric = &mut scene.fabric;
    fabric
        .agent
        .start(&fabric.node, &[(FILE_VARIABLE, &file)])?;
    fabric.wait_until_ready()
}

/// A place to be killed at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    victim: Victim,
    verb: Verb,
    point: String,
}

impl Case {
    fn new(victim: Victim, verb: Verb, point: &str) -> Self {
        let point = point.to_owned();
        Self {
            victim,
            verb,
            point,
        }
    }

    /// Every case.
    fn all() -> Vec<Self> {
        let agent = agent_points().into_iter();
        let agent = agent.map(|(verb, point)| Self::new(Victim::Agent, verb, &point));
        let plugin = PLUGIN_POINTS.iter();
        let plugin = plugin.map(|(verb, point)| Self::new(Victim::Plugin, *verb, point));
        let queue = QUEUING.iter().chain(&CARRYING);
        let queue = queue.map(|point| Self::new(Victim::Plugin, Verb::Del, point));
        let pending = Self::new(Victim::Agent, Verb::Del, PENDING);
        agent.chain(plugin).chain(queue).chain([pending]).collect()
    }

    /// One kill.
    fn happen(&self, stage: &mut Stage, give_up: bool) -> Result<()> {
        let point = self.point.as_str();
        for _ in 0..TRIES {
            let is_queued = QUEUING.contains(&point) || CARRYING.contains(&point);
            let reached = if is_queued || point == PENDING {
                stage.kill_in_queue(self.victim, point)
            } else {
                stage.kill(self.victim, self.verb, point, give_up)
            };
            if reached? {
                return Ok(());
            }
        }
        anyhow::bail!("not reached")
    }
}

/// What of the agent's points only ADD reaches, only DEL, and neither.
const OF_ADD: [&str; 7] = [
    "add-route",
    "add-neighbour",
    "attach",
    "create-endpoint-device",
    "put-map-entry",
    "set-up",
    "store.",
];
const OF_DEL: [&str; 4] = [
    "delete-map-entry",
    "delete-neighbour",
    "delete-route",
    "delete-device",
];
const ELSEWHERE: [&str; 8] = [
    "set-sysctl",
    "set-mtu",
    "-address",
    "-rule",
    "reserve-ports",
    // The plugin's installation.
    "cni.",
    "detach",
    // Reached by a DEL that was queued.
    PENDING,
];
const PENDING: &str = "pending-delete.done";

/// The agent's points that ADD or DEL of a container reaches. A new point is one of both, until it
/// is named above.
fn agent_points() -> Vec<(Verb, String)> {
    let mut points = Vec::new();
    for point in faults::points().map(|point| point.to_string()) {
        let is_one = |words: &[&str]| words.iter().any(|word| point.contains(word));
        let is_add = is_one(&OF_ADD) || point.starts_with("endpoint.add");
        let is_del = is_one(&OF_DEL) || point.starts_with("endpoint.del");
        if is_one(&ELSEWHERE) {
            continue;
        }
        // What cools down is written with a DEL; an ADD may come before or after a look at it.
        if !is_del && !point.starts_with("addresses") {
            points.push((Verb::Add, point.clone()));
        }
        if !is_add {
            points.push((Verb::Del, point));
        }
    }
    points
}

const PLUGIN_POINTS: [(Verb, &str); 8] = [
    (Verb::Add, "add.connect"),
    (Verb::Add, "add.sent"),
    (Verb::Add, "add.answered"),
    (Verb::Add, "print.begin"),
    (Verb::Add, "print.end"),
    (Verb::Del, "del.connect"),
    (Verb::Del, "del.sent"),
    (Verb::Del, "del.answered"),
];

const QUEUING: [&str; 3] = ["queue.write", "queue.rename", "queue.renamed"];
const CARRYING: [&str; 4] = [
    "queued.connect",
    "queued.sent",
    "queued.answered",
    "queue.remove",
];

#[test]
fn whoever_is_killed_whenever_nothing_leaks() {
    let begun = Instant::now();
    let (mut stage, census) = Stage::new().unwrap();
    let kills = by_length(KILLS.0, KILLS.1);
    let cases = Case::all();
    let mut counts = BTreeMap::<&Case, usize>::new();
    let mut round = 0;
    let mut done = 0;
    while done < kills {
        for (number, case) in cases.iter().enumerate() {
            for time in 0..EACH {
                let give_up = (round + number + time) % 2 == 1;
                if let Err(error) = case.happen(&mut stage, give_up) {
                    let state = stage.scene.fabric.describe();
                    panic!("{case:?}, give up {give_up}: {error:#}\n{state}");
                }
                *counts.entry(case).or_default() += 1;
                done += 1;
            }
        }
        round += 1;
    }
    println!("kills, by who, during what, at which point:");
    for (
        Case {
            victim,
            verb,
            point,
        },
        count,
    ) in &counts
    {
        let who = format!("{victim:?} {verb:?}");
        println!("  {who:<11} {point:<32} {count:>4}");
    }
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    println!("{done} kills, {minutes:.1} minutes");
    for (container, result) in std::mem::take(&mut stage.residents) {
        let node = &stage.scene.fabric.node;
        stage
            .network
            .del(node, &container.attachment, Some(&result))
            .unwrap();
    }
    census.nothing_left(&stage.scene).unwrap();
    println!("nothing leaked");
    stage.scene.fabric.finish().unwrap();
}
