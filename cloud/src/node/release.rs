//! Blocks and ENIs that go back to EC2.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ipam::Family;
use ipnet::IpNet;

use super::deficit::Plan;
use super::share::Shares;
use super::view::View;
use super::{Node, Step, World};
use crate::object::block;
use crate::{Eni, EniId};

/// Blocks and ENIs of a node that go back. Its agent is shown none of them any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Blocks in release, which belong to no one and do not count.
    pub leaving: BTreeSet<IpNet>,
    /// Of these, the blocks that can be unassigned.
    pub due: BTreeSet<IpNet>,
    /// ENIs without a block that can be detached.
    pub empty: BTreeSet<EniId>,
}

/// The surplus of the unused blocks: whole prefixes first, of the ENIs with fewest blocks, so that
/// ENIs become empty.
#[must_use]
pub fn spare(node: &Node, world: &World<'_>, idle: &BTreeSet<IpNet>) -> BTreeSet<IpNet> {
    let mut chosen = BTreeSet::new();
    let (Some(instance), Some(location)) = (&node.instance, &node.location) else {
        return chosen;
    };
    let facts = world.facts;
    let mut shares = Shares::of(node, location, &facts.pools);
    for eni in world.memory.inventory.of_instance(instance) {
        shares.add(eni, node, facts);
    }
    for share in &shares.all {
        let mut excess = share.excess(node);
        let enis = share.counted.iter();
        let mut candidates: Vec<_> = enis
            .flat_map(|eni| {
                let blocks = eni.blocks.intersection(idle);
                let blocks = blocks.filter(|block| Family::of_net(**block) == Family::V4);
                blocks.map(|block| {
                    let size = block::addresses_v4([block]);
                    (Reverse(size), is_primary(eni), eni.blocks.len(), *block)
                })
            })
            .collect();
        candidates.sort_unstable();
        for (Reverse(size), _, _, block) in candidates {
            let is_leaving = node.release.leaving.contains(&block);
            if size <= excess && !is_leaving {
                excess -= size;
                chosen.insert(block);
            }
        }
    }
    chosen
}

fn is_primary(eni: &Eni) -> bool {
    eni.attachment.as_ref().is_some_and(|it| it.index == 0)
}

/// Reports if an ENI has nothing that anybody could miss.
#[must_use]
pub fn is_empty(eni: &Eni, node: &Node) -> bool {
    let gives_own = node.rules.use_primary && eni.own.is_some();
    eni.is_attached()
        && !is_primary(eni)
        && eni.blocks.is_empty()
        && eni.public.is_none()
        && !gives_own
}

/// Blocks are taken from one ENI at a time.
pub(super) fn unassign(view: &View<'_>) -> Plan {
    let due = &view.node.release.due;
    let mut steps = view.counted.iter().filter_map(|eni| {
        let blocks: BTreeSet<IpNet> = eni.blocks.intersection(due).copied().collect();
        (!blocks.is_empty()).then(|| Step::Unassign {
            eni: eni.id.clone(),
            blocks,
        })
    });
    steps.next().map_or(Plan::Nothing, Plan::Step)
}

/// Empty ENIs that the operator created are detached. What is loose is deleted, or attached again.
pub(super) fn detach(view: &View<'_>) -> Plan {
    let empty = &view.node.release.empty;
    let counted = view.counted.iter();
    let mut steps = counted.filter_map(|eni| {
        let is_due = empty.contains(&eni.id) && !view.node.published.contains(&eni.id);
        let attachment = eni.attachment.as_ref()?;
        (is_due && view.is_ours(eni) && is_empty(eni, view.node)).then(|| Step::Detach {
            eni: eni.id.clone(),
            attachment: attachment.id.clone(),
        })
    });
    steps.next().map_or(Plan::Nothing, Plan::Step)
}
