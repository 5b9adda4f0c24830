//! An operator of another project. It uses objects that it read up to a minute ago, sees no claim
//! that came and went between two reads, and ignores versions. Nodes with an agent of that project
//! are none of its own here: the two have a race in which a pod's address is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ec2_fake::{Ask, Assign, Call, Family, Request};
use fleet::Part;
use ipam::Time;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::super::bed::Bed;
use super::cilium;
use super::play::Random;

/// Its cache is read again within so many seconds.
const CACHE: u64 = 60;
/// Time after which a block is released that no cached object claims.
const DELAY: Duration = Duration::from_mins(3);

/// A block of an object, by the object's uid.
type Key = (String, IpNet);

pub(super) struct Foreign {
    from: Time,
    pub(super) until: Time,
    next_read: Time,
    cache: BTreeMap<String, Value>,
    /// Blocks without a claim in the cache, each with the time since when.
    idle: BTreeMap<Key, Time>,
    /// Objects whose status is behind EC2, each with the time at which it is written.
    stale: BTreeMap<String, Time>,
}

impl Foreign {
    pub(super) fn new(from: Time, until: Time) -> Self {
        Self {
            from,
            until,
            next_read: from,
            cache: BTreeMap::new(),
            idle: BTreeMap::new(),
            stale: BTreeMap::new(),
        }
    }

    /// Works for a moment. Returns the number of blocks that EC2 took back.
    pub(super) fn work(&mut self, bed: &mut Bed, random: &mut Random) -> usize {
        let now = bed.now;
        if now < self.from || now >= self.until {
            return 0;
        }
        if now >= self.next_read {
            let pause = Duration::from_secs(1) + random.seconds(CACHE);
            self.next_read = now.after(pause);
            self.read(bed);
        }
        let mut taken = 0;
        for (name, object) in self.cache.clone() {
            for block in self.spare(&object, now) {
                if unassign(bed, &name, block) {
                    taken += 1;
                    self.stale
                        .insert(name.clone(), now.after(random.seconds(30)));
                }
            }
        }
        let due: Vec<_> = self.stale.extract_if(.., |_, at| *at <= now).collect();
        for (name, _) in due {
            publish(bed, &name);
        }
        taken
    }

    /// Reads all objects, and writes each status as EC2 has it.
    fn read(&mut self, bed: &mut Bed) {
        let mut names: Vec<String> = bed.api.objects.keys().cloned().collect();
        names.retain(|name| name != cilium::NAME);
        for name in names {
            publish(bed, &name);
        }
        self.cache = bed.api.objects.clone();
        self.cache.remove(cilium::NAME);
        let mut idle = BTreeMap::new();
        for object in self.cache.values() {
            for block in unclaimed(object) {
                let key = (uid(object), block);
                let since = self.idle.get(&key).copied();
                idle.insert(key, since.unwrap_or(bed.now));
            }
        }
        self.idle = idle;
    }

    /// Blocks that the cached object does not need.
    fn spare(&mut self, object: &Value, now: Time) -> Vec<IpNet> {
        let requested = object["spec"]["ipam"]["pools"]["requested"].as_array();
        let needed = requested.into_iter().flatten();
        let needed: u64 = needed
            .filter_map(|it| it["needed"]["ipv4-addrs"].as_u64())
            .sum();
        let all: u64 = shown(object).iter().map(size).sum();
        let mut excess = all.saturating_sub(needed);
        let uid = uid(object);
        let mut spare = Vec::new();
        for block in unclaimed(object) {
            let key = (uid.clone(), block);
            let since = self.idle.get(&key).copied().unwrap_or(now);
            if size(&block) <= excess && now.since(since) >= DELAY {
                excess -= size(&block);
                self.idle.remove(&key);
                spare.push(block);
            }
        }
        spare
    }
}

fn uid(object: &Value) -> String {
    let uid = object["metadata"]["uid"].as_str();
    uid.unwrap_or_default().to_owned()
}

pub(super) fn size(block: &IpNet) -> u64 {
    1 << (block.max_prefix_len() - block.prefix_len())
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(Value::as_str)
}

