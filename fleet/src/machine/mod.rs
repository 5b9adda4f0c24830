//! The one owner of all nodes.

mod advertise;
mod calls;
mod kubelet;
mod objects;
mod pages;
mod plain;
mod plan;
mod pools;
mod released;
mod static_ip;
mod sweeping;
mod timers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::call::budget::{Budgets, Entry, Queue};
use cloud::node::{Memory, Progress, Step};
use cloud::sweep::NoClusterError;
use cloud::{EniId, InstanceId};
use ipam::Time;
use ipnet::IpNet;
use kubernetes::operation::bindings::PoolBindings;
use serde_json::Value;

use self::advertise::{Advertised, Numbers};
use self::objects::removal::Removals;
use self::sweeping::Sweeping;
use self::timers::Timers;
use crate::Settings;
use crate::input::{Input, Moment, Standing};
use crate::member::{Lacked, Member};
use crate::plain::Plain;
use crate::reads::{GATHERED, Reading, Reads};
use crate::topology::Topology;
use crate::work::{Part, Task, Work, WorkId};

/// No change begins that could end after the lease: a call ends within so long.
const CALL: Duration = Duration::from_secs(5);
/// A work without an answer counts as lost after so long, so that no node waits for ever.
const LOST: Duration = Duration::from_secs(30);
/// Memory that holds no more is dropped this often.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// The owner of a call that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Node(String),
    Sweep(EniId),
}

/// A work in flight.
#[derive(Debug)]
enum Pending {
    Call { entry: Entry<Key>, step: Step },
    Read(Box<Reading>),
    Patch(Patch),
    List,
    Pool { name: String },
    Advertise { name: String, numbers: Numbers },
    Delete { name: String },
}

/// A merge patch of an object's part.
#[derive(Debug)]
struct Patch {
    name: String,
    part: Part,
    body: Value,
}

/// All nodes of an operator.
#[derive(Debug)]
pub struct Fleet {
    pub(crate) settings: Settings,
    pub(crate) standing: Standing,
    pub(crate) topology: Topology,
    pub(crate) memory: Memory,
    pub(crate) members: BTreeMap<String, Member>,
    /// Progress of each node. It outlives an object that is made again.
    pub(crate) progress: BTreeMap<String, Progress>,
    pub(crate) by_instance: BTreeMap<InstanceId, BTreeSet<String>>,
    pub(crate) plain: Plain,
    pub(crate) advertised: Advertised,
    /// The most pods of each kubelet.
    kubelets: BTreeMap<String, u32>,
    /// The CIDRs of the cluster's services.
    services: BTreeSet<IpNet>,
    /// Pods that wait, by node.
    pods: BTreeMap<String, u32>,
    /// Nodes whose plans are to be recomputed.
    dirty: BTreeSet<String>,
    timers: Timers,
    pub(crate) budgets: Budgets,
    pub(crate) queue: Queue<Key>,
    pub(crate) reads: Reads,
    lacked: Lacked,
    /// The pools; none before they are read.
    pub(crate) bindings: Option<PoolBindings>,
    pub(crate) sweeping: Sweeping,
    pub(crate) removals: Removals,
    pending: BTreeMap<WorkId, (Time, Pending)>,
    next_id: WorkId,
    forgotten: Time,
    /// The time at which the due reads of the inventory were last requested.
    requested: Time,
    out: Vec<Work>,
}

impl Fleet {
    /// A fleet without nodes, which follows.
    ///
    /// # Errors
    /// When the cluster has no name.
    pub fn new(settings: Settings, at: Moment) -> Result<Self, NoClusterError> {
        Ok(Self {
            standing: Standing::default(),
            topology: Topology::new(settings.eni_tags.clone()),
            memory: Memory::new(&settings.cluster),
            members: BTreeMap::new(),
            progress: BTreeMap::new(),
            by_instance: BTreeMap::new(),
            plain: Plain::default(),
            advertised: Advertised::default(),
            kubelets: BTreeMap::new(),
            services: BTreeSet::new(),
            pods: BTreeMap::new(),
            dirty: BTreeSet::new(),
            timers: Timers::default(),
            budgets: Budgets::new(settings.share, &settings.rates, at.now),
            queue: Queue::default(),
            reads: Reads::default(),
            lacked: Lacked::new(),
            bindings: None,
            sweeping: Sweeping::new(&settings.cluster)?,
            removals: Removals::default(),
            pending: BTreeMap::new(),
            next_id: WorkId::default(),
            forgotten: at.now,
            requested: Time::default(),
            out: Vec::new(),
            settings,
        })
    }

