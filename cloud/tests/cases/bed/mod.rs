//! An operator and a naive EC2 in virtual time.

mod ec2;
mod fault;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::call::budget::{Budgets, Entry, Queue, Rate};
use cloud::inventory::{Read, Scope};
use cloud::node::{
    Context, EniRules, Facts, Memory, Next, Node, Outcome, Progress, Step, World, begin, next,
    settle,
};
use cloud::object::subnet::Location;
use cloud::sweep::{Sweep, Verdict};
use cloud::want::{Demand, Requested, Watermarks};
use cloud::{Action, Class, EniId, Failure, InstanceId, Limits, Tags};
use ipam::Time;
use ipnet::IpNet;
use jiff::Timestamp;

pub(crate) use self::ec2::Ec2;
pub(crate) use self::fault::{Fault, Faults, Random};

/// The cluster.
pub(crate) const CLUSTER: &str = "blue";

/// Limits of the instance types of the tests, with the types' names.
pub(crate) const TYPES: &[(&str, Limits)] = &[
    ("m5.large", limits(3, 10, true)),
    ("m5.4xlarge", limits(8, 30, true)),
    ("m3.large", limits(3, 10, false)),
    ("m4.xlarge", limits(4, 15, false)),
    ("t2.xlarge", limits(3, 15, false)),
    ("test.large", limits(4, 5, true)),
];

const fn limits(adapters: u16, addresses: u16, prefixes: bool) -> Limits {
    Limits {
        adapters,
        slots: addresses - 1,
        slots_v6: addresses,
        prefixes,
    }
}

/// An operator and its EC2.
pub(crate) struct Bed {
    pub(crate) ec2: Ec2,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) memory: Memory,
    pub(crate) progress: BTreeMap<String, Progress>,
    pub(crate) facts: Facts,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    /// Reads lag by up to so many seconds.
    pub(crate) lag: u64,
    /// The operator's writes reach the API server.
    pub(crate) publishes: bool,
    pub(crate) budgets: Budgets,
    queue: Queue<String>,
    sweep: Sweep,
}

/// A node of a type in subnet `own`, whose agent is of the older generation.
pub(crate) fn node(name: &str, instance_type: &str) -> Node {
    Node {
        instance: Some(format!("i-{name}").as_str().into()),
        instance_type: Some(instance_type.to_owned()),
        location: Some(Location {
            vpc: "vpc-1".into(),
            zone: "a".to_owned(),
            own: Some("own".into()),
            ids: BTreeSet::new(),
            tags: Tags::new(),
        }),
        is_ignored: false,
        rules: EniRules {
            delete_on_termination: true,
            ..EniRules::default()
        },
        groups: cloud::groups::Wish::default(),
        demand: Demand::default(),
        pools: BTreeMap::new(),
        marks: Watermarks {
            pre: 8,
            ..Watermarks::default()
        },
        release: cloud::node::Release::default(),
        published: BTreeSet::new(),
        pending: 0,
    }
}

/// Budgets that allow everything.
fn unlimited() -> Budgets {
    let rate = Rate {
        burst: 1e6,
        per_second: 1e6,
    };
    let rates = Action::ALL.map(|action| (action, rate));
    Budgets::new(1.0, &rates.into(), Time::default())
}

impl Bed {
    pub(crate) fn new() -> Self {
        let mut ec2 = Ec2::default();
        ec2.now = Time::from_millis(1_000_000);
        ec2.add_subnet("own", 1);
        let facts = Facts {
            limits: TYPES
                .iter()
                .map(|(name, it)| ((*name).to_owned(), *it))
                .collect(),
            subnets: ec2.subnets.clone(),
            groups: BTreeMap::new(),
            pools: BTreeMap::new(),
            addresses: None,
            eni_tags: Tags::new(),
            epoch: ec2.now,
        };
        Self {
            ec2,
            nodes: BTreeMap::new(),
            memory: Memory::new(CLUSTER),
            progress: BTreeMap::new(),
            facts,
            random: Random::new(1),
            faults: Faults::default(),
            lag: 0,
            publishes: true,
            budgets: unlimited(),
            queue: Queue::default(),
            sweep: Sweep::new(CLUSTER).unwrap(),
        }
    }

    /// A bed with one node.
    pub(crate) fn with(node: Node) -> Self {
        let mut bed = Self::new();
        bed.add("one", node);
        bed
    }