/// The blocks that an object's status shows.
pub(super) fn shown(object: &Value) -> BTreeSet<IpNet> {
    let enis = object["status"]["eni"]["enis"].as_object();
    let mut all = BTreeSet::new();
    for (_, eni) in enis.into_iter().flatten() {
        let prefixes = texts(&eni["prefixes"]);
        let prefixes: Vec<IpNet> = prefixes.map(|text| text.parse().unwrap()).collect();
        let addresses = texts(&eni["addresses"]);
        let single = addresses.map(|text| IpNet::from(text.parse::<IpAddr>().unwrap()));
        all.extend(single.filter(|it| !prefixes.iter().any(|prefix| prefix.contains(it))));
        all.extend(prefixes);
    }
    all
}

/// The blocks that an object's agent claims.
pub(super) fn claimed(object: &Value) -> BTreeSet<IpNet> {
    let allocated = object["spec"]["ipam"]["pools"]["allocated"].as_array();
    let lists = allocated.into_iter().flatten();
    let texts = lists.flat_map(|entry| texts(&entry["cidrs"]));
    texts.map(|text| text.parse().unwrap()).collect()
}

/// The blocks that an object's status shows and its agent does not claim.
fn unclaimed(object: &Value) -> BTreeSet<IpNet> {
    shown(object)
        .difference(&claimed(object))
        .copied()
        .collect()
}

/// Unassigns a block from the node's ENI in EC2. Returns false if no ENI has it.
fn unassign(bed: &mut Bed, name: &str, block: IpNet) -> bool {
    let instance = format!("i-{name}");
    let owner = bed.cloud.interfaces().find(|eni| {
        let attachment = eni.attachment.as_ref();
        attachment.is_some_and(|it| it.instance == instance)
            && eni.addresses.blocks.contains(&block)
    });
    let Some(eni) = owner.map(|it| it.id.clone()) else {
        return false;
    };
    let mut ask = Ask::default();
    if size(&block) == 1 {
        ask.addresses.push(block.addr());
    } else {
        ask.prefixes.push(block);
    }
    let call = Call::Unassign(Assign {
        family: Family::V4,
        eni,
        ask,
        reassign: false,
    });
    let request = Request {
        call,
        dry_run: false,
    };
    bed.cloud
        .call(bed.at().date, "foreign", &request)
        .outcome
        .is_ok()
}

/// Writes the status of an object from EC2, with an empty release-ips, as this operator does.
fn publish(bed: &mut Bed, name: &str) {
    let Some(object) = bed.api.objects.get(name).cloned() else {
        return;
    };
    let mut enis = Map::new();
    let known = object["status"]["eni"]["enis"].as_object();
    let known = known.into_iter().flatten().map(|(id, _)| id.clone());
    for id in known.filter(|id| bed.cloud.interface(id).is_none()) {
        enis.insert(id, Value::Null);
    }
    let instance = format!("i-{name}");
    for eni in bed.cloud.interfaces() {
        let attachment = eni.attachment.as_ref();
        let Some(attachment) = attachment.filter(|it| it.instance == instance) else {
            continue;
        };
        let entry = &object["status"]["eni"]["enis"][&eni.id];
        let of_v4 = eni
            .addresses
            .blocks
            .iter()
            .filter(|block| block.addr().is_ipv4());
        let addresses = of_v4.clone().flat_map(|block| block.subnets(32).unwrap());
        let addresses: BTreeSet<IpAddr> = addresses.map(|it| it.addr()).collect();
        let prefixes: Vec<&IpNet> = of_v4.filter(|block| size(block) > 1).collect();
        let mut change = match entry {
            Value::Null => {
                json!({"id": eni.id, "ip": eni.addresses.primary, "number": attachment.index})
            }
            entry => entry.clone(),
        };
        change["addresses"] = json!(addresses);
        change["prefixes"] = json!(prefixes);
        if change != *entry {
            enis.insert(eni.id.clone(), change);
        }
    }
    let release = &object["status"]["ipam"]["release-ips"];
    if enis.is_empty() && release.is_null() {
        return;
    }
    let body = json!({
        "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
        "status": {"eni": {"enis": enis}, "ipam": {"release-ips": null}}
    });
    drop(bed.api.patch(name, Part::Status, &body, bed.now));
}
