//! A node with its ENIs, sorted by what they are to it.

use std::collections::BTreeSet;

use super::share::{Share, Shares, role};
use super::{Aside, Condition, Node, Progress, Reason, Role, World};
use crate::object::subnet::Location;
use crate::object::tags;
use crate::pool::{Serves, serves};
use crate::{Eni, EniId, GroupId, InstanceId, Limits, groups};

/// The fields of a node without which nothing can be planned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready<'a> {
    pub(super) instance: &'a InstanceId,
    pub(super) location: &'a Location,
    pub(super) limits: Limits,
}

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
    /// All of these by pool.
    pub(super) shares: Shares<'a>,
    /// Indices of card 0 that are taken.
    taken: BTreeSet<u16>,
    pub(super) primary: Option<&'a Eni>,
}

impl<'a> View<'a> {
    pub(super) fn new(
        node: &'a Node,
        progress: &'a Progress,
        world: &'a World<'a>,
        ready: Ready<'a>,
    ) -> Self {
        let Ready {
            instance,
            location,
            limits,
        } = ready;
        let mut view = Self {
            node,
            progress,
            world,
            instance,
            location,
            limits,
            counted: Vec::new(),
            loose: Vec::new(),
            shares: Shares::of(node, location, &world.facts.pools),
            taken: BTreeSet::new(),
            primary: None,
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
        let facts = self.world.facts;
        self.shares.add(eni, self.node, facts);
        let is_bound = matches!(serves(eni, &facts.pools, &facts.subnets), Serves::Pool(_));
        match role(eni, self.node, is_bound) {
            Role::Counted => self.counted.push(eni),
            Role::Aside(Aside::Loose) => self.loose.push(eni),
            Role::Aside(_) => {}
        }
    }

    /// Reports if an IPv6 prefix is missing for a pool, were there one loose ENI less.
    pub(super) fn wants_ipv6_without(&self, share: &Share<'_>, eni: Option<&EniId>) -> bool {
        share.asks_ipv6() && self.limits.prefixes && !share.has_ipv6_without(eni)
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

    /// The security groups of a pool's ENIs.
    pub(super) fn groups(
        &self,
        share: &Share<'_>,
    ) -> Result<BTreeSet<GroupId>, groups::GroupsError> {
        let groups = &self.world.facts.groups;
        share
            .groups
            .choose(&self.location.vpc, groups, self.primary)
    }

    /// ENIs that serve no pool because several are bound to them.
    pub(super) fn conflicts(&self) -> impl Iterator<Item = Condition> {
        self.shares.undecided.iter().map(|(eni, pools)| {
            let detail = format!(
                "{} serves no pool: pools {} are all bound to it; one of them may be",
                eni.id,
                pools.join(" and ")
            );
            Condition::new(Reason::TwoPools, detail)
        })
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