    pub(crate) fn add(&mut self, name: &str, node: Node) {
        let limits = self.facts.limits[node.instance_type.as_ref().unwrap()];
        let instance = node.instance.as_ref().unwrap();
        let own = node
            .location
            .as_ref()
            .and_then(|it| it.own.as_ref())
            .unwrap();
        self.ec2
            .add_instance(instance.as_str(), own.as_str(), limits);
        self.nodes.insert(name.to_owned(), node);
    }

    pub(crate) fn one(&mut self) -> &mut Node {
        self.nodes.get_mut("one").unwrap()
    }

    /// Sets the addresses in use as the older generation writes them.
    pub(crate) fn set_used(&mut self, used: u32) {
        self.one().demand.used = used;
    }

    /// Sets the addresses wanted in all as the newer generation writes them.
    pub(crate) fn set_requested(&mut self, name: &str, ipv4: u32, ipv6: u32) {
        let node = self.nodes.get_mut(name).unwrap();
        node.demand.requested = Some(Requested { ipv4, ipv6 });
    }

    fn date(&self) -> Timestamp {
        let millis = i64::try_from(self.ec2.now.as_millis()).unwrap();
        Timestamp::from_millisecond(1_769_860_800_000 + millis).unwrap()
    }

    pub(crate) fn next(&self, name: &str) -> Next {
        let world = World {
            facts: &self.facts,
            memory: &self.memory,
            now: self.ec2.now,
            date: self.date(),
        };
        let fresh = Progress::default();
        let progress = self.progress.get(name).unwrap_or(&fresh);
        next(&self.nodes[name], progress, &world)
    }

    /// Another process takes over: it knows nothing.
    pub(crate) fn restart(&mut self) {
        self.memory = Memory::new(CLUSTER);
        self.progress.clear();
        self.queue = Queue::default();
        self.facts.epoch = self.ec2.now;
        self.sweep = Sweep::new(CLUSTER).unwrap();
    }

    pub(crate) fn read(&mut self, scope: Scope) {
        let lag = Duration::from_secs(self.random.below(self.lag + 1));
        // Reads by id lag less.
        let lag = if matches!(scope, Scope::Ids(_)) {
            lag / 15
        } else {
            lag
        };
        let enis = self.ec2.read(&scope, lag);
        let begun = self.ec2.now;
        self.memory.merge(&Read { begun, scope, enis });
    }

    fn read_what_is_due(&mut self) {
        let due = self.memory.inventory.due(self.ec2.now, |_| true);
        if !due.instances.is_empty() {
            self.read(Scope::Instances(due.instances));
        }
        if !due.ids.is_empty() {
            self.read(Scope::Ids(due.ids));
        }
        if self.seconds().is_multiple_of(60) {
            self.read(Scope::All);
        }
        if self.seconds().is_multiple_of(10) {
            self.read_subnets();
            self.memory.forget(self.ec2.now);
        }
        if self.seconds().is_multiple_of(300) {
            self.sweep();
        }
    }

    fn seconds(&self) -> u64 {
        self.ec2.now.as_millis() / 1000
    }

    fn sweep(&mut self) {
        let listing = self.ec2.read(&Scope::Loose, Duration::ZERO);
        let served: BTreeSet<InstanceId> = self
            .nodes
            .values()
            .filter_map(|it| it.instance.clone())
            .collect();
        self.sweep
            .observe(self.ec2.now, &listing, |it| served.contains(it));
        for id in self.sweep.due() {
            let read = self.ec2.enis.get(&id);
            if self.sweep.judge(read) == Verdict::Delete {
                self.ec2.call(&Step::Delete { eni: id.clone() });
            }
            self.sweep.drop_eni(&id);
        }
    }

