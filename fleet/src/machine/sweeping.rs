//! The sweep of ENIs that nothing holds any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::call::budget::{Entry, Need};
use cloud::inventory::{Change, Scope};
use cloud::node::{Outcome, Step};
use cloud::object::tags::CreatedAtError;
use cloud::sweep::{Leftover, NoClusterError, Sweep, Verdict};
use cloud::{Action, Class, Eni, EniId};
use ipam::Time;

use super::{Fleet, Key};
use crate::input::Moment;
use crate::member::Member;

/// Maximum age of the check of an ENI at its deletion. Afterwards it is checked again.
const LOOKED_AT: Duration = Duration::from_secs(10);
/// An ENI that could not be deleted is tried again after so long.
const TRIED_AGAIN: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Sweeping {
    cluster: String,
    sweep: Sweep,
    /// ENIs that are to be deleted, with the time of the check.
    judged: BTreeMap<EniId, Time>,
    /// ENIs that are being checked.
    checking: BTreeSet<EniId>,
    /// ENIs that wait after a failure.
    barred: BTreeMap<EniId, Time>,
    /// ENIs that the cluster made and whose age cannot be read.
    pub(crate) unreadable: Vec<CreatedAtError>,
}

impl Sweeping {
    pub(super) fn new(cluster: &str) -> Result<Self, NoClusterError> {
        Ok(Self {
            cluster: cluster.to_owned(),
            sweep: Sweep::new(cluster)?,
            judged: BTreeMap::new(),
            checking: BTreeSet::new(),
            barred: BTreeMap::new(),
            unreadable: Vec::new(),
        })
    }

    /// Begins an epoch.
    pub(super) fn begin(&mut self) {
        if let Ok(new) = Self::new(&self.cluster) {
            *self = new;
        }
    }

    /// Judges ENIs by a read by their ids.
    pub(super) fn judge(&mut self, ids: &BTreeSet<EniId>, read: &[Eni], now: Time) {
        for id in ids {
            if !self.checking.remove(id) {
                continue;
            }
            let eni = read.iter().find(|it| it.id == *id);
            match self.sweep.judge(eni) {
                Verdict::Delete => drop(self.judged.insert(id.clone(), now)),
                Verdict::Keep | Verdict::Gone => self.sweep.drop_eni(id),
            }
        }
    }

    /// Removes an ENI that is to be deleted now. Returns false if its check is too long ago.
    pub(super) fn take_judged(&mut self, eni: &EniId, now: Time) -> bool {
        let judged = self.judged.remove(eni);
        judged.is_some_and(|at| now.since(at) <= LOOKED_AT)
    }

    /// ENIs that could not be deleted.
    pub(crate) fn leftovers(&self) -> Vec<Leftover> {
        self.sweep.leftovers()
    }
}

impl Fleet {
    /// Handles a complete listing of loose ENIs, including foreign ones. Loose ENIs of nodes that
    /// are served are left to those nodes, and those of nodes that get no calls are not.
    pub(super) fn observe_loose(&mut self, enis: &[Eni], begun: Time, at: Moment) {
        let (by_instance, members) = (&self.nodes.by_instance, &self.nodes.members);
        let (inventory, topology) = (&self.memory.inventory, &self.topology);
        let gets_calls = |member: &Member| {
            let kind = member.node.instance_type.as_deref();
            !member.is_left_alone()
                && member.document.problems.of_rules.is_empty()
                && member.rival.is_none()
                && member.node.location.is_some()
                && kind.is_some_and(|it| topology.type_fault(it).is_none())
        };
        let is_served = |instance: &cloud::InstanceId| {
            let names = by_instance.get(instance).into_iter().flatten();
            let mut served = names.filter_map(|it| members.get(it));
            let has_primary = inventory
                .of_instance(instance)
                .filter_map(|eni| eni.attachment.as_ref())
                .any(|it| it.index == 0 && it.card == 0);
            has_primary && served.any(gets_calls)
        };
        let loose = enis.iter().filter(|it| it.is_loose());
        self.sweeping.unreadable = self.sweeping.sweep.observe(begun, loose, is_served);
        let barred = &mut self.sweeping.barred;
        barred.retain(|_, until| *until > at.now);
    }

    /// Requests a read of the ENIs that are due for a check, and queues those to be deleted.
    pub(super) fn sweep(&mut self, at: Moment) {
        for eni in self.sweeping.sweep.due() {
            let key = Key::Sweep(eni.clone());
            let waits = self
                .sweeping
                .barred
                .get(&eni)
                .is_some_and(|it| *it > at.now);
            let is_known = self.sweeping.checking.contains(&eni)
                || self.sweeping.judged.contains_key(&eni)
                || self.works.has_call(&key);
            if waits || is_known {
                continue;
            }
            self.reads.want(&Scope::Ids([eni.clone()].into()));
            self.sweeping.checking.insert(eni);
        }
        for eni in self.sweeping.judged.keys() {
            self.calls.queue.push(Entry {
                key: Key::Sweep(eni.clone()),
                action: Action::Delete,
                need: Need::Sweep,
                since: at.now,
            });
        }
    }

    /// Handles the answer to a deletion.
    pub(super) fn swept(&mut self, eni: &EniId, step: &Step, outcome: &Outcome, at: Moment) {
        match outcome {
            Outcome::Failed(failure) if failure.class != Class::NotFound => {
                let until = at.now.after(TRIED_AGAIN);
                self.sweeping.barred.insert(eni.clone(), until);
                self.sweeping.sweep.fail(eni, failure.clone());
            }
            _ => {
                self.sweeping.sweep.drop_eni(eni);
                if let Step::Delete { eni } = step {
                    self.memory.inventory.expect(eni, Change::Deleted, at.now);
                }
            }
        }
    }
}
