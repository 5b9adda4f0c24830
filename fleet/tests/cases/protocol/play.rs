//! One play: two agents, one of Cilium, the operators, the API server and EC2.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::ops::AddAssign;
use std::time::Duration;

use fleet::{ReleaseMode, Settings};
use ipam::Time;
use ipnet::IpNet;
use kubernetes::node::marks;
use serde_json::{Value, json};

use super::super::bed::{Bed, CLUSTER, Fault, Planned, world};
use super::agent::Agent;
use super::cilium::{self, Cilium};
use super::foreign::{Foreign, shown, size};

/// The longest time for which an agent does not reach the API server.
const OUTAGE: Duration = Duration::from_mins(10);
/// Time after a restore from a backup in which the operator is at work.
const SETTLED: Duration = Duration::from_mins(2);

/// The agent of Cilium acts so often, and beside the other operator each second.
const HOP: Duration = Duration::from_secs(5);

/// Events of a play.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) unassigned: usize,
    pub(super) reclaimed: usize,
    pub(super) takeovers: usize,
    pub(super) made_again: usize,
    pub(super) late_writes: usize,
    pub(super) late_calls: usize,
    pub(super) restored: usize,
    /// Blocks of a backup that another node has by then.
    pub(super) moved: usize,
    /// Blocks that an operator of another project had taken back.
    pub(super) foreign: usize,
    /// Blocks that Cilium's agent used again, and those with pods whose release was under way.
    pub(super) reused: usize,
    pub(super) raced: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.unassigned += other.unassigned;
        self.reclaimed += other.reclaimed;
        self.takeovers += other.takeovers;
        self.made_again += other.made_again;
        self.late_writes += other.late_writes;
        self.late_calls += other.late_calls;
        self.restored += other.restored;
        self.moved += other.moved;
        self.foreign += other.foreign;
        self.reused += other.reused;
        self.raced += other.raced;
    }
}

/// A small generator of numbers (`SplitMix64`).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub(crate) fn seconds(&mut self, end: u64) -> Duration {
        Duration::from_secs(self.below(end))
    }
}

/// A play.
pub(super) struct Play {
    seed: u64,
    bed: Bed,
    agents: Vec<Agent>,
    cilium: Cilium,
    random: Random,
    /// Agents' writes in flight.
    late: Vec<(Time, String, Value)>,
    /// The operator hears nothing of the API server until then.
    no_leader_until: Time,
    /// The operator of another project that works in place of this one.
    foreign: Option<Foreign>,
    /// The last restore from a backup.
    restored: Option<Time>,
    /// A status may show blocks that EC2 has taken back: another operator was at work, or the API
    /// server was restored.
    may_be_behind: bool,
    /// Objects as they were at times of the last hour.
    backups: VecDeque<(Time, BTreeMap<String, Value>)>,
    counts: Counts,
}

