//! Faults of nodes: a full disk, damaged files, removed namespaces, concurrent calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use testkit::random::Random;

use crate::census::{Census, exactly, files};
use crate::containers::{Container, Containers};
use crate::driver::{Attachment, Network, refusal};
use crate::scene::{Scene, addresses};
use crate::wait::RETRY;

/// Rounds of concurrent calls.
const ROUNDS: usize = 15;
/// Size of a small disk.
const ROOM: &str = "size=64k";

struct Stage {
    scene: Scene,
    network: Network,
    containers: Containers,
}

impl Stage {
    fn of(scene: Scene) -> Self {
        let network = scene.network("1.1.0", Vec::new()).unwrap();
        let containers = Containers::new(&scene);
        Self {
            scene,
            network,
            containers,
        }
    }

    fn new() -> Self {
        Self::of(Scene::ready().unwrap())
    }

    fn added(&self) -> (Container, Value) {
        let container = self.containers.take().unwrap();
        let result = self.add(&container).unwrap();
        (container, result)
    }

    fn add(&self, container: &Container) -> Result<Value> {
        self.network
            .add(&self.scene.fabric.node, &container.attachment)
    }

    fn del(&self, container: &Container) -> Result<()> {
        self.network
            .del(&self.scene.fabric.node, &container.attachment, None)
    }
}

/// Mounts a small tmpfs.
fn small_disk(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    mount(
        Some("small"),
        folder,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(ROOM),
    )
    .unwrap();
}

/// Fills the rest of a disk.
fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("filler");
    let mut size = 64 * 1024;
    while size > 0 {
        let mut text = fs::read(&path).unwrap_or_default();
        text.extend(vec![0; size]);
        if fs::write(&path, text).is_err() {
            size /= 2;
        }
    }
    path
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let mut scene = Scene::create().unwrap();
    let (state, queue) = (scene.fabric.file("small"), scene.fabric.file("small-queue"));
    small_disk(&state);
    small_disk(&queue);
    scene
        .fabric
        .agent
        .configure(&json!({
            "state-dir": state, "cni": {"pending-deletes": queue.join("pending-deletes")}
        }))
        .unwrap();
    scene.fabric.start_agent().unwrap();
    let mut stage = Stage::of(scene);
    stage.network.plugins[0]["state-dir"] = json!(queue);
    let census = Census::of_empty(&stage.scene).unwrap();
    let (resident, _) = stage.added();
    let (leaving, _) = stage.added();
    let filler = fill(&state);
    let late = stage.containers.take().unwrap();
    let error = stage.add(&late).unwrap_err();
    println!("ADD with a full disk: {error:#}");
    exactly(&stage.scene, &[resident.id(), leaving.id()]).unwrap();
    // A pod that ends frees some space, and must not be held back.
    let gone = stage.del(&leaving);
    println!("DEL with a full disk: {gone:?}");
    fs::remove_file(filler).unwrap();
    if gone.is_err() {
        stage.del(&leaving).unwrap();
    }
    exactly(&stage.scene, &[resident.id()]).unwrap();
    let network = &stage.network;
    network
        .add_again(&stage.scene.fabric.node, &late.attachment, RETRY)
        .unwrap();
    exactly(&stage.scene, &[resident.id(), late.id()]).unwrap();

    // No space for the queue, and no agent: the runtime gets an error, and retries.
    stage.scene.fabric.agent.kill().unwrap();
    let filler = fill(&queue);
    let error = stage.del(&late).unwrap_err();
    println!("DEL without an agent and a full disk: {error:#}");
    assert!(refusal(&error).code.is_some(), "{error:#}");
    fs::remove_file(filler).unwrap();
    stage.del(&late).unwrap();
    stage.scene.fabric.start_agent().unwrap();
    exactly(&stage.scene, &[resident.id()]).unwrap();
    stage.del(&resident).unwrap();
    census.nothing_left(&stage.scene).unwrap();
    stage.scene.fabric.finish().unwrap();
}

