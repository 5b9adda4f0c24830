//! Reads of EC2, and what follows from them.

use std::collections::BTreeSet;

use cloud::inventory::{Read, SETTLES, Scope};
use cloud::query::{Items, Page, What};
use cloud::{Action, Class, Eni, Failure, InstanceId};
use ipam::Time;

use super::{Fleet, Pending};
use crate::input::Moment;
use crate::reads::{GATHERED, Reading};
use crate::work::Task;

impl Fleet {
    /// Requests the reads that the inventory is due for.
    pub(super) fn ask_for_due(&mut self, at: Moment) {
        if at.now.since(self.asked) < GATHERED {
            return;
        }
        self.asked = at.now;
        let due = self.memory.inventory.due(at.now);
        if !due.instances.is_empty() {
            self.reads.want(&Scope::Instances(due.instances));
        }
        if !due.ids.is_empty() {
            self.reads.want(&Scope::Ids(due.ids));
        }
    }

    /// Sends pages that have their budget.
    pub(super) fn send_reads(&mut self, at: Moment) {
        if self.memory.pauses.of(Action::Describe, at.now).is_some() {
            return;
        }
        while let Some(mut reading) = self.reads.waiting.pop_front() {
            if self.budgets.take(Action::Describe, at.now).is_err() {
                self.reads.waiting.push_front(reading);
                return;
            }
            reading.begun.get_or_insert(at.now);
            let task = Task::Read(reading.query.clone());
            self.open(Pending::Read(Box::new(reading)), task, at.now);
        }
    }

    /// Handles a page of a read.
    pub(super) fn turn_page(
        &mut self,
        mut reading: Reading,
        page: Result<Page, Failure>,
        at: Moment,
    ) {
        match page {
            Ok(page) => {
                if !reading.items.extend(page.items) {
                    let reason = "the answer has items of another kind";
                    let failure = Failure::unanswered(Action::Describe, reason);
                    self.reads.fail(&reading, failure, at.now);
                } else if page.next.is_some() {
                    reading.query.page = page.next;
                    self.reads.waiting.push_front(reading);
                } else {
                    self.complete(reading, at);
                }
            }
            Err(failure) => {
                self.heed(&failure, at);
                if failure.class == Class::Throttled {
                    self.reads.waiting.push_front(reading);
                } else {
                    self.reads.fail(&reading, failure, at.now);
                }
            }
        }
    }

    fn complete(&mut self, reading: Reading, at: Moment) {
        self.reads.complete(&reading);
        let begun = reading.begun.unwrap_or(at.now);
        match (reading.query.what, reading.items) {
            (What::Enis(scope), Items::Enis(enis)) => self.merge(scope, enis, begun, at),
            (What::Instances(ids), Items::Instances(instances)) => {
                self.removals.take_states(&ids, &instances, begun);
                self.look_at_instances(&ids);
            }
            (What::Types(names), Items::Types(infos)) => {
                self.topology.take_types(&names, &infos, at.now);
                self.look_at_stuck();
            }
            (what, items) => {
                self.topology.take(items, at.now);
                if what == What::Subnets {
                    self.memory.pressure.read(begun);
                }
                self.look_at_stuck();
            }
        }
    }

    fn merge(&mut self, scope: Scope, enis: Vec<Eni>, begun: Time, at: Moment) {
        let shown: BTreeSet<InstanceId> = enis
            .iter()
            .filter_map(|it| it.instance().cloned())
            .collect();
        if let Scope::Ids(ids) = &scope {
            let missing = ids.iter().filter(|id| !enis.iter().any(|it| it.id == **id));
            self.lacked.extend(missing.map(|id| (id.clone(), begun)));
            self.sweeping.judge(ids, &enis, at.now);
        }
        if matches!(scope, Scope::All | Scope::Loose) {
            self.observe_loose(&enis, begun, at);
        }
        let read = Read { begun, scope, enis };
        let merged = self.memory.inventory.merge(&read);
        // No doubt is left about what the inventory withdrew.
        let settled = at.now.after(2 * SETTLES);
        let withdrawn = merged.withdrawn.into_iter();
        self.lacked.extend(withdrawn.map(|id| (id, settled)));
        self.look_at_instances(&merged.changed);
        match &read.scope {
            Scope::Instances(instances) => self.look_at_instances(instances),
            Scope::Ids(_) => self.look_at_instances(&shown),
            Scope::All | Scope::Loose => {}
        }
        self.look_at_stuck();
    }

    fn look_at_instances(&mut self, instances: &BTreeSet<InstanceId>) {
        let names = instances.iter().filter_map(|it| self.by_instance.get(it));
        let names: Vec<String> = names.flatten().cloned().collect();
        self.dirty.extend(names);
    }
}
