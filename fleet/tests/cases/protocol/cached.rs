//! An operator of another project: it goes by objects that it read up to a minute ago, and does not ask
//! for versions before it takes a block.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;

use ec2_fake::{Ask, Assign, Call, Family, Request};
use ipam::Time;
use ipnet::IpNet;
use kubernetes::operation::node::NodeDocument;
use serde_json::{Value, json};

use super::super::bed::{Bed, world};
use super::agent::Agent;
use super::play::Random;

/// Events of a play.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) unassigned: usize,
    pub(super) reclaimed: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.unassigned += other.unassigned;
        self.reclaimed += other.reclaimed;
    }
}

/// The operator.
struct Cached {
    cache: Value,
    read_at: Time,
    /// Blocks that the cache has shown without a claim, since when.
    idle: BTreeMap<IpNet, Time>,
}

impl Cached {
    fn read(&mut self, bed: &Bed) {
        self.cache = bed.api.objects["one"].clone();
        self.read_at = bed.now;
        let claimed = NodeDocument::read(&self.cache).claimed();
        let shown = singles(&self.cache);
        self.idle = shown
            .into_iter()
            .filter(|block| !claimed.contains(block))
            .map(|block| (block, self.idle.get(&block).copied().unwrap_or(bed.now)))
            .collect();
    }

    /// Takes what has been idle for long by the cache, and shows it no more.
    fn work(&mut self, bed: &mut Bed) -> usize {
        let now = bed.now;
        let due = self
            .idle
            .iter()
            .filter(|(_, since)| now.since(**since) >= Duration::from_mins(3));
        let due: BTreeSet<IpNet> = due.map(|(block, _)| *block).collect();
        if due.is_empty() {
            return 0;
        }
        let id = eni(bed);
        let call = Call::Unassign(Assign {
            family: Family::V4,
            eni: id.clone(),
            ask: Ask {
                addresses: due.iter().map(IpNet::addr).collect(),
                ..Ask::default()
            },
            reassign: false,
        });
        let request = Request {
            call,
            dry_run: false,
        };
        drop(bed.cloud.call(bed.at().date, "another", &request));
        show(bed);
        self.read(bed);
        due.len()
    }
}

fn eni(bed: &Bed) -> String {
    bed.cloud.interfaces().next().unwrap().id.clone()
}

fn singles(object: &Value) -> BTreeSet<IpNet> {
    let enis = object["status"]["eni"]["enis"].as_object();
    let lists = enis.into_iter().flatten().map(|(_, eni)| &eni["addresses"]);
    let addresses = lists.filter_map(Value::as_array).flatten();
    addresses
        .map(|address| format!("{}/32", address.as_str().unwrap()).parse().unwrap())
        .collect()
}

/// Shows the node what its ENI has.
fn show(bed: &mut Bed) {
    let eni = bed.cloud.interfaces().next().unwrap();
    let addresses: Vec<String> = eni.blocks.iter().map(|it| it.addr().to_string()).collect();
    let entry = json!({"id": eni.id, "ip": eni.primary, "number": 0, "addresses": addresses});
    let status = json!({"eni": {"enis": {eni.id.clone(): entry}}, "ipam": {"release-ips": null}});
    bed.change("one", &json!({"status": status}));
}

/// Gives the node more addresses where its cache shows that it wants them.
fn grow(bed: &mut Bed, wanted: usize) {
    let has = bed.cloud.interfaces().next().unwrap().blocks.len();
    if has >= wanted.min(9) {
        return;
    }
    let call = Call::Assign(Assign {
        family: Family::V4,
        eni: eni(bed),
        ask: Ask {
            count: wanted.min(9) - has,
            ..Ask::default()
        },
        reassign: false,
    });
    let request = Request {
        call,
        dry_run: false,
    };
    drop(bed.cloud.call(bed.at().date, "another", &request));
    show(bed);
}

pub(super) fn play(seed: u64, steps: u64) -> Counts {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(Duration::from_secs(30));
    let mut agent = Agent::new("one", bed.now);
    let mut random = Random::new(seed);
    let mut counts = Counts::default();
    grow(&mut bed, 9);
    let mut operator = Cached {
        cache: Value::Null,
        read_at: Time::default(),
        idle: BTreeMap::new(),
    };
    let mut late: Vec<(Time, Value)> = Vec::new();
    operator.read(&bed);
    for _ in 0..steps {
        match random.below(10) {
            0 => agent.add_pod(bed.now),
            1 => agent.remove_pod(0, bed.now),
            2 => (0..4).for_each(|_| agent.remove_pod(0, bed.now)),
            3 => agent.observe(&bed.api.objects["one"].clone(), bed.now),
            4..6 => {
                let before = agent.allocator().released().count();
                if let Some(patch) = agent.patch(bed.now) {
                    let after = agent.allocator().released().count();
                    counts.reclaimed += before.saturating_sub(after);
                    late.push((bed.now.after(random.seconds(70)), patch));
                }
            }
            6 => grow(&mut bed, agent.pods.len() + 4),
            _ => bed.run(random.seconds(20)),
        }
        let now = bed.now;
        let due: Vec<_> = late.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, patch) in due {
            let object = &bed.api.objects["one"];
            if object["metadata"]["resourceVersion"] == patch["metadata"]["resourceVersion"] {
                bed.change("one", &json!({"spec": patch["spec"]}));
            }
        }
        if now.since(operator.read_at) >= Duration::from_mins(1) {
            operator.read(&bed);
        }
        counts.unassigned += operator.work(&mut bed);
        let eni = bed.cloud.interfaces().next().unwrap();
        for address in agent.held() {
            let has = eni.nets().any(|net| net.contains(&address));
            assert!(has, "seed {seed}: {address} is given and unassigned");
        }
    }
    counts
}
