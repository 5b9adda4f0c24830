//! Reads of ENIs, and how they are merged.

use std::collections::BTreeSet;

use ipam::Time;

use super::known::Known;
use super::{Inventory, owner};
use crate::{Eni, EniId, InstanceId};

/// The ENIs that a read covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the VPC.
    All,
    /// All that nothing holds.
    Loose,
    /// The primary ENIs of all instances of the VPC. One that a read lacks is not missed: an
    /// instance starts and ends with its own.
    Primaries,
    /// All that are attached to one of these instances.
    Instances(BTreeSet<InstanceId>),
    /// Those with these ids.
    Ids(BTreeSet<EniId>),
}

/// A complete read, all pages of it.
#[derive(Clone, Debug)]
pub struct Read {
    /// The moment at which its first call was sent.
    pub begun: Time,
    /// The ENIs that it covers.
    pub scope: Scope,
    /// The ENIs that it showed.
    pub enis: Vec<Eni>,
}

/// The changes by a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Instances whose ENIs are not as they were, or have an answer or a block that is settled now.
    pub changed: BTreeSet<InstanceId>,
    /// ENIs that are gone.
    pub withdrawn: Vec<EniId>,
}

/// ENIs and instances to read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Instances whose ENIs are to be read.
    pub instances: BTreeSet<InstanceId>,
    /// ENIs that are to be read by id.
    pub ids: BTreeSet<EniId>,
}

impl Inventory {
    /// Merges a read.
    pub fn merge(&mut self, read: &Read) -> Merged {
        let mut merged = Merged::default();
        let mut present = BTreeSet::new();
        for eni in &read.enis {
            present.insert(&eni.id);
            self.merge_present(eni, read, &mut merged);
        }
        for id in self.missing(&read.scope, &present) {
            self.merge_missing(&id, read, &mut merged);
        }
        self.date(read);
        merged
    }

    fn merge_present(&mut self, eni: &Eni, read: &Read, merged: &mut Merged) {
        let known = self.known.get(&eni.id);
        let before = known
            .filter(|it| !it.is_deleted())
            .map(|it| it.shown.clone());
        let known = self.known.entry(eni.id.clone());
        let known = known.or_insert_with(|| Known::new(eni.clone(), read.begun));
        let settles = known.seen(eni, read.begun, matches!(read.scope, Scope::Ids(_)));
        let after = (!known.is_deleted()).then_some(&known.shown);
        let new_owner = after.and_then(|eni| owner(&self.cluster, eni));
        let old_owner = before.as_ref().and_then(|eni| owner(&self.cluster, eni));
        if settles || before.as_ref() != after {
            merged
                .changed
                .extend(old_owner.iter().chain(&new_owner).cloned());
        }
        self.index(&eni.id, old_owner, new_owner);
    }

    /// Known ENIs that a read should have shown.
    fn missing(&self, scope: &Scope, present: &BTreeSet<&EniId>) -> Vec<EniId> {
        let missing = |id: &&EniId| !present.contains(id);
        match scope {
            Scope::All => self.known.keys().filter(missing).cloned().collect(),
            Scope::Loose => {
                let known = self.known.iter();
                let loose = known.filter(|(_, known)| known.shown.is_loose());
                loose.map(|(id, _)| id).filter(missing).cloned().collect()
            }
            Scope::Instances(instances) => {
                let ids = self.attached_to(instances);
                ids.into_iter().filter(missing).cloned().collect()
            }
            Scope::Primaries => Vec::new(),
            Scope::Ids(ids) => {
                let known = ids.iter().filter(|id| self.known.contains_key(*id));
                known.filter(missing).cloned().collect()
            }
        }
    }

    /// Known ENIs that reads last showed at instances. The index has all but those that were
    /// deleted.
    fn attached_to(&self, instances: &BTreeSet<InstanceId>) -> BTreeSet<&EniId> {
        let is_at = |known: &Known| {
            let instance = known.shown.instance();
            instance.is_some_and(|it| instances.contains(it))
        };
        let indexed = instances.iter();
        let indexed = indexed.filter_map(|it| self.by_instance.get(it)).flatten();
        let indexed = indexed.filter(|id| self.known.get(*id).is_some_and(is_at));
        let deleted = self.known.iter();
        let deleted = deleted.filter(|(_, known)| known.is_deleted() && is_at(known));
        indexed.chain(deleted.map(|(id, _)| id)).collect()
    }

    fn merge_missing(&mut self, id: &EniId, read: &Read, merged: &mut Merged) {
        let by_id = matches!(read.scope, Scope::Ids(_));
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        if !known.lacked(read.begun, by_id) {
            return;
        }
        let was_deleted = known.is_deleted();
        let owner = owner(&self.cluster, &known.shown);
        self.known.remove(id);
        self.index(id, owner.clone(), None);
        if !was_deleted {
            merged.changed.extend(owner);
            merged.withdrawn.push(id.clone());
        }
    }

    fn date(&mut self, read: &Read) {
        let begun = Some(read.begun);
        match &read.scope {
            Scope::All => {
                self.all_read = self.all_read.max(begun);
                self.loose_read = self.loose_read.max(begun);
            }
            Scope::Loose => self.loose_read = self.loose_read.max(begun),
            Scope::Instances(instances) => {
                for instance in instances {
                    let last = self.read.entry(instance.clone()).or_insert(read.begun);
                    *last = read.begun.max(*last);
                }
            }
            Scope::Primaries | Scope::Ids(_) => {}
        }
    }

    /// ENIs and instances to read now: something is moving, an answer is due for a check, or
    /// an ENI was missed. State and blocks matter only where the instance `is_served`.
    #[must_use]
    pub fn due(&self, now: Time, is_served: impl Fn(&InstanceId) -> bool) -> Due {
        let mut due = Due::default();
        for (id, known) in &self.known {
            let owner = || owner(&self.cluster, &known.shown);
            let is_due = known.wants_an_answer(now)
                || (known.wants_a_look(now) && owner().is_some_and(|it| is_served(&it)));
            if !is_due {
                continue;
            }
            match known.shown.instance() {
                Some(instance) if !known.wants_a_read_by_id() && !known.is_deleted() => {
                    due.instances.insert(instance.clone());
                }
                _ => {
                    due.ids.insert(id.clone());
                }
            }
        }
        due
    }

    /// Forgets the time of an instance's reads. The ENIs stay until reads show that they are gone.
    pub fn forget(&mut self, instance: &InstanceId) {
        self.read.remove(instance);
    }
}
