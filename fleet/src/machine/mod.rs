//! The one owner of all nodes.

mod advertise;
mod calls;
mod nodes;
mod objects;
mod pages;
mod plain;
mod plan;
mod pools;
mod released;
mod static_ip;
mod sweeping;
mod works;

use std::time::Duration;

use cloud::EniId;
use cloud::call::budget::{Budgets, Queue};
use cloud::node::Memory;
use cloud::sweep::NoClusterError;
use ipam::Time;

use self::nodes::{Calls, Cluster, Nodes};
use self::sweeping::Sweeping;
use self::works::{Patch, Pending, Works};
use crate::Settings;
use crate::input::{Input, Moment, Standing};
use crate::plain::Plain;
use crate::reads::Reads;
use crate::topology::Topology;
use crate::work::Work;

/// No change begins that could end after the lease: a call ends within so long.
const CALL: Duration = Duration::from_secs(5);
/// Memory that holds no more is dropped this often.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// The owner of a call that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Node(String),
    Sweep(EniId),
}

/// All nodes of an operator.
#[derive(Debug)]
pub struct Fleet {
    pub(crate) settings: Settings,
    pub(crate) standing: Standing,
    pub(crate) topology: Topology,
    pub(crate) memory: Memory,
    pub(crate) nodes: Nodes,
    pub(crate) plain: Plain,
    pub(crate) cluster: Cluster,
    pub(crate) calls: Calls,
    pub(crate) reads: Reads,
    pub(crate) sweeping: Sweeping,
    works: Works,
    forgotten: Time,
}

impl Fleet {
    /// A fleet without nodes, which follows.
    ///
    /// # Errors
    /// When the cluster has no name.
    pub fn new(settings: Settings, at: Moment) -> Result<Self, NoClusterError> {
        Ok(Self {
            standing: Standing::default(),
            topology: Topology::new(settings.enis.tags.clone()),
            memory: Memory::new(&settings.cluster),
            nodes: Nodes::default(),
            plain: Plain::default(),
            cluster: Cluster::default(),
            calls: Calls {
                budgets: Budgets::new(settings.rates.share, &settings.rates.own, at.now),
                queue: Queue::default(),
            },
            reads: Reads::default(),
            sweeping: Sweeping::new(&settings.cluster)?,
            works: Works::default(),
            forgotten: at.now,
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
            Input::Services(cidrs) => self.cluster.services = Some(cidrs),
            Input::MaxPods(numbers) => self.set_max_pods(numbers),
            Input::Pods(pods) => self.set_pods(pods),
            Input::Hosts(hosts) => self.nodes.removals.set_hosts(hosts, at.now),
            Input::Host { name, is_there } => {
                if !is_there {
                    self.cluster.max_pods.remove(&name);
                    self.nodes.advertised.lose(&name);
                }
                self.nodes.removals.set_host(name, is_there, at.now);
            }
            Input::Answer { id, outcome } => {
                if let Some(Pending::Call { entry, step }) = self.works.close(id, Pending::is_call)
                {
                    self.answer(entry, &step, &outcome, at);
                }
            }
            Input::Page { id, page } => {
                if let Some(Pending::Read(reading)) = self.works.close(id, Pending::is_read) {
                    self.turn_page(*reading, page, at);
                }
            }
            Input::Listed { id, objects } => {
                if self.works.close(id, Pending::is_list).is_some() {
                    self.listed(objects, at);
                }
            }
            Input::Written { id, written } => match self.works.close(id, Pending::is_write) {
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
        let due = self.nodes.timers.due(at.now);
        self.nodes.dirty.extend(due);
        for name in std::mem::take(&mut self.nodes.dirty) {
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
        self.works.take()
    }

    /// The time at which there can be work without any event; none while another operator leads.
    #[must_use]
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if self.standing == Standing::Following {
            return None;
        }
        let calls = self.calls.queue.ready_at(&self.calls.budgets, now);
        let calls = calls.filter(|_| self.may_change(now));
        let wakes = [Some(self.reads.next(now)), self.nodes.timers.next(), calls];
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
        self.nodes.progress.clear();
        self.calls.queue = Queue::default();
        self.works.begin();
        self.reads = Reads::default();
        self.nodes.lacked.clear();
        self.sweeping.begin();
        self.nodes.removals.begin();
        self.plain.begin();
        self.nodes.advertised.begin();
        self.nodes.timers.clear();
        for member in self.nodes.members.values_mut() {
            member.begin_epoch(at.now);
        }
        self.add_all_vpcs();
        self.nodes.dirty = self.nodes.members.keys().cloned().collect();
    }

    /// Reports if a change may begin now.
    fn may_change(&self, now: Time) -> bool {
        match self.standing {
            Standing::Leading { until } => now.after(CALL) < until,
            Standing::Following | Standing::Watching => false,
        }
    }

    fn forget(&mut self, now: Time) {
        self.forgotten = now;
        self.memory.forget(now);
        self.nodes
            .lacked
            .retain(|_, begun| now.since(*begun) < Duration::from_mins(10));
    }
}
