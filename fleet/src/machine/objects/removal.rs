//! Objects of nodes that are gone: their Node has been absent for long, and EC2 has no instance or
//! calls it terminated.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::{Instance, InstanceId};
use ipam::Time;

use crate::input::Moment;
use crate::machine::{Fleet, Pending};
use crate::reads::GATHERED;
use crate::work::Task;

/// Interval of reading the instance of an absent Node.
const LOOKED_AT: Duration = Duration::from_mins(5);
/// An instance that a read lacks is read again after so long: reads of EC2 may be old. Two that lack
/// it are believed.
const CONFIRMED_AFTER: Duration = Duration::from_mins(1);

/// Nodes, and the states of instances.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    /// The Nodes; none before they were listed.
    hosts: Option<BTreeSet<String>>,
    /// Nodes that were deleted, with the time since when.
    gone: BTreeMap<String, Time>,
    listed: Time,
    looked: Time,
    states: BTreeMap<InstanceId, State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    read: Time,
    life: Life,
}

/// An instance, as a read showed it.
#[derive(Clone, Copy, Debug)]
enum Life {
    There,
    Terminated,
    /// All reads since this one lack it.
    Lacking(Time),
}

impl State {
    /// True if the instance has ended, and no later read is needed.
    fn has_ended(self) -> bool {
        match self.life {
            Life::There => false,
            Life::Terminated => true,
            Life::Lacking(first) => self.read.since(first) >= CONFIRMED_AFTER,
        }
    }

    /// The interval after which it is read again.
    fn interval(self) -> Duration {
        match self.life {
            Life::Lacking(_) => CONFIRMED_AFTER,
            _ => LOOKED_AT,
        }
    }
}

impl Removals {
    /// Begins an epoch: states of instances are read again.
    pub(in crate::machine) fn begin(&mut self) {
        self.states.clear();
    }

    pub(in crate::machine) fn set_hosts(&mut self, hosts: BTreeSet<String>, now: Time) {
        match self.hosts.take() {
            None => self.listed = now,
            Some(before) => {
                for name in before.difference(&hosts) {
                    self.gone.entry(name.clone()).or_insert(now);
                }
            }
        }
        self.gone.retain(|name, _| !hosts.contains(name));
        self.hosts = Some(hosts);
    }

    pub(in crate::machine) fn set_host(&mut self, name: String, is_there: bool, now: Time) {
        let Some(hosts) = &mut self.hosts else {
            return;
        };
        if is_there {
            self.gone.remove(&name);
            hosts.insert(name);
        } else if hosts.remove(&name) {
            self.gone.insert(name, now);
        }
    }

    /// The time since when a Node has been absent; none if it is there, or nothing is known.
    pub(crate) fn absent_since(&self, name: &str) -> Option<Time> {
        let hosts = self.hosts.as_ref()?;
        if hosts.contains(name) {
            return None;
        }
        Some(self.gone.get(name).copied().unwrap_or(self.listed))
    }

    /// Handles a read of instances.
    pub(in crate::machine) fn take_states(
        &mut self,
        requested: &BTreeSet<InstanceId>,
        instances: &[Instance],
        begun: Time,
    ) {
        for id in requested {
            let first = match self.states.get(id).map(|it| it.life) {
                Some(Life::Lacking(first)) => first,
                _ => begun,
            };
            let life = match instances.iter().find(|it| it.id == *id) {
                Some(instance) if instance.state.is_terminated() => Life::Terminated,
                Some(_) => Life::There,
                None => Life::Lacking(first),
            };
            let state = State { read: begun, life };
            self.states.insert(id.clone(), state);
        }
    }

    /// True if EC2 had the instance in the last read of it, false if not.
    pub(in crate::machine) fn state_of(&self, instance: &InstanceId) -> Option<bool> {
        let state = self.states.get(instance);
        state.map(|it| matches!(it.life, Life::There))
    }
}

/// The next thing to do about an object without a Node.
enum Removal {
    Ask(InstanceId),
    Delete,
}

impl Fleet {
    /// Deletes objects of nodes that are gone.
    pub(in crate::machine) fn remove_objects(&mut self, at: Moment) {
        let Some(absence) = self.settings.removal.filter(|_| self.may_change(at.now)) else {
            return;
        };
        if at.now.since(self.nodes.removals.looked) < GATHERED {
            return;
        }
        self.nodes.removals.looked = at.now;
        let names: Vec<String> = self.nodes.members.keys().cloned().collect();
        for name in names {
            match self.removal(&name, absence, at.now) {
                Some(Removal::Ask(instance)) => self.reads.want_state(&instance),
                Some(Removal::Delete) => self.delete_object(&name, at),
                None => {}
            }
        }
    }

    fn removal(&self, name: &str, absence: Duration, now: Time) -> Option<Removal> {
        let since = self.nodes.removals.absent_since(name)?;
        let from = since.after(absence);
        let member = self.nodes.members.get(name)?;
        let is_waiting = member.writes.is_busy() || member.writes.pause(now).is_some();
        if now < from || member.is_left_alone() || is_waiting {
            return None;
        }
        let instance = member.instance()?;
        let state = self.nodes.removals.states.get(instance);
        match state.filter(|it| it.read >= from) {
            Some(state) if state.has_ended() => Some(Removal::Delete),
            Some(state) if now.since(state.read) < state.interval() => None,
            _ => Some(Removal::Ask(instance.clone())),
        }
    }

    fn delete_object(&mut self, name: &str, at: Moment) {
        let Some(member) = self.nodes.members.get(name) else {
            return;
        };
        let task = Task::Delete {
            name: name.to_owned(),
            uid: member.document.meta.uid.clone(),
            version: member.document.meta.version.clone(),
        };
        let pending = Pending::Delete {
            name: name.to_owned(),
        };
        let id = self.works.open(pending, task, at.now);
        if let Some(member) = self.nodes.members.get_mut(name) {
            member.writes.begin(id);
        }
    }
}
