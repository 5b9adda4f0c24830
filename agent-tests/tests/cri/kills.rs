//! The agent and the plugin are killed at every point of ADD and DEL, and each request is repeated
//! or given up: nothing leaks, no address changes, and none is used twice.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::census::{Census, exactly, unchanged};
use crate::containers::{Container, Containers};
use crate::driver::{Network, PLUGIN_FAULT, refusal};
use crate::points::{Case, QUEUING, TRIES, Verb, Victim};
use crate::scene::{Scene, addresses};
use crate::wait::{RETRY, by_length};

/// Least number of kills in an ordinary run, and in a full one.
const KILLS: (usize, usize) = (100, 1000);
/// Number of kills at each point in a round.
const EACH: usize = 5;

struct Stage {
    scene: Scene,
    network: Network,
    containers: Containers,
    /// Containers that stay, with the result of their ADD.
    residents: Vec<(Container, Value)>,
    fault: PathBuf,
}

impl Stage {
    fn new() -> Result<(Self, Census)> {
        let mut scene = Scene::create()?;
        let fault = scene.fabric.file("fault");
        scene.start_armed_by(&fault)?;
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
        self.scene.start_armed_by(&self.fault)
    }

    /// Checks that the residents are unchanged, with one more container or none.
    fn look(&self, more: Option<&Container>) -> Result<()> {
        let residents = self.residents.iter().map(|(container, _)| container);
        let ids: Vec<_> = residents.chain(more).map(Container::id).collect();
        exactly(&self.scene, &ids)?;
        for (container, result) in &self.residents {
            let path = container.attachment.endpoint();
            unchanged(&self.scene, &path, &addresses(result)?)?;
        }
        Ok(())
    }

    /// Kills once, acts like a runtime afterwards, and returns true if the point was reached.
    ///
    /// With `give_up`, a failed ADD is followed by DEL, not by another ADD.
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
            Victim::Agent => self.scene.wait_for_fault(done.is_ok()),
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

    /// Kills a DEL that is being queued, because it finds no agent, or a process that carries
    /// out a queued DEL.
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
                let reached = self.scene.wait_for_fault(false);
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

    /// One kill of a case.
    fn happen(&mut self, case: &Case, give_up: bool) -> Result<()> {
        for _ in 0..TRIES {
            let (victim, point) = (case.victim, case.point.as_str());
            let reached = if case.is_of_queue() {
                self.kill_in_queue(victim, point)
            } else {
                self.kill(victim, case.verb, point, give_up)
            };
            if reached? {
                return Ok(());
            }
        }
        anyhow::bail!("not reached")
    }
}

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
                if let Err(error) = stage.happen(case, give_up) {
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
