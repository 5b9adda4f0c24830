//! An operator's fleet, its cloud and its API server, in virtual time.

mod api;
mod check;
mod fault;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::node::Outcome;
use cloud::{Action, Failure};
use ec2_fake::{Cloud, Delivery, Request, Settings as Rules, Span, world::World};
use fleet::{Event, Fleet, Input, Moment, PlainView, Settings, Standing, Task, Work, Written};
use ipam::Time;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub(crate) use self::api::Api;
pub(crate) use self::fault::{Fault, Faults, Planned};

pub(crate) const CLUSTER: &str = "blue";
/// The time of day at which a bed begins.
const EPOCH: i64 = 1_769_860_800;
/// The operator's own clock at that time.
const START: u64 = 1_000_000;
/// A call takes so long at most.
const CALL: Duration = Duration::from_secs(5);

pub(crate) struct Bed {
    pub(crate) fleet: Fleet,
    pub(crate) cloud: Cloud,
    pub(crate) api: Api,
    pub(crate) now: Time,
    settings: Settings,
    answers: BTreeMap<(Time, u64), Input>,
    count: u64,
    pub(crate) lease: Lease,
    pub(crate) events: Vec<Event>,
    pub(crate) watched: Watched,
    pub(crate) faults: Faults,
}

/// The operator's leadership.
pub(crate) struct Lease {
    /// The access key of the leader.
    holder: u32,
    /// The operator is alive.
    pub(crate) is_led: bool,
    is_watching: bool,
    renewed: Time,
}

/// Objects and facts that the operator watches beside the objects of nodes.
pub(crate) struct Watched {
    /// Objects of pools beside those of the API server; none before pools are read.
    pub(crate) pools: Option<Vec<Value>>,
    /// Pools of the API server as the operator's watch has them.
    api_pools: Vec<Value>,
    /// The CIDRs of services; none before they are read.
    pub(crate) services: Option<BTreeSet<IpNet>>,
    /// Pods that wait, by node.
    pub(crate) pods: BTreeMap<String, u32>,
}

/// A cloud of one VPC with a /16 a zone, whose reads lag a little.
pub(crate) fn world() -> World {
    world_of(document())
}

/// The document of that cloud.
pub(crate) fn document() -> Value {
    json!({
        "vpcs": [{"id": "vpc-1", "cidrs": ["10.0.0.0/8"]}],
        "subnets": [
            {"id": "subnet-a", "vpc": "vpc-1", "zone": "a", "ipv4": "10.1.0.0/16", "ipv6": "2001:db8::/64"}
        ],
        "route_tables": [{"id": "rtb-1", "vpc": "vpc-1", "main": true}],
        "groups": [{"id": "sg-1", "vpc": "vpc-1", "name": "nodes"}]
    })
}

/// The cloud of a document, whose reads lag a little.
pub(crate) fn world_of(document: Value) -> World {
    let mut world: World = serde_json::from_value(document).unwrap();
    world.settings = Rules {
        unknown: Span::new(0, 0),
        lag_listing: Span::new(0, 2_000),
        ..Rules::default()
    };
    world
}

impl Bed {
    pub(crate) fn new(world: &World) -> Self {
        Self::with(world, Settings::of(CLUSTER))
    }

    pub(crate) fn with(world: &World, settings: Settings) -> Self {
        let now = Time::from_millis(START);
        let at = moment(now);
        Self {
            fleet: Fleet::new(settings.clone(), at).unwrap(),
            cloud: Cloud::build(world, at.date).unwrap(),
            api: Api::new(Duration::from_millis(50)),
            now,
            settings,
            answers: BTreeMap::new(),
            count: 0,
            lease: Lease {
                holder: 1,
                is_led: false,
                is_watching: false,
                renewed: Time::default(),
            },
            events: Vec::new(),
            watched: Watched {
                pools: Some(Vec::new()),
                api_pools: Vec::new(),
                services: Some(BTreeSet::new()),
                pods: BTreeMap::new(),
            },
            faults: Faults::default(),
        }
    }

