//! A node with its ENIs, sorted by what they are to it.

use std::collections::BTreeSet;

use super::{Aside, Node, Progress, Role, World};
use crate::subnet::Location;
use crate::want::{Reading, Want};
use crate::{Eni, EniId, GroupId, InstanceId, Limits, block, groups, tags};

/// A node with its ENIs.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) node: &'a Node,
    pub(super) progress: &'a Progress,
    pub(super) world: &'a World<'a>,
    pub(super) instance: &'a InstanceId,
    pub(super) location: &'a Location,
    pub(super) limits: Limits,
    /// ENIs that give addresses.
    pub(super) counted: Vec<&'a Eni>,
    /// ENIs that were created for the instance and that nothing holds.
    pub(super) loose: Vec<&'a Eni>,
    /// Indices of card 0 that are taken.
    taken: BTreeSet<u16>,
    primary: Option<&'a Eni>,
    pub(super) reading: Reading,
}

impl<'a> View<'a> {
    pub(super) fn new(
        node: &'a Node,
        progress: &'a Progress,
        world: &'a World<'a>,
        given: (&'a InstanceId, &'a Location, Limits),
    ) -> Self {
        let (instance, location, limits) = given;
        let mut view = Self {
            node,
            progress,
            world,
            instance,
            location,
            limits,
            counted: Vec::new(),
            loose: Vec::new(),
            taken: BTreeSet::new(),
            primary: None,
            reading: Reading::of(&node.demand, node.marks.pre),
        };
        for eni in world.memory.inventory.of_instance(instance) {
            view.add(eni);
        }
        view
    }

    fn add(&mut self, eni: &'a Eni) {
        if let Some(attachment) = eni.attachment.as_ref().filter(|it| it.card == 0) {
            self.taken.insert(attachment.index);
            if attachment.index == 0 {
                self.primary = Some(eni);
            }
        }
        match Role::of(eni, &self.node.rules) {
            Role::Counted => self.counted.push(eni),
            Role::Aside(Aside::Loose) => self.loose.push(eni),
            Role::Aside(_) => {}
        }
    }

    /// The want for IPv4. Loose ENIs count: they will be attached.
    pub(super) fn want(&self) -> Want {
        self.want_without(None)
    }

    /// The want if there was one loose ENI less.
    pub(super) fn want_without(&self, eni: Option<&EniId>) -> Want {
        let counted = self.counted.iter().map(|it| {
            let index = it.attachment.as_ref().map_or(0, |at| at.index);
            it.available(self.node.rules.use_primary && index != 0)
        });
        let loose = self.loose.iter().filter(|it| Some(&it.id) != eni);
        let loose = loose.map(|it| it.available(self.node.rules.use_primary));
        let available = counted.chain(loose).fold(0, u32::saturating_add);
        Want::of(
            available,
            self.reading.used,
            self.node.pending,
            &self.node.marks,
        )
    }

    /// Reports if an IPv6 prefix is missing, were there one loose ENI less.
    pub(super) fn wants_ipv6_without(&self, eni: Option<&EniId>) -> bool {
        let mut all = self.counted.iter().chain(&self.loose);
        let has = all.any(|it| Some(&it.id) != eni && has_prefix_v6(it));
        self.reading.ipv6 && self.limits.prefixes && !has
    }

    /// The index for the next ENI; none where the instance is full.
    pub(super) fn free_index(&self) -> Option<u16> {
        let learned = &self.world.memory.learned;
        let adapters = learned.adapters(self.instance, &self.limits, self.world.now);
        if self.attached() >= adapters {
            return None;
        }
        let indices = self.node.rules.first_index..self.limits.adapters;
        let mut free = indices.filter(|it| !self.taken.contains(it));
        let refused = &self.progress.taken_indices;
        let untried = free.clone().find(|it| !refused.contains(it));
        untried.or_else(|| free.next())
    }

    /// Reports if pods can have no address, as the device of no ENI with addresses is there.
    pub(super) fn has_no_addresses(&self) -> bool {
        let mut serving = self.counted.iter().filter(|it| it.is_attached());
        !serving.any(|it| !it.blocks.is_empty())
    }

    /// ENIs on card 0.
    pub(super) fn attached(&self) -> u16 {
        u16::try_from(self.taken.len()).unwrap_or(u16::MAX)
    }

    /// The security groups of the node's ENIs.
    pub(super) fn groups(&self) -> Result<BTreeSet<GroupId>, groups::GroupsError> {
        let groups = &self.world.facts.groups;
        self.node
            .groups
            .choose(&self.location.vpc, groups, self.primary)
    }

    /// Reports if an operator of this cluster created the ENI.
    pub(super) fn is_ours(&self, eni: &Eni) -> bool {
        tags::instance_of(&eni.tags, self.world.memory.inventory.cluster()).is_some()
    }

    /// Ids of all of the instance's ENIs, in order.
    pub(super) fn ids(&self) -> Vec<EniId> {
        let enis = self.world.memory.inventory.of_instance(self.instance);
        enis.map(|it| it.id.clone()).collect()
    }
}

pub(super) fn has_prefix_v6(eni: &Eni) -> bool {
    eni.blocks.iter().any(block::is_prefix_v6)
}
