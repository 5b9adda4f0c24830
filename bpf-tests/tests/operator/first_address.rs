//! The time from a node's object to the first address in its status.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testkit::cloud::audit::published;
use testkit::fabric::eventually::eventually;

use super::bed::{Bed, NODES, SOON, node_name, world};

/// The longest time of 99 of 100 nodes, beside that of the cloud.
const FIRST: Duration = Duration::from_secs(3);
/// Of so many nodes, one has its addresses on an ENI that has to be created.
const SHARE: usize = 5;
/// The longest times of the cloud in milliseconds: until calls know an ENI that was created, until
/// it is attached, until it shows that, and the age of what a read sees.
const CREATED: u64 = 2_000;
const ATTACHES: u64 = 3_000;
const ATTACHED: u64 = 1_000;
const AGE: u64 = 2_000;

/// A watch of all objects, and the time of the first address of each.
#[derive(Default)]
struct Watch {
    seen: Mutex<BTreeMap<String, Instant>>,
    curl: Mutex<Option<Child>>,
    is_over: AtomicBool,
}

impl Watch {
    /// Watches until the end. The server may end a watch before, so another one follows.
    fn follow(&self, bed: &Bed) -> Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            let mut curl = bed.plane.server.admin().watch(NODES)?;
            let changes = curl.stdout.take().context("it is piped")?;
            *locked(&self.curl) = Some(curl);
            for line in BufReader::new(changes).lines().map_while(Result::ok) {
                self.see(&line);
            }
            self.kill()?;
        }
        Ok(())
    }

    fn see(&self, line: &str) {
        let change: Value = serde_json::from_str(line).unwrap_or_default();
        let node = &change["object"];
        let name = node["metadata"]["name"].as_str();
        if let Some(name) = name.filter(|_| !published(node).is_empty()) {
            let mut seen = locked(&self.seen);
            seen.entry(name.to_owned()).or_insert_with(Instant::now);
        }
    }

    fn kill(&self) -> Result<()> {
        if let Some(mut curl) = locked(&self.curl).take() {
            curl.kill()?;
            curl.wait()?;
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.kill()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates nodes one after the other, and waits for the first address of each. Returns the time of
/// each.
fn create(bed: &Bed, watch: &Watch, nodes: usize) -> Result<Vec<Duration>> {
    let admin = bed.plane.server.admin();
    let mut created = Vec::new();
    for number in 0..nodes {
        let mut object = bed.add_host(number, 8)?;
        if number % SHARE == 0 {
            // The primary ENI gives none.
            object["spec"]["eni"]["first-interface-index"] = json!(1);
        }
        created.push(Instant::now());
        admin.post(NODES, &object)?.expect(201)?;
    }
    let look = || {
        let seen = locked(&watch.seen).clone();
        let times = created.iter().enumerate();
        let times = times.map(|(number, created)| {
            let seen = seen.get(&node_name(number))?;
            Some(seen.duration_since(*created))
        });
        let times: Option<Vec<Duration>> = times.collect();
        times.with_context(|| format!("{} nodes have an address", seen.len()))
    };
    Ok(eventually(2 * SOON, "each node has an address", look)?.0)
}

/// The time that 99 of 100 do not exceed.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[(times.len() * 99).div_ceil(100) - 1]
}

/// A cloud whose account has room for so many nodes at once, and the operator's settings for that.
fn beds(nodes: usize) -> (Value, Value) {
    let mut world = world(nodes);
    world["subnets"][0]["ipv4"] = json!("10.0.128.0/17");
    let (burst, rate) = (4 * nodes, nodes);
    let changes = [
        ("create", "CreateNetworkInterface"),
        ("attach", "AttachNetworkInterface"),
        ("modify", "ModifyNetworkInterfaceAttribute"),
        ("assign", "AssignPrivateIpAddresses"),
    ];
    let of_cloud = changes.map(|(_, it)| (it.to_owned(), json!({"burst": burst, "refill": rate})));
    let of_operator =
        changes.map(|(it, _)| (it.to_owned(), json!({"burst": burst, "per-second": rate})));
    world["settings"] = json!({
        "lag_listing": [0, AGE], "lag_by_id": [0, AGE], "unknown": [0, CREATED],
        "attach": [500, ATTACHES], "attached": [0, ATTACHED],
        "rates": serde_json::Map::from_iter(of_cloud)
    });
    let settings = json!({
        "log-level": "info", "ec2": {"rates": serde_json::Map::from_iter(of_operator)}
    });
    (world, settings)
}

#[test]
fn the_first_address_of_a_node_comes_within_three_seconds_and_the_clouds_time() {
    let is_full = std::env::var_os("TOWPATH_FULL").is_some();
    let nodes = if is_full { 500 } else { 50 };
    let (world, settings) = beds(nodes + 1);
    let bed = Bed::of_world(world).unwrap();
    let operator = bed.start(0, &settings).unwrap();
    // With its first node, the operator reads the VPC.
    bed.add_node(nodes, 8).unwrap();
    bed.node_has(nodes, 8).unwrap();
    let watch = Watch::default();
    let (created, followed) = thread::scope(|scope| {
        let follower = scope.spawn(|| watch.follow(&bed));
        let created = create(&bed, &watch, nodes).inspect_err(|_| println!("{}", bed.logs()));
        (created, watch.end().and(follower.join().unwrap()))
    });
    followed.unwrap();
    let times = created.unwrap();
    let of = |has_new_eni: bool| {
        let all = times.iter().enumerate();
        let chosen = all.filter(|(number, _)| (number % SHARE == 0) == has_new_eni);
        p99(chosen.map(|(_, time)| *time).collect())
    };
    let (assigned, attached) = (of(false), of(true));
    let cloud = Duration::from_millis(CREATED + AGE + ATTACHES + ATTACHED + AGE);
    println!("p99 of {nodes} nodes: {assigned:?}, with a new ENI {attached:?}");
    assert!(assigned <= FIRST, "{assigned:?}");
    assert!(
        attached <= FIRST + cloud,
        "{attached:?}, {cloud:?} of them the cloud's"
    );
    let made = bed.cloud.peek(|cloud| {
        let log = cloud.log().filter(|it| it.error.is_none());
        log.filter(|it| it.action == "AttachNetworkInterface")
            .count()
    });
    assert_eq!(made, nodes.div_ceil(SHARE));
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}