    /// Starts an instance with its node.
    pub(crate) fn add_node(&mut self, name: &str, kind: &str, subnet: &str) {
        let instance = json!({
            "id": format!("i-{name}"), "type": kind, "subnet": subnet, "groups": ["sg-1"]
        });
        let spec = serde_json::from_value(instance).unwrap();
        self.cloud.start(&spec, self.date()).unwrap();
        self.add_object(name, kind, subnet);
    }

    /// The object that the agent of a node makes.
    pub(crate) fn add_object(&mut self, name: &str, kind: &str, subnet: &str) {
        let zone = subnet.trim_start_matches("subnet-");
        let object = json!({"spec": {
            "instance-id": format!("i-{name}"),
            "eni": {
                "instance-type": kind, "vpc-id": "vpc-1", "availability-zone": zone,
                "node-subnet-id": subnet, "first-interface-index": 0
            },
            "ipam": {"pre-allocate": 8, "pools": {"requested": [
                {"pool": "default", "needed": {"ipv4-addrs": 8}}
            ]}}
        }});
        self.api.change(name, &object, self.now);
    }

    /// Changes an object as its agent or a person does.
    pub(crate) fn change(&mut self, name: &str, patch: &Value) {
        self.api.change(name, patch, self.now);
    }

    /// The Nodes that there are.
    pub(crate) fn set_hosts(&mut self, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let at = self.at();
        self.fleet.take(Input::Hosts(names), at);
    }

    /// Sets the addresses that an agent wants in all, its spare ones included.
    pub(crate) fn request(&mut self, name: &str, ipv4: u32) {
        let requested = json!([{"pool": "default", "needed": {"ipv4-addrs": ipv4}}]);
        let patch = json!({"spec": {"ipam": {"pools": {"requested": requested}}}});
        self.change(name, &patch);
    }

    /// The time by the operator's clocks.
    pub(crate) fn at(&self) -> Moment {
        Moment {
            now: self.now,
            date: self.date() + self.faults.skew,
        }
    }

    /// The time of day of EC2.
    fn date(&self) -> Timestamp {
        moment(self.now).date
    }

    /// An operator leads from now on.
    pub(crate) fn lead(&mut self) {
        let list = self.api.list();
        self.lead_by(list);
    }

    /// An operator leads from now on. Its watch began with these objects, of long ago.
    pub(crate) fn lead_from(&mut self, objects: Vec<Value>) {
        self.lead_by(Input::Nodes(objects));
    }

    fn lead_by(&mut self, list: Input) {
        let at = self.at();
        self.fleet.take(list, at);
        self.watched.api_pools = self.api.pools.values().cloned().collect();
        self.lease.is_led = true;
        self.renew();
    }

    /// An operator watches from now on (`--dry-run`).
    pub(crate) fn watch(&mut self) {
        let list = self.api.list();
        let at = self.at();
        self.fleet.take(list, at);
        self.lease.is_led = true;
        self.lease.is_watching = true;
        self.renew();
    }

    fn renew(&mut self) {
        self.lease.renewed = self.now;
        if self.lease.is_watching {
            let watching = Input::Standing(Standing::Watching);
            return self.fleet.take(watching, self.at());
        }
        let until = self.now.after(Duration::from_secs(15));
        let leading = Input::Standing(Standing::Leading { until });
        self.fleet.take(leading, self.at());
    }

    /// The operator dies; answers to it are lost.
    pub(crate) fn kill(&mut self) {
        self.answers.clear();
        self.lease.is_led = false;
        self.lease.holder += 1;
        self.fleet = Fleet::new(self.settings.clone(), self.at()).unwrap();
    }

    /// The operator does not reach the API server any more. Its Lease ends, and it follows. Answers
    /// of EC2 still reach it.
    pub(crate) fn cut_off(&mut self) {
        self.fleet
            .take(Input::Standing(Standing::Following), self.at());
        self.lease.is_led = false;
    }

