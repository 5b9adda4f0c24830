//! An agent of Cilium 1.20 or later. It takes its blocks from `status.eni.enis`, and writes those
//! that it keeps into `spec.ipam.pools.allocated`.
//!
//! It uses a block again before it has written so, and it does not wait for the API server. Its
//! writes are at least [`PAUSE`] apart.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipam::Time;
use ipnet::IpNet;
use kubernetes::node::marks;
use serde_json::{Value, json};

use super::super::bed::Bed;
use super::foreign::{claimed, shown, size};
use super::play::Random;

/// The node of this agent.
pub(super) const NAME: &str = "three";
/// The shortest time between two writes.
const PAUSE: Duration = Duration::from_secs(15);
/// The agent writes so often even without a change.
const REFRESH: Duration = Duration::from_mins(1);
/// An allocation that failed is demand for so long.
const PENDING: Duration = Duration::from_mins(5);
/// The spare addresses.
const SPARE: u64 = 8;
/// The longest time for which the agent does not reach the API server, in seconds. A write that
/// fails has its next turn after [`REFRESH`], if no pod comes or goes, and the operator waits for
/// no agent that long. Of two writes, the second one gets through.
const OUTAGE: u64 = 14;

#[derive(Default)]
pub(super) struct Cilium {
    /// The object as it was seen last.
    seen: Option<Value>,
    /// The blocks for pods, in the order of use.
    blocks: Vec<IpNet>,
    /// Blocks given back that the object still shows.
    released: BTreeSet<IpNet>,
    /// Blocks with pods that the object shows no more.
    removed: BTreeSet<IpNet>,
    pub(super) pods: BTreeSet<IpAddr>,
    /// Failed allocations, by the time at which they are forgotten.
    pending: Vec<Time>,
    is_triggered: bool,
    written: Time,
    cut_until: Time,
    /// Blocks used again that had been given back.
    pub(super) reused: usize,
    /// Blocks with pods whose release was under way.
    pub(super) raced: usize,
}

fn version(object: &Value) -> &str {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.unwrap_or_default()
}

impl Cilium {
    /// Works for a moment.
    pub(super) fn work(&mut self, bed: &mut Bed, random: &mut Random) {
        let now = bed.now;
        let is_chance = self.is_late(bed) || random.below(50) == 0;
        if is_chance && now.since(self.cut_until) >= REFRESH {
            let outage = Duration::from_secs(OUTAGE / 2) + random.seconds(OUTAGE / 2);
            self.cut_until = now.after(outage);
        }
        match random.below(200) {
            0..8 => self.add_pods(1 + random.below(8), random, now),
            8..24 => self.remove_pods(1 + random.below(12), random),
            24 => self.restart(bed),
            _ if now < self.cut_until && random.below(4) > 0 => {
                self.add_pods(1 + random.below(24), random, now);
            }
            _ => {}
        }
        if now >= self.cut_until {
            self.see(bed);
        }
        self.run(bed, random);
    }

    /// Works for a moment as long as nothing goes wrong and no pod comes or goes.
    pub(super) fn rest(&mut self, bed: &mut Bed, random: &mut Random) {
        self.cut_until = Time::default();
        self.see(bed);
        self.run(bed, random);
    }

    /// True if the operator releases a block, and the agent has not heard of that.
    fn is_late(&self, bed: &Bed) -> bool {
        let marked = bed.api.objects.get(NAME).map(marks::blocks);
        let marked = marked.unwrap_or_default();
        marked.iter().any(|it| self.released.contains(it))
    }

    fn add_pods(&mut self, count: u64, random: &mut Random, now: Time) {
        for _ in 0..count {
            let usable = self.blocks.iter().filter(|it| !self.removed.contains(it));
            let first = usable.copied().find(|it| self.free(it) > 0);
            match first {
                Some(block) => {
                    let hosts = block.subnets(block.max_prefix_len()).unwrap();
                    let free = hosts.map(|host| host.addr());
                    let free: Vec<_> = free.filter(|it| !self.pods.contains(it)).collect();
                    let which = random.below(u64::try_from(free.len()).unwrap());
                    self.pods.insert(free[usize::try_from(which).unwrap()]);
                }
                None => self.pending.push(now.after(PENDING)),
            }
        }
        self.is_triggered = true;
    }

    fn remove_pods(&mut self, count: u64, random: &mut Random) {
        for _ in 0..count.min(u64::try_from(self.pods.len()).unwrap()) {
            let which = random.below(u64::try_from(self.pods.len()).unwrap());
            let pod = self.pods.iter().nth(usize::try_from(which).unwrap());
            let pod = *pod.unwrap();
            self.pods.remove(&pod);
        }
        self.is_triggered = true;
    }

