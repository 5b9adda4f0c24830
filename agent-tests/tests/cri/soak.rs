//! Pods are added and deleted all the time, while the agent is killed and stopped: no ADD fails for
//! good, nothing leaks, memory stays.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::cri::{Bed, Containerd, Plugins, PodRequest, Setup};
use testkit::fabric::agent::Agent;
use testkit::fabric::{Fabric, Netns};

use crate::census::{Census, exactly};
use crate::containers::{Container, Containers};
use crate::driver::Network;
use crate::scene::{Scene, addresses};
use crate::table::Times;
use crate::wait::{RETRY, by_length};

/// Pods at a time, and duration, in an ordinary run and in a full one.
const PODS: (usize, usize) = (30, 250);
const TIME: (Duration, Duration) = (Duration::from_mins(1), Duration::from_mins(10));
/// Period of the agent's restarts.
const RESTART: Duration = Duration::from_secs(20);
/// Number of threads that add and delete pods.
const WORKERS: usize = 3;
/// Memory that an agent may have more than the first one, in percent.
const GROWTH: u64 = 20;
/// Age of an attachment after which GC removes it: the agent allows for a list that is older than
/// an ADD.
const YOUNG: Duration = Duration::from_secs(30);

/// State that workers share.
struct Soak<'a> {
    network: &'a Network,
    node: &'a Netns,
    containers: &'a Containers,
    pods: usize,
    ended: AtomicBool,
    held: Mutex<Vec<(Container, Value)>>,
    adds: Mutex<Vec<Duration>>,
    dels: Mutex<Vec<Duration>>,
    refused: AtomicUsize,
}

