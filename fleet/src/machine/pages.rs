//! Reads of EC2, and what follows from them.

use std::collections::BTreeSet;

use cloud::call::query::{Items, Page, What};
use cloud::inventory::{Read, SETTLES, Scope};
use cloud::{Eni, Failure, InstanceId};
use ipam::Time;

use super::{Fleet, Pending};
use crate::input::Moment;
use crate::reads::{GATHERED, Reading};
use crate::work::Task;

impl Fleet {
    /// Requests the reads that the inventory is due for.
    pub(super) fn ask_for_due(&mut self, at: Moment) {
        if at.now.since(self.reads.requested) < GATHERED {
            return;
        }
        self.reads.requested = at.now;
        let by_instance = &self.nodes.by_instance;
        let is_served = |instance: &InstanceId| by_instance.contains_key(instance);
        let due = self.memory.inventory.due(at.now, is_served);
        if !due.instances.is_empty() {
            self.reads.want(&Scope::Instances(due.instances));
        }
        if !due.ids.is_empty() {
            self.reads.want(&Scope::Ids(due.ids));
        }
        if self.reads.begin_primaries(&self.settings, at.now) {
            self.want_primaries();
        }
    }

    /// Requests the primary ENIs of all nodes.
    fn want_primaries(&mut self) {
        let inventory = &self.memory.inventory;
        let instances = self.nodes.by_instance.keys();
        let primaries = instances.filter_map(|instance| inventory.primary_of(instance));
        let ids = primaries.map(|eni| eni.id.clone()).collect();
        self.reads.want_primaries(ids);
    }