impl Play {
    pub(super) fn new(seed: u64) -> Self {
        let mut settings = Settings::of(CLUSTER);
        settings.release = ReleaseMode::On;
        settings.enis.prefixes = seed.is_multiple_of(2);
        let mut bed = Bed::with(&world(), settings);
        let mut agents = Vec::new();
        for name in ["one", "two"] {
            bed.add_node(name, "m5.large", "subnet-a");
            agents.push(Agent::new(name, bed.now));
        }
        bed.add_node(cilium::NAME, "m5.large", "subnet-a");
        bed.run(Duration::from_secs(30));
        bed.lead();
        Self {
            seed,
            bed,
            agents,
            cilium: Cilium::default(),
            random: Random::new(seed),
            late: Vec::new(),
            no_leader_until: Time::default(),
            foreign: None,
            restored: None,
            may_be_behind: false,
            backups: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Ends the play: everything comes to rest, and is counted.
    pub(super) fn end(mut self) -> Counts {
        self.foreign = None;
        self.late.clear();
        self.bed.faults.planned = None;
        if !self.bed.lease.is_led {
            self.bed.run(Duration::from_secs(15));
            self.bed.lead();
        }
        let end = self.bed.now.after(OUTAGE * 2);
        while self.bed.now < end {
            for number in 0..self.agents.len() {
                self.agents[number].cut_until = Time::default();
                self.see(number);
                let now = self.bed.now;
                if let Some(patch) = self.agents[number].patch(now) {
                    let name = self.agents[number].name.clone();
                    self.apply(&name, &patch);
                }
            }
            self.cilium.rest(&mut self.bed, &mut self.random);
            self.bed.run(Duration::from_secs(5));
            self.check();
            self.check_objects();
        }
        self.bed.assert_at_rest(&format!("play {}", self.seed));
        for number in 0..self.agents.len() {
            self.see(number);
            let agent = &self.agents[number];
            self.count(&agent.name, agent.known());
        }
        self.count(cilium::NAME, self.cilium.known());
        let unassigned = self.bed.calls("UnassignPrivateIpAddresses");
        Counts {
            unassigned,
            reused: self.cilium.reused,
            raced: self.cilium.raced,
            ..self.counts
        }
    }

    /// One step of anybody.
    pub(super) fn step(&mut self) {
        let number = usize::try_from(self.random.below(2)).unwrap();
        let draw = self.random.below(100);
        let is_of_pods = (50..74).contains(&draw);
        match draw {
            0..30 => self.see(number),
            30..50 => self.write(number),
            50..62 => self.pods(number, true),
            62..72 => self.pods(number, false),
            72..74 => self.agents[number].restart(self.bed.now),
            74 => {
                let until = self.bed.now.after(self.random.seconds(600));
                self.agents[number].cut_until = until;
            }
            75 => self.lose_leader(),
            76 => self.disturb(),
            77 if self.random.below(8) == 0 => self.make_again(),
            78 if self.random.below(4) == 0 => self.hand_over(),
            79 if self.random.below(8) == 0 => self.restore(),
            _ => self.pass(),
        }
        self.back_up();
        self.check();
        if !is_of_pods {
            self.check_objects();
        }
    }

    /// Time passes.
    fn pass(&mut self) {
        let most = if self.random.below(6) == 0 { 90 } else { 8 };
        let end = self.bed.now.after(self.random.seconds(most));
        while self.bed.now < end {
            let late = self.late.iter().map(|(at, _, _)| *at);
            let led = Some(self.no_leader_until).filter(|_| !self.bed.lease.is_led);
            let next = late.chain(led).filter(|at| *at > self.bed.now).min();
            let hop = next.map_or(end, |at| at.min(end)).since(self.bed.now);
            let most = self.foreign.as_ref().map_or(HOP, |_| HOP / 5);
            self.bed.run(hop.clamp(Duration::from_millis(1), most));
            let now = self.bed.now;
            self.cilium.work(&mut self.bed, &mut self.random);
            if let Some(foreign) = &mut self.foreign {
                self.counts.foreign += foreign.work(&mut self.bed, &mut self.random);
            }
            self.foreign.take_if(|it| now >= it.until);
            if !self.bed.lease.is_led && now >= self.no_leader_until {
                self.bed.lead();
            }
            let due: Vec<_> = self.late.extract_if(.., |(at, _, _)| *at <= now).collect();
            for (_, name, patch) in due {
                self.counts.late_writes += 1;
                self.apply(&name, &patch);
            }
        }
    }

    fn is_cut(&self, number: usize) -> bool {
        self.bed.now < self.agents[number].cut_until
    }

    /// An agent hears of its object, or makes it where it is not.
    fn see(&mut self, number: usize) {
        if self.is_cut(number) {
            return;
        }
        let name = self.agents[number].name.clone();
        if let Some(object) = self.bed.api.objects.get(&name).cloned() {
            self.agents[number].observe(&object, self.bed.now);
            self.agents[number].is_known = true;
        } else {
            self.bed.add_object(&name, "m5.large", "subnet-a");
            let pools = self.agents[number].pools_of_new_object();
            self.bed.change(&name, &pools);
        }
    }

    /// Replaces the object of an agent by one with these changes, while an operator of another
    /// project is at work and the agent does not reach the API server. Returns true if a pod's
    /// address is lost.
    pub(super) fn replace(&mut self, changes: impl FnOnce(&Agent) -> Value) -> bool {
        for _ in 0..20 {
            self.see(0);
            self.write(0);
            self.pods(0, true);
            self.pass();
        }
        assert!(!self.agents[0].held().is_empty());
        self.bed.kill();
        let name = self.agents[0].name.clone();
        self.bed.api.delete(&name, self.bed.now);
        self.bed.add_object(&name, "m5.large", "subnet-a");
        self.bed.change(&name, &changes(&self.agents[0]));
        let mut foreign = Foreign::new(self.bed.now, self.bed.now.after(OUTAGE));
        while self.bed.now < foreign.until {
            self.bed.run(Duration::from_secs(1));
            foreign.work(&mut self.bed, &mut self.random);
        }
        self.lost().is_some()
    }

    fn write(&mut self, number: usize) {
        if self.is_cut(number) || !self.agents[number].is_known {
            return;
        }
        let now = self.bed.now;
        let before = self.agents[number].allocator().released().count();
        let Some(patch) = self.agents[number].patch(now) else {
            return;
        };
        let after = self.agents[number].allocator().released().count();
        self.counts.reclaimed += before.saturating_sub(after);
        let name = self.agents[number].name.clone();
        match self.random.below(10) {
            0 => self.agents[number].is_known = false,
            1 => {
                let at = now.after(self.random.seconds(60));
                self.late.push((at, name, patch));
                self.agents[number].is_known = false;
            }
            2 => {
                self.apply(&name, &patch);
                self.agents[number].is_known = false;
            }
            _ => {
                if let Some(object) = self.apply(&name, &patch) {
                    self.agents[number].observe(&object, self.bed.now);
                } else {
                    self.see(number);
                }
            }
        }
    }

    /// The API server takes an agent's write, if it is for the version that there is.
    fn apply(&mut self, name: &str, patch: &Value) -> Option<Value> {
        let object = self.bed.api.objects.get(name)?;
        let same = |key: &str| object["metadata"][key] == patch["metadata"][key];
        if !same("uid") || !same("resourceVersion") {
            return None;
        }
        let mut change = json!({"spec": patch["spec"]});
        if let Some(annotations) = patch["metadata"].get("annotations") {
            change["metadata"] = json!({"annotations": annotations});
        }
        self.bed.change(name, &change);
        self.bed.api.objects.get(name).cloned()
    }

    fn pods(&mut self, number: usize, more: bool) {
        let now = self.bed.now;
        let count = 1 + self.random.below(8);
        for _ in 0..count {
            let agent = &mut self.agents[number];
            if more {
                agent.add_pod(now);
            } else {
                let all = u64::try_from(agent.pods.len()).unwrap().max(1);
                let which = usize::try_from(self.random.below(all)).unwrap();
                agent.remove_pod(which, now);
            }
        }
    }

    /// An operator of ours leads, and so long has passed since the last restore.
    fn may_end(&self, since: Duration) -> bool {
        let is_over = |at| self.bed.now.since(at) >= since;
        self.bed.lease.is_led && self.restored.is_none_or(is_over)
    }

    /// The leader is gone for up to ten minutes, or another one is there at once.
    fn lose_leader(&mut self) {
        if !self.may_end(SETTLED) {
            return;
        }
        self.counts.takeovers += 1;
        self.end_term();
        let away = if self.random.below(2) == 0 { 600 } else { 20 };
        let away = Duration::from_secs(15 + self.random.below(away));
        self.no_leader_until = self.bed.now.after(away);
    }

    /// The leader ends, or does not reach the API server and leads again later.
    fn end_term(&mut self) {
        if self.random.below(2) == 0 {
            self.bed.kill();
        } else {
            self.bed.cut_off();
        }
    }

    /// The API server is restored from a backup of the last hour. Writes in flight are lost. An
    /// operator is at work then: agents leave it a minute.
    fn restore(&mut self) {
        let count = u64::try_from(self.backups.len()).unwrap();
        if count == 0 || !self.may_end(SETTLED) {
            return;
        }
        let which = usize::try_from(self.random.below(count)).unwrap();
        self.counts.restored += 1;
        // Cilium's agent has no guard against a status of long ago.
        let kept = self.bed.api.objects.remove(cilium::NAME);
        self.bed.api.objects = self.backups[which].1.clone();
        let kept = kept.map(|object| (cilium::NAME.to_owned(), object));
        self.bed.api.objects.extend(kept);
        self.counts.moved += self.moved();
        self.may_be_behind = true;
        self.backups.truncate(which + 1);
        self.late.clear();
        self.bed.faults.planned = None;
        self.restored = Some(self.bed.now);
        self.bed.lead();
    }

    /// The number of blocks that an object shows and that EC2 has given to another node.
    fn moved(&self) -> usize {
        let names: Vec<&String> = self.bed.api.objects.keys().collect();
        let attached: Vec<_> = names.iter().map(|name| self.attached(name)).collect();
        let of = |name: &String| {
            let shown = shown(&self.bed.api.objects[name]);
            let others = names
                .iter()
                .zip(&attached)
                .filter(|(other, _)| **other != name);
            let theirs = others.map(|(_, blocks)| shown.intersection(blocks).count());
            theirs.sum::<usize>()
        };
        names.iter().map(|name| of(name)).sum()
    }

    /// Keeps a backup for every five minutes of the last hour.
    fn back_up(&mut self) {
        let now = self.bed.now;
        let is_due = |(at, _): &(Time, _)| now.since(*at) >= Duration::from_mins(5);
        if self.backups.back().is_none_or(is_due) {
            let mut objects = self.bed.api.objects.clone();
            objects.remove(cilium::NAME);
            self.backups.push_back((now, objects));
        }
        while self.backups.len() > 12 {
            self.backups.pop_front();
        }
    }

    /// Lets an operator of another project lead for a while. Neither starts before the other's
    /// Lease is over. Such an operator takes back what no object claims, so all agents have written
    /// their claims again since the last restore.
    fn hand_over(&mut self) {
        if !self.may_end(OUTAGE * 2) {
            return;
        }
        self.end_term();
        self.bed.faults.planned = None;
        let lease = Duration::from_secs(15);
        let from = self.bed.now.after(lease);
        let until = from.after(self.random.seconds(900));
        self.foreign = Some(Foreign::new(from, until));
        self.no_leader_until = until.after(lease);
    }

    /// Something goes wrong with the next call or write of the leader.
    fn disturb(&mut self) {
        let whats = [
            "UnassignPrivateIpAddresses",
            "AssignPrivateIpAddresses",
            "status",
        ];
        let which = usize::try_from(self.random.below(3)).unwrap();
        let fault = Fault::ALL[usize::try_from(self.random.below(4)).unwrap()];
        let kills = self.random.below(3) == 0;
        if !self.may_end(SETTLED) {
            return;
        }
        self.counts.late_calls += usize::from(matches!(fault, Fault::Late(_)));
        self.bed.faults.planned = Some(Planned {
            what: whats[which],
            skip: 0,
            fault,
            kills,
        });
        if kills {
            self.no_leader_until = self.bed.now.after(Duration::from_secs(15));
        }
    }

    fn make_again(&mut self) {
        let which = usize::try_from(self.random.below(3)).unwrap();
        let agent = self.agents.get(which);
        let name = agent.map_or(cilium::NAME, |it| it.name.as_str()).to_owned();
        if self.bed.api.objects.contains_key(&name) {
            self.counts.made_again += 1;
            self.bed.api.delete(&name, self.bed.now);
        }
    }

    /// Checks that the addresses that an agent can give, has given, rests or releases are those that
    /// EC2 has on the ENIs of its instance, less those that the operator takes back.
    fn count(&self, name: &str, known: u64) {
        let attached = self.attached(name);
        let marked = marks::blocks(&self.bed.api.objects[name]);
        // EC2 may have taken them back, and the mark goes later.
        let leaving = marked.intersection(&attached);
        let leaving: u64 = leaving.map(size).sum();
        let attached: u64 = attached.iter().map(size).sum();
        let seed = self.seed;
        assert_eq!(known + leaving, attached, "play {seed}, {name}");
    }

    /// Checks that each pod's address is on an ENI of its instance, and that each block of a node
    /// is in one state.
    fn check(&self) {
        if let Some((name, address)) = self.lost() {
            let (seed, now) = (self.seed, self.bed.now);
            panic!("play {seed}, {name}: {address} is given and unassigned at {now:?}");
        }
        self.agents.iter().for_each(Agent::check);
    }

    /// Checks that no status shows a block that is marked or that EC2 has taken back, and that all
    /// addresses are in one state.
    fn check_objects(&mut self) {
        let (seed, now) = (self.seed, self.bed.now);
        self.may_be_behind |= self.foreign.is_some();
        let mut is_behind = self.foreign.is_some();
        for (name, object) in &self.bed.api.objects {
            let (attached, shown) = (self.attached(name), shown(object));
            is_behind |= !shown.is_subset(&attached);
            let marked = marks::blocks(object);
            let both: Vec<_> = shown.intersection(&marked).collect();
            assert!(both.is_empty(), "play {seed}, {name}: {both:?} at {now:?}");
        }
        // An operator of ours was at work since the restore, and none of another project.
        let settled = self.restored.map(|at| now.since(at));
        if settled.is_some_and(|it| (SETTLED..OUTAGE * 2).contains(&it)) {
            assert_eq!(self.moved(), 0, "play {seed}: two owners at {now:?}");
        }
        assert!(
            self.may_be_behind || !is_behind,
            "play {seed}: a status shows what EC2 has taken back at {now:?}"
        );
        self.may_be_behind &= is_behind;
        self.agents.iter().for_each(|agent| self.balance(agent));
    }

    /// Checks an agent whose object is the current one: the addresses that it can give, has given,
    /// rests or releases, those that the operator takes back, and those that no status shows yet are
    /// all that EC2 has.
    fn balance(&self, agent: &Agent) {
        let name = &agent.name;
        let object = self.bed.api.objects.get(name);
        let Some(object) = object.filter(|it| agent.goes_by(it)) else {
            return;
        };
        let (attached, shown) = (self.attached(name), shown(object));
        if !shown.is_subset(&attached) {
            return;
        }
        let marked = marks::blocks(object);
        let leaving = marked.intersection(&attached).map(size);
        let fresh = attached.difference(&shown);
        let fresh = fresh.filter(|it| !marked.contains(it)).map(size);
        let known = agent.known() + leaving.sum::<u64>() + fresh.sum::<u64>();
        let attached: u64 = attached.iter().map(size).sum();
        let (seed, now) = (self.seed, self.bed.now);
        assert_eq!(known, attached, "play {seed}, {name} at {now:?}");
    }

    /// An address that a pod has and that is on no ENI of its instance, with the agent's name.
    fn lost(&self) -> Option<(&str, IpAddr)> {
        let ours = self
            .agents
            .iter()
            .map(|agent| (agent.name.as_str(), agent.held()));
        let cilium = (cilium::NAME, self.cilium.pods.clone());
        ours.chain([cilium]).find_map(|(name, held)| {
            let nets = self.attached(name);
            let mut held = held.into_iter();
            let lost = held.find(|address| !nets.iter().any(|net| net.contains(address)));
            lost.map(|address| (name, address))
        })
    }

    /// The blocks for pods that EC2 has on the ENIs of a node's instance.
    fn attached(&self, name: &str) -> BTreeSet<IpNet> {
        let instance = format!("i-{name}");
        let enis = self.bed.cloud.interfaces().filter(|eni| {
            let attachment = eni.attachment.as_ref();
            attachment.is_some_and(|it| it.instance == instance)
        });
        let blocks = enis.flat_map(|eni| &eni.addresses.blocks);
        let of_v4 = blocks.filter(|net| net.addr().is_ipv4());
        of_v4.copied().collect()
    }
}