    /// Everything that happens until a time.
    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now.after(duration);
        self.run_until(end, |_| false);
    }

    /// Everything that happens until something holds. Returns how long that took.
    ///
    /// # Panics
    /// When it does not come to hold in time.
    pub(crate) fn until(
        &mut self,
        limit: Duration,
        what: &str,
        mut holds: impl FnMut(&Self) -> bool,
    ) -> Duration {
        let begun = self.now;
        let end = self.now.after(limit);
        if self.run_until(end, &mut holds) {
            return self.now.since(begun);
        }
        let views: Vec<&Value> = self.api.objects.values().take(2).collect();
        panic!("{what}: not within {limit:?}: {views:#?}");
    }

    fn run_until(&mut self, end: Time, mut holds: impl FnMut(&Self) -> bool) -> bool {
        loop {
            self.happen();
            if holds(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            self.now = self
                .next_time()
                .min(end)
                .max(self.now.after(Duration::from_millis(1)));
        }
    }

    /// The time of the next thing that can happen.
    fn next_time(&self) -> Time {
        let due = self.cloud.next_due().map(time_of);
        let answer = self.answers.first_key_value().map(|((at, _), _)| *at);
        let wake = self.fleet.wake_at(self.now).filter(|_| self.lease.is_led);
        let renewal = self.lease.is_led.then(|| self.lease.renewed.after(CALL));
        let late = self.faults.late.iter().map(|(at, _)| *at).min();
        let times = [due, answer, wake, renewal, late, self.api.next_event()];
        let next = times.into_iter().flatten().min();
        next.unwrap_or_else(|| self.now.after(Duration::from_secs(1)))
    }

    fn happen(&mut self) {
        let at = self.at();
        self.cloud.advance(self.date());
        self.cloud.take_effects();
        self.let_late_works_happen();
        if !self.lease.is_led {
            return;
        }
        if self.now.since(self.lease.renewed) >= CALL {
            self.renew();
        }
        while let Some(event) = self.api.event(self.now) {
            match event {
                Input::Pools(pools) => self.watched.api_pools = pools,
                event => self.fleet.take(event, at),
            }
        }
        while let Some((key, _)) = self.answers.first_key_value() {
            if key.0 > self.now {
                break;
            }
            let (_, input) = self.answers.pop_first().unwrap();
            if self.faults.doubles {
                self.fleet.take(input.clone(), at);
            }
            self.fleet.take(input, at);
        }
        if let Some(pools) = &self.watched.pools {
            let pools = [pools, &self.watched.api_pools[..]].concat();
            self.fleet.take(Input::Pools(pools), at);
        }
        if let Some(services) = &self.watched.services {
            self.fleet.take(Input::Services(services.clone()), at);
        }
        self.fleet.take(Input::Pods(self.watched.pods.clone()), at);
        for work in self.fleet.work(at) {
            if let Some(work) = self.hit(work) {
                self.carry_out(work);
            }
            if !self.lease.is_led {
                return;
            }
        }
    }

    /// Carries out a work, and has it answered.
    fn carry_out(&mut self, Work { id, task }: Work) {
        let at = self.at();
        match task {
            Task::Call(step) => {
                let (reply, wait) = self.call(wire::call(&step));
                let outcome = match reply {
                    Some(answer) => wire::outcome(&step, answer),
                    None => Outcome::Failed(lost(step.action())),
                };
                self.answer(wait, Input::Answer { id, outcome });
            }
            Task::Read(query) => {
                let (reply, wait) = self.call(wire::describe(&query, CLUSTER));
                let page = match reply {
                    Some(Ok(ec2_fake::Answer::Page(page))) => {
                        let mut page = wire::page(&query, page);
                        (self.faults.distort)(&mut page.items);
                        Ok(page)
                    }
                    Some(Ok(other)) => panic!("{other:?}"),
                    Some(Err(error)) => Err(wire::failure(query.what.action(), &error)),
                    None => Err(lost(query.what.action())),
                };
                self.answer(wait, Input::Page { id, page });
            }
            Task::Patch { name, part, body } => {
                let written = self.patch(&name, part, &body);
                self.answer(Duration::from_millis(20), Input::Written { id, written });
            }
            Task::List => {
                let objects = Ok(self.api.objects.values().cloned().collect());
                self.answer(Duration::from_millis(50), Input::Listed { id, objects });
            }
            Task::PatchPool { name, body, .. } => {
                let written = self.api.patch_pool(&name, &body, at.now);
                self.answer(Duration::from_millis(20), Input::Written { id, written });
            }
            Task::Advertise { name, body } => {
                let (node, writes) = self.api.advertised.entry(name).or_default();
                json_patch::merge(node, &body["status"]["capacity"]);
                *writes += 1;
                let written = Written::Done(None);
                self.answer(Duration::from_millis(20), Input::Written { id, written });
            }
            Task::Delete { name, uid, version } => {
                let written = self.api.remove(&name, &uid, &version, at.now);
                self.answer(Duration::from_millis(20), Input::Written { id, written });
            }
            Task::Event(event) => self.events.push(event),
        }
    }

    /// Makes a call of EC2. Returns its answer, if one comes, and how long that takes.
    fn call(
        &mut self,
        call: ec2_fake::Call,
    ) -> (Option<ec2_fake::Result<ec2_fake::Answer>>, Duration) {
        let request = Request {
            call,
            dry_run: false,
        };
        let caller = format!("leader-{}", self.lease.holder);
        let reply = self.cloud.call(self.date(), &caller, &request);
        let usual = Duration::from_millis(100);
        match reply.delivery {
            Delivery::Whole => (Some(reply.outcome), usual),
            Delivery::Late(millis) => (Some(reply.outcome), Duration::from_millis(millis)),
            Delivery::Lost | Delivery::Cut | Delivery::Garbage => (None, CALL),
        }
    }

    fn answer(&mut self, wait: Duration, input: Input) {
        self.count += 1;
        self.answers
            .insert((self.now.after(wait), self.count), input);
    }

    /// Calls of one action so far, refused ones included.
    pub(crate) fn calls(&self, action: &str) -> usize {
        self.cloud.log().filter(|it| it.action == action).count()
    }

    /// The addresses of pods that the status of a node shows.
    pub(crate) fn shown(&self, name: &str) -> usize {
        let enis = self.api.objects[name]["status"]["eni"]["enis"].as_object();
        let addresses = |eni: &Value| eni["addresses"].as_array().map_or(0, Vec::len);
        enis.into_iter()
            .flatten()
            .map(|(_, eni)| addresses(eni))
            .sum()
    }

    /// The number of IPv6 prefixes in the status of a node's ENIs.
    pub(crate) fn ipv6_prefixes(&self, name: &str) -> usize {
        let enis = self.api.objects[name]["status"]["eni"]["enis"].as_object();
        let count = |eni: &Value| eni["ipv6-prefixes"].as_array().map_or(0, Vec::len);
        enis.into_iter().flatten().map(|(_, eni)| count(eni)).sum()
    }

    /// The blocks of a plain pool.
    pub(crate) fn plain_pool(&self, name: &str) -> PlainView {
        let pools = self.fleet.pools(self.at());
        let pool = pools.into_iter().find(|it| it.name == name).unwrap();
        pool.plain.unwrap()
    }

    /// The report in the status of a node.
    pub(crate) fn report(&self, name: &str) -> &str {
        let error = &self.api.objects[name]["status"]["ipam"]["operator-status"]["error"];
        error.as_str().unwrap_or_default()
    }

    /// Interfaces that nothing holds.
    pub(crate) fn loose(&self) -> Vec<String> {
        let loose = self.cloud.interfaces().filter(|it| it.attachment.is_none());
        loose.map(|it| it.id.clone()).collect()
    }
}

fn lost(action: Action) -> Failure {
    Failure::unanswered(action, "no reply within 5 s")
}

fn moment(now: Time) -> Moment {
    let millis = i64::try_from(now.as_millis() - START).unwrap();
    Moment {
        now,
        date: Timestamp::from_second(EPOCH).unwrap() + SignedDuration::from_millis(millis),
    }
}

fn time_of(date: Timestamp) -> Time {
    let since = date.duration_since(Timestamp::from_second(EPOCH).unwrap());
    let millis = u64::try_from(since.as_millis()).unwrap_or(0);
    Time::from_millis(START + millis)
}
