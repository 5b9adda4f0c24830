//! Calls that change something at EC2.

use cloud::call::budget::Entry;
use cloud::node::{Context, Outcome, Step, begin, settle};
use cloud::{Class, Failure};

use super::works::{LOST, Pending};
use super::{Fleet, Key};
use crate::input::{Moment, Written};
use crate::reads::Regular;
use crate::work::{Task, WorkId};

impl Fleet {
    /// Sends the calls that have their budget, most urgent first.
    pub(super) fn send_calls(&mut self, at: Moment) {
        if !self.may_change(at.now) {
            return;
        }
        while let Some(entry) = self.calls.queue.pop(&mut self.calls.budgets, at.now) {
            match entry.key.clone() {
                Key::Node(name) => self.send_step(&name, entry, at),
                Key::Sweep(eni) => {
                    if self.sweeping.take_judged(&eni, at.now) {
                        let step = Step::Delete { eni };
                        self.send(entry, step, at);
                    }
                }
            }
        }
    }

    /// Sends the call of a node. Calls of others since it was planned can have changed the plan.
    fn send_step(&mut self, name: &str, entry: Entry<Key>, at: Moment) {
        let next = self.next_of(name, at);
        let (Some(step), Some(need)) = (next.step, next.need) else {
            self.nodes.dirty.insert(name.to_owned());
            return;
        };
        let action = step.action();
        if action != entry.action {
            self.calls.queue.push(Entry {
                action,
                need,
                ..entry
            });
            return;
        }
        let Some(member) = self.nodes.members.get(name) else {
            return;
        };
        let progress = self.nodes.progress.entry(name.to_owned()).or_default();
        begin(&step, &member.node, progress, &mut self.memory);
        self.send(entry, step, at);
    }

    fn send(&mut self, entry: Entry<Key>, step: Step, at: Moment) {
        let task = Task::Call(step.clone());
        self.works.open(Pending::Call { entry, step }, task, at.now);
    }

    /// Handles the answer to a call.
    pub(super) fn answer(&mut self, entry: Entry<Key>, step: &Step, outcome: &Outcome, at: Moment) {
        if let Outcome::Failed(failure) = outcome {
            self.heed(failure, at);
        }
        match &entry.key {
            Key::Node(name) => {
                let name = name.clone();
                self.settle(&name, outcome, at);
                let is_throttled =
                    matches!(outcome, Outcome::Failed(it) if it.class == Class::Throttled);
                if is_throttled && self.nodes.members.contains_key(&name) {
                    // It waits from when it waited first.
                    self.calls.queue.push(entry);
                }
                self.nodes.dirty.insert(name);
            }
            Key::Sweep(eni) => {
                let eni = eni.clone();
                self.swept(&eni, step, outcome, at);
            }
        }
    }

    fn settle(&mut self, name: &str, outcome: &Outcome, at: Moment) {
        let Some(progress) = self.nodes.progress.get_mut(name) else {
            return;
        };
        let mut context = Context {
            facts: &self.topology.facts,
            memory: &mut self.memory,
            now: at.now,
        };
        settle(outcome, progress, &mut context);
        if !self.nodes.members.contains_key(name) {
            self.nodes.progress.remove(name);
        }
    }

    /// Learns from a refusal what concerns all nodes.
    pub(super) fn heed(&mut self, failure: &Failure, at: Moment) {
        match failure.class {
            Class::Throttled => self.calls.budgets.throttle(failure.action, at.now),
            Class::SubnetFull => self.reads.demand(Regular::Subnets),
            Class::AddressTaken => self.reads.demand(Regular::Addresses),
            Class::Denied | Class::Quota | Class::Credentials if failure.action.is_read() => {
                self.memory.pauses.refuse(failure, at.now);
            }
            _ => {}
        }
    }

    /// Works without an answer are lost.
    pub(super) fn expire(&mut self, at: Moment) {
        while let Some((id, pending)) = self.works.lose(at.now) {
            self.lose(id, pending, at);
        }
    }

    fn lose(&mut self, id: WorkId, pending: Pending, at: Moment) {
        let reason = format!("no answer within {} s", LOST.as_secs());
        let written = Written::Failed {
            reason: reason.clone(),
            retry_after: None,
        };
        match pending {
            Pending::Call { entry, step } => {
                let failure = Failure::unanswered(step.action(), &reason);
                self.answer(entry, &step, &Outcome::Failed(failure), at);
            }
            Pending::Read(reading) => {
                let failure = Failure::unanswered(reading.query.what.action(), &reason);
                self.turn_page(*reading, Err(failure), at);
            }
            Pending::Patch(patch) => self.patched(&patch, id, written, at),
            Pending::List => self.listed(Err(reason), at),
            Pending::Pool { name } => self.marked(&name, id, written, at),
            Pending::Advertise { name, numbers } => self.advertised(name, numbers, &written),
            Pending::Delete { name } => self.deleted(&name, id, written, at),
        }
    }
}
