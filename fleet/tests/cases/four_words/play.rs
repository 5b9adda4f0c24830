//! An agent of Cilium 1.19 and operators, interleaved at random: no pod's address is released.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use fleet::{ReleaseMode, Settings};
use ipam::Time;
use serde_json::{Map, Value, json};

use super::super::bed::{Bed, CLUSTER, Fault, Planned, world};
use super::super::protocol::Random;

/// Number of random plays, and of the steps of each.
const EXTENT: (u64, u64) = (6, 2_000);

/// The agent. It allocates addresses by the object that it has read, and withholds those with an
/// entry in `release-ips`.
#[derive(Default)]
struct Agent {
    seen: Value,
    pods: BTreeSet<String>,
}

fn keys(map: &Value) -> BTreeSet<String> {
    let entries = map.as_object().into_iter().flat_map(Map::keys);
    entries.cloned().collect()
}

fn pick(all: impl Iterator<Item = String>, random: &mut Random) -> Option<String> {
    let all: Vec<String> = all.collect();
    let count = u64::try_from(all.len()).unwrap();
    (count > 0).then(|| all[usize::try_from(random.below(count)).unwrap()].clone())
}

impl Agent {
    fn add(&mut self, random: &mut Random) {
        let taken = keys(&self.seen["status"]["ipam"]["release-ips"]);
        let pool = keys(&self.seen["spec"]["ipam"]["pool"]).into_iter();
        let free = pool.filter(|it| !taken.contains(it) && !self.pods.contains(it));
        self.pods.extend(pick(free, random));
    }

    fn remove(&mut self, random: &mut Random) {
        if let Some(address) = pick(self.pods.iter().cloned(), random) {
            self.pods.remove(&address);
        }
    }

    /// Answers by the object that it has read. Its own allocations follow the answers at once.
    /// Returns the number of addresses that it refuses to release.
    fn write(&mut self, bed: &mut Bed, is_lost: bool) -> usize {
        let pool = keys(&self.seen["spec"]["ipam"]["pool"]);
        let mut used: Map<String, Value> = Map::new();
        for address in keys(&self.seen["status"]["ipam"]["used"]) {
            used.insert(address, Value::Null);
        }
        for address in &self.pods {
            used.insert(address.clone(), json!({"owner": "a/b"}));
        }
        let mut kept = 0;
        let mut answers = Map::new();
        let entries = self.seen["status"]["ipam"]["release-ips"].as_object();
        for (address, word) in entries.into_iter().flatten() {
            let answer = match word.as_str() {
                Some("marked-for-release") if self.pods.contains(address) => {
                    kept += 1;
                    json!("do-not-release")
                }
                Some("marked-for-release") if pool.contains(address) => json!("ready-for-release"),
                Some("released") if !pool.contains(address) => Value::Null,
                _ => continue,
            };
            answers.insert(address.clone(), answer);
        }
        for (address, answer) in &answers {
            if !answer.is_null() {
                self.seen["status"]["ipam"]["release-ips"][address] = answer.clone();
            }
        }
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        if version(&bed.api.objects["one"]) != version(&self.seen) {
            return 0;
        }
        let ipam = json!({"used": used, "release-ips": answers});
        bed.change("one", &json!({"status": {"ipam": ipam}}));
        if !is_lost {
            self.seen = bed.api.objects["one"].clone();
        }
        kept
    }
}

/// Injects a fault into the next call or write of the leader.
fn disturb(bed: &mut Bed, random: &mut Random) {
    let whats = ["UnassignPrivateIpAddresses", "AssignPrivateIpAddresses"];
    let fault = Fault::ALL[usize::try_from(random.below(4)).unwrap()];
    bed.faults.planned = Some(Planned {
        what: whats[usize::try_from(random.below(2)).unwrap()],
        skip: 0,
        fault,
        kills: random.below(3) == 0,
    });
}

/// Runs one play. Returns the number of calls that unassigned blocks, and that of addresses that
/// the agent refused to release.
fn play(seed: u64, steps: u64) -> (usize, usize) {
    let settings = Settings {
        release: ReleaseMode::On,
        ..Settings::of(CLUSTER)
    };
    let mut bed = Bed::with(&world(), settings);
    bed.add_node("one", "m5.large", "subnet-a");
    let no_request = json!({"spec": {"ipam": {"pools": null}}});
    bed.change("one", &no_request);
    bed.run(Duration::from_secs(30));
    bed.lead();
    let mut random = Random::new(seed);
    let (mut agent, mut wanted, mut kept) = (Agent::default(), 6, 0);
    let mut away = Time::default();
    for _ in 0..steps {
        match random.below(100) {
            0..30 => agent.seen = bed.api.objects["one"].clone(),
            30..55 => kept += agent.write(&mut bed, random.below(5) == 0),
            55..70 if agent.pods.len() < wanted => agent.add(&mut random),
            55..70 => agent.remove(&mut random),
            70 => wanted = usize::try_from(random.below(20)).unwrap(),
            71 if bed.lease.is_led => disturb(&mut bed, &mut random),
            72 if bed.lease.is_led => {
                bed.kill();
                away = bed.now.after(random.seconds(300));
            }
            _ => {
                let most = if random.below(4) == 0 { 90 } else { 8 };
                bed.run(Duration::from_secs(1) + random.seconds(most));
            }
        }
        if !bed.lease.is_led && bed.now >= away {
            bed.run(Duration::from_secs(15));
            bed.lead();
        }
        let enis = bed.cloud.interfaces();
        let nets: Vec<_> = enis.flat_map(|eni| eni.addresses.nets()).collect();
        for address in &agent.pods {
            let address: IpAddr = address.parse().unwrap();
            assert!(
                nets.iter().any(|net| net.contains(&address)),
                "play {seed}: {address} is given and unassigned at {:?}",
                bed.now
            );
        }
    }
    (bed.calls("UnassignPrivateIpAddresses"), kept)
}

#[test]
fn no_address_of_a_pod_is_taken_from_an_agent_that_answers_for_each() {
    let (plays, steps) = EXTENT;
    let all: Vec<_> = (0..plays).map(|seed| play(seed, steps)).collect();
    let taken: usize = all.iter().map(|(taken, _)| taken).sum();
    let kept: usize = all.iter().map(|(_, kept)| kept).sum();
    assert!(taken > 10 && kept > 3, "{taken} taken, {kept} kept");
}
