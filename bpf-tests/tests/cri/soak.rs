//! Pods come and go all the time, while the agent is killed and stopped: no ADD fails for good,
//! nothing leaks, memory stays.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bpf_tests::cri::{Bed, Containerd, Plugins, PodRequest, Setup};
use serde_json::Value;

use crate::census::{Census, exactly};
use crate::containers::{Container, Containers};
use crate::driver::Network;
use crate::scene::{Scene, addresses};
use crate::table::Times;
use crate::wait::{RETRY, by_length};

/// Pods at a time, and for how long, in an ordinary run and in a full one.
const PODS: (usize, usize) = (30, 250);
const TIME: (Duration, Duration) = (Duration::from_secs(60), Duration::from_mins(10));
/// How often the agent is restarted.
const RESTART: Duration = Duration::from_secs(20);
/// Who adds and deletes at the same time.
const WORKERS: usize = 3;
/// How much more memory an agent may have than the one that ran first, in percent.
const GROWTH: u64 = 20;
/// How old an attachment has to be before GC takes it: the agent's patience with a list that is
/// older than an ADD.
const YOUNG: Duration = Duration::from_secs(30);

/// What workers share.
struct Soak<'a> {
    network: &'a Network,
    node: &'a bpf_tests::fabric::Netns,
    containers: &'a Containers,
    pods: usize,
    ended: AtomicBool,
    held: Mutex<Vec<(Container, Value)>>,
    adds: Mutex<Vec<Duration>>,
    dels: Mutex<Vec<Duration>>,
    refused: AtomicUsize,
}

impl Soak<'_> {
    /// Deletes the oldest once there are enough, and adds one, until the end.
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
            // Idempotent: what was added is found.
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

/// Pods by containerd, one after the other, until the end; how many, and how many were refused
/// first.
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

#[test]
fn pods_come_and_go_while_the_agent_restarts() {
    let (pods, time) = (by_length(PODS.0, PODS.1), by_length(TIME.0, TIME.1));
    let scene = Scene::ready().unwrap();
    let census = Census::of_empty(&scene).unwrap();
    let network = scene.network("1.1.0", Vec::new()).unwrap();
    let containers = Containers::new(&scene);
    let ours = ["towpath-cni", "towpath-ipam"].map(|name| scene.plugins().join(name));
    let mut of_containerd = network.clone();
    "by-containerd".clone_into(&mut of_containerd.name);
    of_containerd.version = "1.0.0".to_owned();
    let setup = Setup {
        containerd: Containerd::One,
        plugins: Plugins::Old,
        own_plugins: ours.into(),
        networks: &[("runc", of_containerd.list())],
    };
    let bed = Bed::start(&scene.fabric, &setup).unwrap();
    // Nobody will ever delete this one.
    let forgotten = containers.take().unwrap();
    let begun = Instant::now();
    network
        .add(&scene.fabric.node, &forgotten.attachment)
        .unwrap();

    let Scene { mut fabric } = scene;
    let bpf_tests::fabric::Fabric { agent, node, .. } = &mut fabric;
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
    let mut used = Vec::new();
    let mut restarts = 0;
    let by_cri = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(|| soak.work())).collect();
        let by_cri = scope.spawn(|| by_containerd(&bed, &soak.ended));
        let failed = |workers: &[thread::ScopedJoinHandle<Result<()>>]| {
            workers.iter().any(thread::ScopedJoinHandle::is_finished)
        };
        while begun.elapsed() < time && !failed(&workers) {
            let next = Instant::now() + RESTART;
            while Instant::now() < next && begun.elapsed() < time && !failed(&workers) {
                thread::sleep(Duration::from_millis(200));
            }
            used.push(memory(agent.id().unwrap()).unwrap());
            // By turns in order and as a crash.
            if restarts % 2 == 0 {
                agent.kill().unwrap();
            } else {
                agent.stop().unwrap();
            }
            agent.start(node, &[]).unwrap();
            restarts += 1;
        }
        soak.ended.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap().unwrap();
        }
        by_cri.join().unwrap()
    });
    let (by_cri, cri_refused) = by_cri.unwrap();
    let Soak {
        held,
        adds,
        dels,
        refused,
        ..
    } = soak;
    let (held, adds, dels) = (
        held.into_inner().unwrap(),
        adds.into_inner().unwrap(),
        dels.into_inner().unwrap(),
    );
    fabric.wait_until_ready().unwrap();
    let scene = Scene { fabric };

    println!(
        "{pods} pods for {} s, {restarts} restarts of the agent",
        time.as_secs()
    );
    println!(
        "{}\n{}\n{}",
        Times::header(),
        Times::of(adds).row("ADD"),
        Times::of(dels).row("DEL")
    );
    println!(
        "{} ADDs were refused at first and none for good; {by_cri} pods by containerd, {cri_refused} \
         of their ADDs refused at first",
        refused.into_inner()
    );
    println!("resident memory before each restart, in KiB: {used:?}");
    let all: Vec<_> = held.iter().map(|(container, _)| container.id()).collect();
    exactly(&scene, &[all.clone(), vec![forgotten.id()]].concat()).unwrap();
    assert!(begun.elapsed() > YOUNG);
    let known: Vec<_> = held
        .iter()
        .map(|(container, _)| &container.attachment)
        .collect();
    network.collect(&scene.fabric.node, &known).unwrap();
    exactly(&scene, &all).unwrap();
    for (container, result) in &held {
        network
            .del(&scene.fabric.node, &container.attachment, Some(result))
            .unwrap();
    }
    census.nothing_left(&scene).unwrap();
    let (first, last) = (used[0], used[used.len() - 1]);
    assert!(
        last * 100 <= first * (100 + GROWTH),
        "memory grows: {used:?}"
    );
    drop(bed);
    scene.fabric.finish().unwrap();
}