impl Soak<'_> {
    /// Adds pods until the end, and deletes the oldest once there are enough.
    fn work(&self) -> Result<()> {
        while !self.ended.load(Ordering::Relaxed) {
            let oldest = {
                let mut held = self.held.lock().unwrap();
                (held.len() >= self.pods).then(|| held.remove(0))
            };
            if let Some((container, result)) = oldest {
                let start = Instant::now();
                self.delete(&container, &result)?;
                self.dels.lock().unwrap().push(start.elapsed());
                self.containers.give_back(container);
            }
            let container = self.containers.take()?;
            let start = Instant::now();
            if self.network.add(self.node, &container.attachment).is_err() {
                self.refused.fetch_add(1, Ordering::Relaxed);
            } else {
                self.adds.lock().unwrap().push(start.elapsed());
            }
            // Idempotent: an endpoint that was already added is found.
            let result = self
                .network
                .add_again(self.node, &container.attachment, RETRY)?;
            let mut held = self.held.lock().unwrap();
            let taken: BTreeSet<_> = held
                .iter()
                .map(|(_, result)| addresses(result))
                .collect::<Result<Vec<_>>>()?
                .concat()
                .into_iter()
                .collect();
            let given = addresses(&result)?;
            let double: Vec<_> = given.iter().filter(|ip| taken.contains(ip)).collect();
            ensure!(double.is_empty(), "{double:?} are given twice");
            held.push((container, result));
        }
        Ok(())
    }

    /// Prints a summary, and returns the remaining containers.
    fn report(
        self,
        used: &[u64],
        (by_cri, cri_refused): (usize, usize),
    ) -> Vec<(Container, Value)> {
        let (adds, dels) = (self.adds.into_inner(), self.dels.into_inner());
        let (adds, dels) = (Times::of(adds.unwrap()), Times::of(dels.unwrap()));
        println!("{} pods, {} restarts of the agent", self.pods, used.len());
        println!(
            "{}\n{}\n{}",
            Times::header(),
            adds.row("ADD"),
            dels.row("DEL")
        );
        println!(
            "{} ADDs were refused at first, none for good; {by_cri} more pods by containerd, \
             {cri_refused} of their ADDs refused at first",
            self.refused.into_inner()
        );
        println!("the agent's resident memory before each restart, in KiB: {used:?}");
        self.held.into_inner().unwrap()
    }

    fn delete(&self, container: &Container, result: &Value) -> Result<()> {
        let start = Instant::now();
        loop {
            match self
                .network
                .del(self.node, &container.attachment, Some(result))
            {
                Ok(()) => return Ok(()),
                Err(error) if start.elapsed() > RETRY => return Err(error),
                Err(_not_yet) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// Resident memory of a process, in KiB.
fn memory(process: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("VmRSS")?.parse()?)
}

/// Runs pods by containerd, one after the other, until the end; returns their number, and that of
/// first refusals.
fn by_containerd(bed: &Bed, ended: &AtomicBool) -> Result<(usize, usize)> {
    let (mut pods, mut refused) = (0, 0);
    while !ended.load(Ordering::Relaxed) {
        let request = PodRequest::new(&format!("soak{pods}"));
        let start = Instant::now();
        let pod = loop {
            match bed.cri.run_pod(&request) {
                Ok(pod) => break pod,
                Err(error) if start.elapsed() > RETRY => return Err(error),
                Err(_not_yet) => {
                    refused += 1;
                    thread::sleep(Duration::from_millis(100));
                }
            }
        };
        let pod = [pod];
        for answer in bed.cri.stop_pods(&pod) {
            answer?;
        }
        for answer in bed.cri.remove_pods(&pod) {
            answer?;
        }
        pods += 1;
    }
    Ok((pods, refused))
}

/// Starts containerd with a network of its own, which GC of ours does not affect.
fn containerd(scene: &Scene, network: &Network) -> Bed {
    let mut network = network.clone();
    "by-containerd".clone_into(&mut network.name);
    "1.0.0".clone_into(&mut network.version);
    let setup = Setup {
        containerd: Containerd::One,
        plugins: Plugins::Old,
        own_plugins: scene.own_plugins(),
        networks: &[("runc", network.list())],
    };
    Bed::start(&scene.fabric, &setup).unwrap()
}

/// Restarts the agent periodically during the work, alternately as a crash and in order; returns
/// its memory before each restart.
fn restart(
    agent: &mut Agent,
    node: &Netns,
    until: Instant,
    is_over: impl Fn() -> bool,
) -> Result<Vec<u64>> {
    let mut used = Vec::new();
    while Instant::now() < until && !is_over() {
        let next = Instant::now() + RESTART;
        while Instant::now() < next.min(until) && !is_over() {
            thread::sleep(Duration::from_millis(100));
        }
        used.push(memory(agent.id().context("the agent runs")?)?);
        if used.len() % 2 == 0 {
            agent.stop()?;
        } else {
            agent.kill()?;
        }
        agent.start(node, &[])?;
    }
    Ok(used)
}

/// The agent's memory grows little from its first restart to its last one.
fn memory_stays(used: &[u64]) {
    let (first, last) = (used[0], used[used.len() - 1]);
    assert!(
        last * 100 <= first * (100 + GROWTH),
        "memory grows: {used:?}"
    );
}

#[test]
fn pods_come_and_go_while_the_agent_restarts() {
    let (pods, time) = (by_length(PODS.0, PODS.1), by_length(TIME.0, TIME.1));
    let mut scene = Scene::ready().unwrap();
    let census = Census::of_empty(&scene).unwrap();
    let network = scene.network("1.1.0", Vec::new()).unwrap();
    let containers = Containers::new(&scene);
    let bed = containerd(&scene, &network);
    // No DEL will ever come for this one.
    let forgotten = containers.take().unwrap();
    let begun = Instant::now();
    let node = &scene.fabric.node;
    network.add(node, &forgotten.attachment).unwrap();

    let Fabric { agent, node, .. } = &mut scene.fabric;
    let soak = Soak {
        network: &network,
        node,
        containers: &containers,
        pods,
        ended: AtomicBool::new(false),
        held: Mutex::default(),
        adds: Mutex::default(),
        dels: Mutex::default(),
        refused: AtomicUsize::new(0),
    };
    let (used, by_cri) = thread::scope(|scope| {
        let workers = [(); WORKERS].map(|()| scope.spawn(|| soak.work()));
        let by_cri = scope.spawn(|| by_containerd(&bed, &soak.ended));
        let is_over = || workers.iter().any(ScopedJoinHandle::is_finished);
        let used = restart(agent, node, begun + time, is_over);
        soak.ended.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap().unwrap();
        }
        (used.unwrap(), by_cri.join().unwrap().unwrap())
    });
    let held = soak.report(&used, by_cri);
    scene.fabric.wait_until_ready().unwrap();

    let all: Vec<_> = held.iter().map(|(container, _)| container.id()).collect();
    exactly(&scene, &[all.clone(), vec![forgotten.id()]].concat()).unwrap();
    assert!(begun.elapsed() > YOUNG);
    let known = held.iter().map(|(container, _)| &container.attachment);
    let known: Vec<_> = known.collect();
    network.collect(&scene.fabric.node, &known).unwrap();
    exactly(&scene, &all).unwrap();
    for (container, result) in &held {
        let node = &scene.fabric.node;
        network
            .del(node, &container.attachment, Some(result))
            .unwrap();
    }
    census.nothing_left(&scene).unwrap();
    println!("nothing leaked");
    memory_stays(&used);
    drop(bed);
    scene.fabric.finish().unwrap();
}