/// Every file below a folder.
fn all_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(all_files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A method to damage a file.
type Damage = (&'static str, fn(&[u8]) -> Vec<u8>);

const DAMAGES: [Damage; 4] = [
    ("empty", |_| Vec::new()),
    ("cut in half", |text| text[..text.len() / 2].to_vec()),
    ("zeroes", |text| vec![0; text.len()]),
    ("other text", |_| {
        b"{\"version\": 1, \"leases\": 7}".to_vec()
    }),
];

#[test]
fn damaged_state_costs_no_pod_its_address() {
    let mut stage = Stage::new();
    let census = Census::of_empty(&stage.scene).unwrap();
    let residents = [stage.added(), stage.added(), stage.added()];
    let state = stage.scene.fabric.agent.state_dir();
    for (name, damage) in DAMAGES {
        // The file of the leases; the endpoints' own records are damaged below.
        let of_leases = |path: &PathBuf| !path.to_string_lossy().contains("endpoints/");
        let damaged: Vec<_> = all_files(&state).into_iter().filter(of_leases).collect();
        assert!(!damaged.is_empty(), "{state:?}");
        stage.scene.fabric.agent.kill().unwrap();
        for path in &damaged {
            let text = fs::read(path).unwrap();
            fs::write(path, damage(&text)).unwrap();
        }
        println!("{name}: {damaged:?}");
        stage.scene.fabric.start_agent().unwrap();
        let (guest, result) = stage.added();
        let taken: BTreeSet<_> = residents
            .iter()
            .flat_map(|(_, r)| addresses(r).unwrap())
            .collect();
        let given = addresses(&result).unwrap();
        assert!(
            given.iter().all(|address| !taken.contains(address)),
            "{name}: {given:?}"
        );
        let ids: Vec<_> = residents
            .iter()
            .map(|(c, _)| c.id())
            .chain([guest.id()])
            .collect();
        exactly(&stage.scene, &ids).unwrap();
        for (container, result) in &residents {
            let again = stage.add(container).unwrap();
            assert_eq!(
                addresses(&again).unwrap(),
                addresses(result).unwrap(),
                "{name}"
            );
        }
        stage.del(&guest).unwrap();
    }
    for (container, _) in &residents {
        stage.del(container).unwrap();
    }
    census.nothing_left(&stage.scene).unwrap();
    stage.scene.fabric.finish().unwrap();
}

#[test]
fn damaged_records_and_queued_dels_do_not_hold_back_the_node() {
    let mut stage = Stage::new();
    let census = Census::of_empty(&stage.scene).unwrap();
    let mut known = Vec::new();
    for (name, damage) in DAMAGES {
        let (container, result) = stage.added();
        let state = stage.scene.fabric.agent.state_dir();
        let of_endpoints = |path: &PathBuf| path.to_string_lossy().contains("endpoints/");
        let records: Vec<_> = all_files(&state).into_iter().filter(of_endpoints).collect();
        stage.scene.fabric.agent.kill().unwrap();
        for path in &records {
            let text = fs::read(path).unwrap();
            fs::write(path, damage(&text)).unwrap();
        }
        let queue = stage.scene.queue();
        fs::create_dir_all(&queue).unwrap();
        fs::write(
            queue.join("0123456789abcdef.json"),
            damage(b"{\"version\": 1}"),
        )
        .unwrap();
        stage.scene.fabric.start_agent().unwrap();
        println!("{name}: {records:?}");
        // A runtime that still has the pod adds it again, or deletes it.
        let again = stage
            .add(&container)
            .map(|again| addresses(&again).unwrap());
        println!("{name}: ADD again: {again:?}, was {:?}", addresses(&result));
        stage.del(&container).unwrap();
        exactly(&stage.scene, &[]).unwrap();
        known.push(container);
    }
    for path in files(&stage.scene.queue(), "corrupt").unwrap() {
        fs::remove_file(path).unwrap();
    }
    census.nothing_left(&stage.scene).unwrap();
    stage.scene.fabric.finish().unwrap();
}

#[test]
fn a_namespace_that_went_first_leaves_nothing() {
    let mut stage = Stage::new();
    let census = Census::of_empty(&stage.scene).unwrap();
    // DEL with the path of a removed namespace, without one, and without an agent.
    for case in 0..3 {
        let (container, result) = stage.added();
        let mut attachment = container.attachment.clone();
        drop(container);
        if case == 1 {
            attachment.netns = PathBuf::new();
        }
        if case == 2 {
            stage.scene.fabric.agent.kill().unwrap();
        }
        let node = &stage.scene.fabric.node;
        stage.network.del(node, &attachment, Some(&result)).unwrap();
        stage.network.del(node, &attachment, None).unwrap();
        if case == 2 {
            stage.scene.fabric.start_agent().unwrap();
        }
        exactly(&stage.scene, &[]).unwrap();
    }
    // ADD for a namespace that does not exist.
    let missing = Attachment::new("missing", Path::new("/run/netns/towpath-no-such"));
    let node = &stage.scene.fabric.node;
    let error = stage.network.add(node, &missing).unwrap_err();
    println!("ADD without a namespace: {error:#}");
    exactly(&stage.scene, &[]).unwrap();
    census.nothing_left(&stage.scene).unwrap();
    stage.scene.fabric.finish().unwrap();
}

#[test]
fn calls_for_one_container_that_meet_end_in_order() {
    let stage = Stage::new();
    let census = Census::of_empty(&stage.scene).unwrap();
    let node = &stage.scene.fabric.node;
    let mut random = Random::new(6);
    for round in 0..ROUNDS {
        let container = stage.containers.take().unwrap();
        let attachment = &container.attachment;
        let running = [(); 2].map(|()| stage.network.start_add(node, attachment).unwrap());
        let answers = running.map(crate::driver::Running::wait);
        let given: BTreeSet<_> = answers
            .iter()
            .map(|answer| match answer {
                Ok(result) => addresses(result).unwrap(),
                Err(error) => panic!("two ADDs at once: {error:#}"),
            })
            .collect();
        assert_eq!(given.len(), 1, "round {round}: {given:?}");
        exactly(&stage.scene, &[container.id()]).unwrap();
        stage.del(&container).unwrap();
        exactly(&stage.scene, &[]).unwrap();
        stage.containers.give_back(container);
    }
    let mut empty = 0;
    for _ in 0..ROUNDS {
        let container = stage.containers.take().unwrap();
        let adding = stage
            .network
            .start_add(node, &container.attachment)
            .unwrap();
        // At a random time in an ADD, which takes some tens of milliseconds.
        thread::sleep(Duration::from_micros(random.number() % 20_000));
        stage.del(&container).unwrap();
        let added = adding.wait();
        let endpoints = stage
            .scene
            .fabric
            .agent
            .ask("GET", "/v1/endpoints", None)
            .unwrap();
        let endpoints = endpoints.as_array().unwrap().len();
        match (&added, endpoints) {
            // The DEL came after it, or reverted what it had begun.
            (_, 0) => empty += 1,
            // The DEL came first, and found nothing.
            (Ok(_), 1) => {}
            (Err(error), _) => panic!("a failed ADD left an endpoint: {error:#}"),
            (Ok(_), _) => panic!("{endpoints} endpoints"),
        }
        stage.del(&container).unwrap();
        exactly(&stage.scene, &[]).unwrap();
        stage.containers.give_back(container);
    }
    println!("{ROUNDS} DELs during ADD: {empty} came after it began");
    census.nothing_left(&stage.scene).unwrap();
    stage.scene.fabric.finish().unwrap();
}

/// The soak covers a GC that removes something: no attachment is old enough here.
#[test]
fn a_stale_gc_takes_nothing_that_lives() {
    let stage = Stage::new();
    let census = Census::of_empty(&stage.scene).unwrap();
    let node = &stage.scene.fabric.node;
    let (kept, _) = stage.added();
    let (young, _) = stage.added();
    let mut elsewhere = stage.network.clone();
    "elsewhere".clone_into(&mut elsewhere.name);
    let other = stage.containers.take().unwrap();
    elsewhere.add(node, &other.attachment).unwrap();
    let all = [kept.id(), young.id(), other.id()];
    // The lists are older than the young attachments, and from a runtime with one network.
    stage.network.collect(node, &[&kept.attachment]).unwrap();
    exactly(&stage.scene, &all).unwrap();
    elsewhere.collect(node, &[]).unwrap();
    exactly(&stage.scene, &all).unwrap();
    // A young attachment whose namespace is gone has no owner.
    let gone = stage.containers.take().unwrap();
    stage.add(&gone).unwrap();
    drop(gone);
    stage.network.collect(node, &[]).unwrap();
    exactly(&stage.scene, &all).unwrap();
    for container in [&kept, &young, &other] {
        stage.del(container).unwrap();
    }
    census.nothing_left(&stage.scene).unwrap();
    stage.scene.fabric.finish().unwrap();
}