    /// One second.
    pub(crate) fn tick(&mut self) {
        self.ec2.advance(self.ec2.now.after(Duration::from_secs(1)));
        for step in self.faults.take_late(self.ec2.now) {
            self.ec2.call(&step);
        }
        self.read_what_is_due();
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            self.publish(&name);
            let mut next = self.next(&name);
            // Loose ENIs, then the instance's.
            for _ in 0..2 {
                if let Some(scope) = next.read {
                    self.read(scope);
                    next = self.next(&name);
                }
            }
            self.wait(&name, &next);
        }
        while let Some(entry) = self.queue.pop(&mut self.budgets, self.ec2.now) {
            // Calls of other nodes since the plan was made may change it.
            if let Some(step) = self.next(&entry.key).step {
                self.carry_out(&entry.key, &step);
            }
        }
    }

    /// Writes a node's status.
    fn publish(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        if let Some(instance) = node.instance.as_ref().filter(|_| self.publishes) {
            let enis = self.memory.inventory.of_instance(instance);
            let attached = enis.filter(|eni| eni.is_attached());
            node.published = attached.map(|eni| eni.id.clone()).collect();
        }
    }

    /// Lets a node's step wait for its budget.
    fn wait(&mut self, name: &str, next: &Next) {
        match (&next.step, next.need) {
            (Some(step), Some(need)) => self.queue.push(Entry {
                key: name.to_owned(),
                action: step.action(),
                need,
                since: self.ec2.now,
            }),
            _ => {
                self.queue.remove(&name.to_owned());
            }
        }
    }

    fn read_subnets(&mut self) {
        self.facts.subnets.clone_from(&self.ec2.subnets);
        self.memory.pressure.read(self.ec2.now);
    }

    pub(crate) fn run(&mut self, seconds: u64) {
        self.read_subnets();
        for _ in 0..seconds {
            self.tick();
        }
    }

    /// Carries out what a node wants next, until it wants nothing.
    pub(crate) fn settle(&mut self) {
        self.run(100);
        for name in self.nodes.keys() {
            assert_eq!(self.next(name).step, None, "{name} never rests");
        }
    }

    fn carry_out(&mut self, name: &str, step: &Step) {
        let progress = self.progress.entry(name.to_owned()).or_default();
        begin(step, &self.nodes[name], progress, &mut self.memory);
        let fault = self.faults.next(&mut self.random);
        let lost = || Outcome::Failed(Failure::unanswered(step.action(), "no reply within 5 s"));
        let outcome = match fault {
            None => self.ec2.call(step),
            Some(Fault::Twice) => {
                let outcome = self.ec2.call(step);
                self.ec2.call(step);
                outcome
            }
            Some(Fault::Unsent) => lost(),
            Some(Fault::AnswerLost) => {
                self.ec2.call(step);
                lost()
            }
            Some(Fault::Late) => {
                self.delay(step);
                lost()
            }
            Some(Fault::KilledBefore) => return self.restart(),
            Some(Fault::KilledAfter) => {
                self.ec2.call(step);
                return self.restart();
            }
            Some(Fault::KilledLate) => {
                self.delay(step);
                return self.restart();
            }
        };
        if matches!(&outcome, Outcome::Failed(it) if it.class == Class::Throttled) {
            self.budgets.throttle(step.action(), self.ec2.now);
        }
        let mut context = Context {
            facts: &self.facts,
            memory: &mut self.memory,
            now: self.ec2.now,
        };
        settle(&outcome, self.progress.get_mut(name).unwrap(), &mut context);
    }

    fn delay(&mut self, step: &Step) {
        let at = self
            .ec2
            .now
            .after(Duration::from_secs(1 + self.random.below(10)));
        self.faults.late.push((at, step.clone()));
    }

    /// Addresses of a node that EC2 has.
    pub(crate) fn available(&self, name: &str) -> u32 {
        let instance = self.nodes[name].instance.as_ref();
        let enis = self
            .ec2
            .enis
            .values()
            .filter(|eni| eni.instance() == instance);
        enis.map(|eni| eni.available(false)).sum()
    }

    /// ENIs of a node that EC2 has.
    pub(crate) fn enis(&self, name: &str) -> usize {
        let instance = self.nodes[name].instance.as_ref();
        self.ec2
            .enis
            .values()
            .filter(|eni| eni.instance() == instance)
            .count()
    }

    /// ENIs that nothing holds.
    pub(crate) fn loose(&self) -> Vec<EniId> {
        let loose = self.ec2.enis.values().filter(|eni| eni.is_loose());
        loose.map(|eni| eni.id.clone()).collect()
    }

    /// Blocks that the operator would publish for its nodes have one owner, and EC2 has them there.
    pub(crate) fn assert_published_blocks_are_true(&self) {
        let mut owners: BTreeMap<IpNet, EniId> = BTreeMap::new();
        let instances = self.nodes.values().filter_map(|it| it.instance.as_ref());
        let inventory = &self.memory.inventory;
        let enis = instances.flat_map(|instance| inventory.of_instance(instance));
        for eni in enis.filter(|eni| eni.is_attached()) {
            for block in self.memory.inventory.settled_blocks(&eni.id) {
                let owner = owners.insert(block, eni.id.clone());
                assert_eq!(owner, None, "{block} has two owners");
                let real = self.ec2.enis.get(&eni.id);
                let has = real.is_some_and(|real| real.blocks.contains(&block));
                assert!(has, "{block} of {} is not in EC2", eni.id);
            }
        }
    }

    /// Calls of one action so far.
    pub(crate) fn count(&self, action: Action) -> usize {
        self.ec2.calls.iter().filter(|it| **it == action).count()
    }
}
