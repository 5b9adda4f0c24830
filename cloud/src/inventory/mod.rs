//! The ENIs that EC2 has, as far as reads and answers show.
//!
//! Reads lag: one can lack what an earlier one showed. So an answer is believed at once and checked
//! later, and a read that merely lacks an ENI removes nothing.

mod expect;
mod known;
mod read;

use std::collections::{BTreeMap, BTreeSet};

use ipam::Time;
use ipnet::IpNet;

pub use self::expect::{Change, GIVES_UP, SETTLES};
use self::known::Known;
pub use self::read::{Due, Merged, Read, Scope};
use crate::object::tags;
use crate::{Eni, EniId, InstanceId};

/// The inventory of one cluster's operator.
#[derive(Clone, Debug)]
pub struct Inventory {
    cluster: String,
    known: BTreeMap<EniId, Known>,
    /// ENIs by the instance that they are attached to or were created for.
    by_instance: BTreeMap<InstanceId, BTreeSet<EniId>>,
    /// The beginning of the last listing of all loose ENIs.
    loose_read: Option<Time>,
    /// The beginning of the last read of an instance's ENIs.
    read: BTreeMap<InstanceId, Time>,
    /// The beginning of the last read of all ENIs.
    all_read: Option<Time>,
}

impl Inventory {
    /// An inventory that has read nothing yet.
    #[must_use]
    pub fn new(cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            known: BTreeMap::new(),
            by_instance: BTreeMap::new(),
            loose_read: None,
            read: BTreeMap::new(),
            all_read: None,
        }
    }

    /// The cluster's name.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// An ENI, if it is there.
    #[must_use]
    pub fn get(&self, id: &EniId) -> Option<&Eni> {
        let known = self.known.get(id).filter(|it| !it.is_deleted());
        known.map(|it| &it.shown)
    }

    /// True if an ENI that a listing shows can matter: an instance has it, an operator of the cluster
    /// created it, or it is known. All others of the VPC only take memory and calls.
    #[must_use]
    pub fn concerns(&self, eni: &Eni) -> bool {
        let is_attached = owner(&self.cluster, eni).is_some();
        let is_of_cluster = eni.tags.get(tags::CLUSTER) == Some(&self.cluster);
        is_attached || is_of_cluster || self.known.contains_key(&eni.id)
    }

    /// All ENIs.
    pub fn enis(&self) -> impl Iterator<Item = &Eni> {
        let known = self.known.values().filter(|it| !it.is_deleted());
        known.map(|it| &it.shown)
    }

    /// The ENIs that are attached to an instance, or loose and created for it.
    pub fn of_instance(&self, instance: &InstanceId) -> impl Iterator<Item = &Eni> {
        let ids = self.by_instance.get(instance).into_iter().flatten();
        ids.filter_map(|id| self.get(id))
    }

    /// The ENI of device index 0 and card 0 of an instance.
    #[must_use]
    pub fn primary_of(&self, instance: &InstanceId) -> Option<&Eni> {
        self.of_instance(instance).find(|eni| {
            let attachment = eni.attachment.as_ref();
            attachment.is_some_and(|it| it.index == 0 && it.card == 0)
        })
    }

    /// The blocks of an ENI that can be published: EC2 answered with them or two reads showed them.
    /// A late call of a dead operator can still take back what a single read shows.
    pub fn settled_blocks(&self, id: &EniId) -> impl Iterator<Item = IpNet> {
        let known = self.known.get(id).filter(|it| !it.is_deleted());
        known.into_iter().flat_map(|known| {
            let blocks = known.shown.blocks.iter();
            blocks.filter(|block| known.is_settled(block)).copied()
        })
    }

    /// Reports if none of an instance's ENIs has a block, by reads that are late enough.
    #[must_use]
    pub fn lacks(&self, instance: &InstanceId, block: &IpNet) -> bool {
        let ids = self.by_instance.get(instance).into_iter().flatten();
        let known = ids.filter_map(|id| self.known.get(id));
        known.into_iter().all(|it| it.lacks(block))
    }

    /// True if EC2 answered lately that it assigned a block to an ENI of an instance.
    #[must_use]
    pub fn was_given(&self, instance: &InstanceId, block: &IpNet) -> bool {
        let ids = self.by_instance.get(instance).into_iter().flatten();
        let mut known = ids.filter_map(|id| self.known.get(id));
        known.any(|it| it.was_given(block))
    }

    /// The beginning of the last listing of all loose ENIs.
    #[must_use]
    pub fn loose_read(&self) -> Option<Time> {
        self.loose_read
    }

    /// The beginning of the last read of an instance's attached ENIs.
    #[must_use]
    pub fn read_of(&self, instance: &InstanceId) -> Option<Time> {
        self.read.get(instance).copied().max(self.all_read)
    }

    /// The beginning of the last read that showed an ENI.
    #[must_use]
    pub fn read_at(&self, id: &EniId) -> Option<Time> {
        self.known.get(id).map(Known::read_at)
    }

    /// The beginning of the last read by id that showed an ENI.
    #[must_use]
    pub fn read_by_id(&self, id: &EniId) -> Option<Time> {
        self.known.get(id)?.by_id_at()
    }

    /// Reports if EC2 answered a call about the ENI so lately that reads need not show it.
    #[must_use]
    pub fn is_fresh(&self, id: &EniId, now: Time) -> bool {
        self.known.get(id).is_some_and(|it| it.is_fresh(now))
    }

    /// EC2 says that it has no such ENI: the next read by id decides.
    pub fn doubt(&mut self, id: &EniId, now: Time) {
        if let Some(known) = self.known.get_mut(id) {
            known.doubt(now);
        }
    }

    /// Adds an ENI from the answer to its creation.
    pub fn created(&mut self, eni: Eni, now: Time) {
        let id = eni.id.clone();
        // The answer to a repeated token can be about an ENI that reads have shown already.
        let blocks = eni.blocks.clone();
        self.known
            .entry(id.clone())
            .or_insert_with(|| Known::new(eni, now));
        self.expect(&id, Change::Created, now);
        if !blocks.is_empty() {
            self.expect(&id, Change::Assigned(blocks), now);
        }
    }

    /// Records the expected change of any other answer. For an unknown ENI nothing is expected.
    pub fn expect(&mut self, id: &EniId, change: Change, now: Time) {
        if let Some(known) = self.known.get_mut(id) {
            let before = owner(&self.cluster, &known.shown);
            known.expect(change, now);
            let after = owner(&self.cluster, &known.shown);
            self.index(id, before, after);
        }
    }

    fn index(&mut self, id: &EniId, before: Option<InstanceId>, after: Option<InstanceId>) {
        if before != after
            && let Some(instance) = before
            && let Some(ids) = self.by_instance.get_mut(&instance)
        {
            ids.remove(id);
            if ids.is_empty() {
                self.by_instance.remove(&instance);
            }
        }
        if let Some(instance) = after {
            self.by_instance
                .entry(instance)
                .or_default()
                .insert(id.clone());
        }
    }
}

/// The instance that an ENI belongs to: it is attached to it, or loose and created for it.
fn owner(cluster: &str, eni: &Eni) -> Option<InstanceId> {
    match &eni.attachment {
        Some(attachment) => attachment.instance.clone(),
        None => tags::instance_of(&eni.tags, cluster),
    }
}

#[cfg(test)]
mod tests;