    /// The process ends and starts again. It takes over the pods' addresses in blocks that the
    /// object shows, and would lose others. So it goes on while a claim of theirs is not written.
    fn restart(&mut self, bed: &Bed) {
        let Some(object) = bed.api.objects.get(NAME) else {
            return;
        };
        let (shown, claimed) = (shown(object), claimed(object));
        let is_safe = |it: &IpNet| shown.contains(it) && claimed.contains(it);
        let mut used = self.blocks.iter().filter(|it| self.free(it) < size(it));
        if used.all(is_safe) {
            *self = Self {
                pods: std::mem::take(&mut self.pods),
                cut_until: self.cut_until,
                reused: self.reused,
                raced: self.raced,
                ..Self::default()
            };
        }
    }

    /// The free addresses of a block.
    fn free(&self, block: &IpNet) -> u64 {
        let used = self.pods.iter().filter(|it| block.contains(*it)).count();
        size(block) - u64::try_from(used).unwrap()
    }

    /// Takes in the object, or creates it if there is none.
    fn see(&mut self, bed: &mut Bed) {
        let Some(object) = bed.api.objects.get(NAME) else {
            bed.add_object(NAME, "m5.large", "subnet-a");
            return;
        };
        if version(object) == self.seen.as_ref().map(version).unwrap_or_default() {
            return;
        }
        self.is_triggered |= self.seen.is_none();
        let marked = marks::blocks(object);
        let mut all = shown(object);
        if all.is_empty() {
            all = claimed(object);
        }
        self.released.retain(|it| all.contains(it));
        let (there, gone): (Vec<IpNet>, Vec<IpNet>) =
            self.blocks.iter().partition(|it| all.contains(it));
        self.blocks = there;
        for block in gone {
            if self.free(&block) < size(&block) {
                self.raced += usize::from(self.removed.insert(block) && marked.contains(&block));
                self.blocks.push(block);
            } else {
                self.removed.remove(&block);
            }
        }
        for block in all {
            if !self.blocks.contains(&block) && !self.released.contains(&block) {
                self.blocks.push(block);
            }
        }
        self.seen = Some(object.clone());
    }

    /// Carries out the job that counts demand, gives blocks back and writes, if it is due.
    fn run(&mut self, bed: &mut Bed, random: &mut Random) {
        let now = bed.now;
        let pause = if self.is_triggered { PAUSE } else { REFRESH };
        if self.seen.is_none() || now.since(self.written) < pause {
            return;
        }
        self.written = now;
        self.is_triggered = false;
        self.pending.retain(|until| *until > now);
        let spare = SPARE + u64::try_from(self.pending.len()).unwrap();
        self.balance(spare);
        let needed = spare + u64::try_from(self.pods.len()).unwrap();
        let pools = json!({
            "requested": [{"pool": "default", "needed": {"ipv4-addrs": needed}}],
            "allocated": [{"pool": "default", "cidrs": self.claims()}],
        });
        let seen = self.seen.as_ref().unwrap();
        let stored = bed.api.objects.get(NAME);
        let is_current = stored.is_some_and(|it| version(it) == version(seen));
        let is_sent = now >= self.cut_until;
        if is_sent && is_current && seen["spec"]["ipam"]["pools"] != pools {
            let patch = json!({"spec": {"ipam": {"pools": pools}}});
            bed.change(NAME, &patch);
            // The answer may be lost. The watch brings the object then.
            if random.below(4) > 0 {
                self.see(bed);
            }
        }
    }

    fn claims(&self) -> BTreeSet<IpNet> {
        self.blocks.iter().copied().collect()
    }

    /// Uses blocks again that were given back, or gives blocks back, so that so many addresses are
    /// free.
    fn balance(&mut self, spare: u64) {
        let mut free: u64 = self.blocks.iter().map(|it| self.free(it)).sum();
        while free < spare {
            let Some(block) = self.released.pop_first() else {
                break;
            };
            self.reused += 1;
            free += size(&block);
            self.blocks.push(block);
        }
        let mut kept = Vec::new();
        for block in std::mem::take(&mut self.blocks).into_iter().rev() {
            let is_unused = self.free(&block) == size(&block);
            if is_unused && free.saturating_sub(size(&block)) >= spare {
                free -= size(&block);
                self.released.insert(block);
            } else {
                kept.push(block);
            }
        }
        self.blocks = kept;
    }

    /// The addresses that it can give or has given, and those that it gave back and still sees.
    pub(super) fn known(&self) -> u64 {
        self.blocks.iter().chain(&self.released).map(size).sum()
    }
}