    /// Handles an event. The next [`work`](Self::work) returns the work that follows from it.
    pub fn take(&mut self, input: Input, at: Moment) {
        match input {
            Input::Standing(standing) => self.stand(standing, at),
            Input::Nodes(objects) => self.set_objects(objects, at),
            Input::Node(object) => self.set_object(*object, at),
            Input::NodeGone { name, uid } => self.lose_object(&name, &uid),
            Input::Pools(objects) => self.set_pools(objects),
            Input::Services(cidrs) => self.services = cidrs,
            Input::MaxPods(numbers) => self.set_max_pods(numbers),
            Input::Pods(pods) => self.set_pods(pods),
            Input::Hosts(hosts) => self.removals.set_hosts(hosts, at.now),
            Input::Host { name, is_there } => {
                if !is_there {
                    self.kubelets.remove(&name);
                    self.advertised.lose(&name);
                }
                self.removals.set_host(name, is_there, at.now);
            }
            Input::Answer { id, outcome } => {
                if let Some(Pending::Call { entry, step }) = self.close(id, is_call) {
                    self.answer(entry, &step, &outcome, at);
                }
            }
            Input::Page { id, page } => {
                if let Some(Pending::Read(reading)) = self.close(id, is_read) {
                    self.turn_page(*reading, page, at);
                }
            }
            Input::Listed { id, objects } => {
                if self.close(id, |it| matches!(it, Pending::List)).is_some() {
                    self.listed(objects, at);
                }
            }
            Input::Written { id, written } => match self.close(id, is_write) {
                Some(Pending::Patch(patch)) => self.patched(&patch, id, written, at),
                Some(Pending::Pool { name }) => self.marked(&name, id, written, at),
                Some(Pending::Advertise { name, numbers }) => {
                    self.advertised(name, numbers, &written);
                }
                Some(Pending::Delete { name }) => self.deleted(&name, id, written, at),
                _ => {}
            },
        }
    }

    /// The work that is to be done now. It is also called when [`wake_at`](Self::wake_at) has come.
    pub fn work(&mut self, at: Moment) -> Vec<Work> {
        self.expire(at);
        if self.standing == Standing::Following {
            return Vec::new();
        }
        self.ask_for_due(at);
        let due = self.timers.due(at.now);
        self.dirty.extend(due);
        for name in std::mem::take(&mut self.dirty) {
            self.look_at(&name, at);
        }
        self.tend_pools(at);
        self.advertise(at);
        self.remove_objects(at);
        self.sweep(at);
        self.send_calls(at);
        self.reads.schedule(&self.settings, at.now);
        self.send_reads(at);
        if at.now.since(self.forgotten) >= FORGOTTEN {
            self.forget(at.now);
        }
        std::mem::take(&mut self.out)
    }

    /// The time at which there can be work without any event; none while another operator leads.
    #[must_use]
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if self.standing == Standing::Following {
            return None;
        }
        let calls = self.queue.ready_at(&self.budgets, now);
        let calls = calls.filter(|_| self.may_change(now));
        let wakes = [Some(now.after(GATHERED)), self.timers.next(), calls];
        wakes.into_iter().flatten().min()
    }

    fn stand(&mut self, standing: Standing, at: Moment) {
        let led = matches!(self.standing, Standing::Leading { .. });
        let leads = matches!(standing, Standing::Leading { .. });
        let begins = (leads && !led) || self.standing == Standing::Following;
        self.standing = standing;
        if standing == Standing::Following || begins {
            self.begin_epoch(at);
        }
    }

    /// Forgets everything but objects: another leader may have changed it.
    fn begin_epoch(&mut self, at: Moment) {
        self.memory = Memory::new(&self.settings.cluster);
        self.topology.begin(at.now);
        self.progress.clear();
        self.queue = Queue::default();
        self.pending.clear();
        self.reads = Reads::default();
        self.lacked.clear();
        self.sweeping.begin();
        self.removals.begin();
        self.plain.begin();
        self.advertised.begin();
        self.timers = Timers::default();
        self.out.clear();
        for member in self.members.values_mut() {
            member.begin_epoch(at.now);
        }
        self.add_all_vpcs();
        self.dirty = self.members.keys().cloned().collect();
    }

    /// Reports if a change may begin now.
    fn may_change(&self, now: Time) -> bool {
        match self.standing {
            Standing::Leading { until } => now.after(CALL) < until,
            Standing::Following | Standing::Watching => false,
        }
    }

    /// Hands out a work that has an answer.
    fn open(&mut self, pending: Pending, task: Task, now: Time) -> WorkId {
        let id = self.next_id.advance();
        self.pending.insert(id, (now, pending));
        self.out.push(Work { id, task });
        id
    }

    /// Takes a work out that an answer is for. An answer of another kind says nothing.
    fn close(&mut self, id: WorkId, fits: fn(&Pending) -> bool) -> Option<Pending> {
        let (_, pending) = self.pending.get(&id)?;
        if !fits(pending) {
            return None;
        }
        self.pending.remove(&id).map(|(_, pending)| pending)
    }

    fn forget(&mut self, now: Time) {
        self.forgotten = now;
        self.memory.forget(now);
        self.lacked
            .retain(|_, begun| now.since(*begun) < Duration::from_mins(10));
    }
}

fn is_call(pending: &Pending) -> bool {
    matches!(pending, Pending::Call { .. })
}

fn is_read(pending: &Pending) -> bool {
    matches!(pending, Pending::Read(_))
}

fn is_write(pending: &Pending) -> bool {
    matches!(
        pending,
        Pending::Patch(_)
            | Pending::Pool { .. }
            | Pending::Advertise { .. }
            | Pending::Delete { .. }
    )
}
