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

/// Kills of an ordinary run, and of a full one.
const KILLS: (usize, usize) = (100, 1000);
/// How often each point has to be hit in a full run; an ordinary one hits each once at least.
const EACH: (usize, usize) = (1, 5);
/// Has the agent read a fault point from a file.
const FILE_VARIABLE: &str = "TOWPATH_FAULT_FILE";
/// How long the agent may take to reach a point after it was given reason to.
const REACH: Duration = Duration::from_secs(10);
/// Kills between two looks at everything.
const THOROUGH: usize = 25;

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

    /// DELs that are killed on their way to the queue, because they find no agent, and calls that are
    /// killed while they carry queued ones out.
    fn kill_in_queue(&mut self, counts: &mut Counts) -> Result<()> {
        let mut away = self.network.clone();
        away.plugins[0]["socket"] = json!(self.scene.fabric.file("no-agent.sock"));
        let node = &self.scene.fabric.node;
        for (network, points) in [(&away, &QUEUING[..]), (&self.network, &CARRYING[..])] {
            for point in points {
                let container = self.containers.take()?;
                self.network.add(node, &container.attachment)?;
                if network.plugins != away.plugins {
                    away.del(node, &container.attachment, None)?;
                }
                let fault = [(PLUGIN_FAULT, *point)];
                let answer = network.del_with(node, &container.attachment, None, &fault);
                let reached = matches!(&answer, Err(error) if refusal(error).killed);
                counts.note(Victim::Plugin, Verb::Del, point, reached);
                self.network.del(node, &container.attachment, None)?;
                self.look(None)?;
                self.containers.give_back(container);
            }
        }
        Ok(())
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

/// Kills by who, what and where; and how many times a point was asked for in vain.
#[derive(Default)]
struct Counts {
    kills: BTreeMap<(Victim, Verb, String), usize>,
    missed: BTreeMap<(Victim, Verb, String), usize>,
}

impl Counts {
    fn note(&mut self, victim: Victim, verb: Verb, point: &str, reached: bool) {
        let counts = if reached {
            &mut self.kills
        } else {
            &mut self.missed
        };
        *counts.entry((victim, verb, point.to_owned())).or_default() += 1;
    }

    fn all(&self) -> usize {
        self.kills.values().sum()
    }
}

/// The agent's points that ADD or DEL of a container reaches.
fn agent_points() -> Vec<(Verb, String)> {
    let elsewhere = [
        "set-sysctl",
        "set-mtu",
        "address",
        "rule",
        "reserve-ports",
        "detach",
    ];
    let mut points = Vec::new();
    for point in faults::points().map(|point| point.to_string()) {
        if elsewhere.iter().any(|word| point.ends_with(word)) {
            continue;
        }
        for verb in [Verb::Add, Verb::Del] {
            points.push((verb, point.clone()));
        }
    }
    points
}

const PLUGIN_POINTS: [(Verb, &str); 10] = [
    (Verb::Add, "add.connect"),
    (Verb::Add, "add.sent"),
    (Verb::Add, "add.answered"),
    (Verb::Add, "print.begin"),
    (Verb::Add, "print.end"),
    (Verb::Del, "del.connect"),
    (Verb::Del, "del.sent"),
    (Verb::Del, "del.answered"),
    (Verb::Del, "print.begin"),
    (Verb::Del, "print.end"),
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
    let (kills, each) = (by_length(KILLS.0, KILLS.1), by_length(EACH.0, EACH.1));
    let mut counts = Counts::default();
    let mut points: Vec<_> = agent_points()
        .into_iter()
        .map(|(verb, point)| (Victim::Agent, verb, point))
        .collect();
    points.extend(PLUGIN_POINTS.map(|(verb, point)| (Victim::Plugin, verb, point.to_owned())));
    let mut round = 0;
    while counts.all() < kills {
        stage.kill_in_queue(&mut counts).unwrap();
        points.retain(|(victim, verb, point)| {
            let key = (*victim, *verb, point.clone());
            round == 0 || counts.kills.contains_key(&key)
        });
        for (number, (victim, verb, point)) in points.iter().enumerate() {
            // A plugin's kill takes a tenth of the time.
            let times = match victim {
                Victim::Agent => 1,
                Victim::Plugin => 3,
            };
            for time in 0..times {
                let give_up = (round + number + time) % 2 == 1;
                let reached = stage.kill(*victim, *verb, point, give_up);
                let reached = match reached {
                    Ok(reached) => reached,
                    Err(error) => panic!(
                        "{victim:?} {verb:?} {point}, give up {give_up}: {error:#}\n{}",
                        stage.scene.fabric.describe()
                    ),
                };
                counts.note(*victim, *verb, point, reached);
                if reached && counts.all().is_multiple_of(THOROUGH) {
                    stage.look(None).unwrap();
                }
            }
        }
        round += 1;
    }
    println!("kills, by who, during what, at which point:");
    for ((victim, verb, point), count) in &counts.kills {
        println!("  {victim:?} {verb:?} {point:<32} {count:>4}");
    }
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    println!(
        "{} kills, {round} rounds, 0 leaks, {minutes:.1} minutes",
        counts.all()
    );
    let rare: Vec<_> = counts
        .kills
        .iter()
        .filter(|(_, count)| **count < each)
        .collect();
    assert!(rare.is_empty(), "too seldom: {rare:?}");
    for (container, result) in std::mem::take(&mut stage.residents) {
        stage
            .network
            .del(
                &stage.scene.fabric.node,
                &container.attachment,
                Some(&result),
            )
            .unwrap();
    }
    census.nothing_left(&stage.scene).unwrap();
    stage.scene.fabric.finish().unwrap();
}