    /// Sends pages that have their budget.
    pub(super) fn send_reads(&mut self, at: Moment) {
        for mut reading in std::mem::take(&mut self.reads.waiting) {
            let action = reading.query.what.action();
            let is_paused = self.memory.pauses.of(action, at.now).is_some();
            if is_paused || self.calls.budgets.take(action, at.now).is_err() {
                self.reads.waiting.push_back(reading);
                continue;
            }
            reading.begun.get_or_insert(at.now);
            let task = Task::Read(reading.query.clone());
            self.works
                .open(Pending::Read(Box::new(reading)), task, at.now);
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
            Ok(mut page) => {
                reading.pages += 1;
                self.leave_out_others(&reading, &mut page);
                if !reading.items.extend(page.items) {
                    let reason = "the answer has items of another kind";
                    let failure = Failure::unanswered(reading.query.what.action(), reason);
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
                if reading.repeats(failure.class) {
                    self.reads.waiting.push_front(reading);
                } else {
                    self.reads.fail(&reading, failure, at.now);
                }
            }
        }
    }

    /// Leaves out ENIs of others, which a listing has by thousands.
    fn leave_out_others(&self, reading: &Reading, page: &mut Page) {
        let is_listing = matches!(
            reading.query.what,
            What::Enis(Scope::All | Scope::Loose | Scope::Primaries)
        );
        if let Items::Enis(enis) = &mut page.items
            && is_listing
        {
            enis.retain(|eni| self.memory.inventory.concerns(eni));
        }
    }

    fn complete(&mut self, reading: Reading, at: Moment) {
        self.reads.complete(&reading);
        let begun = reading.begun.unwrap_or(at.now);
        match (reading.query.what, reading.items) {
            (What::Enis(scope), Items::Enis(enis)) => self.merge(scope, enis, begun, at),
            (What::Instances(ids), Items::Instances(instances)) => {
                self.nodes.removals.take_states(&ids, &instances, begun);
                self.look_at_instances(&ids);
            }
            (What::Types(names), Items::Types(infos)) => {
                self.topology.take_types(&names, &infos, at.now);
                self.look_at_stuck();
            }
            (What::Addresses, Items::Addresses(all)) => self.take_addresses(all, begun),
            (what, items) => {
                // The status of each node has CIDRs.
                if self.topology.take(items, at.now) {
                    self.nodes.dirty.extend(self.nodes.members.keys().cloned());
                }
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
            self.nodes
                .lacked
                .extend(missing.map(|id| (id.clone(), begun)));
            self.sweeping.judge(ids, &enis, at.now);
        }
        if matches!(scope, Scope::All | Scope::Loose) {
            self.observe_loose(&enis, begun, at);
        }
        let read = Read { begun, scope, enis };
        let merged = self.memory.merge(&read);
        // No doubt is left about what the inventory withdrew.
        let settled = at.now.after(2 * SETTLES);
        let withdrawn = merged.withdrawn.into_iter();
        self.nodes.lacked.extend(withdrawn.map(|id| (id, settled)));
        self.look_at_instances(&merged.changed);
        match &read.scope {
            Scope::Instances(instances) => self.look_at_instances(instances),
            Scope::Ids(_) => self.look_at_instances(&shown),
            Scope::All | Scope::Loose | Scope::Primaries => {}
        }
        self.look_at_stuck();
    }

    fn look_at_instances(&mut self, instances: &BTreeSet<InstanceId>) {
        let names = instances
            .iter()
            .filter_map(|it| self.nodes.by_instance.get(it));
        let names: Vec<String> = names.flatten().cloned().collect();
        self.nodes.dirty.extend(names);
    }
}

#[cfg(test)]
mod tests {
    use cloud::call::query::Query;
    use cloud::{InterfaceKind, Placement, Tags};
    use jiff::Timestamp;

    use super::*;
    use crate::Settings;

    /// A fleet without nodes, and a read of it.
    fn fleet(what: What) -> (Fleet, Reading, Moment) {
        let at = Moment {
            now: Time::default(),
            date: Timestamp::UNIX_EPOCH,
        };
        let query = Query {
            what,
            vpcs: BTreeSet::new(),
            page: None,
        };
        let reading = Reading {
            items: query.what.items(),
            query,
            begun: Some(at.now),
            pages: 0,
            repeats: 0,
        };
        let fleet = Fleet::new(Settings::of("one"), at).unwrap();
        (fleet, reading, at)
    }

    #[test]
    fn a_listing_keeps_no_enis_of_others() {
        for (scope, kept) in [
            (Scope::All, 0),
            (Scope::Loose, 0),
            (Scope::Primaries, 0),
            (Scope::Ids(["eni-1".into()].into()), 1),
        ] {
            let (mut fleet, reading, at) = fleet(What::Enis(scope.clone()));
            let eni = Eni {
                id: "eni-1".into(),
                placement: Placement {
                    vpc: "vpc-1".into(),
                    subnet: "subnet-1".into(),
                    zone: "a".to_owned(),
                },
                mac: [2, 0, 0, 0, 0, 1],
                kind: InterfaceKind::Standard,
                description: String::new(),
                own: None,
                public: None,
                blocks: BTreeSet::new(),
                groups: BTreeSet::new(),
                tags: Tags::new(),
                is_pending: true,
                attachment: None,
            };
            let page = Page {
                items: Items::Enis(vec![eni]),
                next: Some("2".to_owned()),
            };
            fleet.turn_page(reading, Ok(page), at);
            let next = fleet.reads.waiting.pop_front().unwrap();
            let Items::Enis(enis) = next.items else {
                panic!("{:?}", next.items);
            };
            assert_eq!(enis.len(), kept, "{scope:?}");
        }
    }

    #[test]
    fn a_page_with_a_token_is_followed_by_the_next_one() {
        let (mut fleet, reading, at) = fleet(What::Subnets);
        let page = |next: Option<&str>| Page {
            items: Items::Subnets(Vec::new()),
            next: next.map(str::to_owned),
        };
        fleet.turn_page(reading.clone(), Ok(page(Some("2"))), at);
        let next = fleet.reads.waiting.pop_front().unwrap();
        assert_eq!(next.query.page.as_deref(), Some("2"));
        fleet.turn_page(next, Ok(page(None)), at);
        assert!(fleet.reads.waiting.is_empty());
    }
}
