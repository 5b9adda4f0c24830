//! Release of blocks: a node's agent gives a block up, its status shows the block no more, and then
//! EC2 unassigns it.
//!
//! The status without the block is written for the version of the object in which the agent had no
//! claim on it. The agent claims a block only for a version that shows it. The API server lets one
//! of the two writes win. So no agent can claim a block that EC2 unassigns.

mod marked;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::node::release::is_empty;
use cloud::node::{Node, Release, World, release};
use cloud::object::tags;
use cloud::{EniId, InstanceId};
use ipam::{Family, Time};
use ipnet::IpNet;
use kubernetes::node::marks;
use kubernetes::operation::allocated::Compat;
use kubernetes::operation::node::NodeDocument;
use kubernetes::operation::patch::Marks;
use serde_json::Value;

use self::marked::Marked;
use super::Published;
use super::words::Words;
use crate::{ReleaseMode, Settings};

/// Time from the status without the block to the call of EC2.
const RETURN_TIME: Duration = Duration::from_secs(20);
/// Longer time for agents that use a block again before they have written so.
const RETURN_TIME_OF_OTHERS: Duration = Duration::from_mins(1);
/// An ENI without a block is detached after so long.
const EMPTY: Duration = Duration::from_mins(10);

/// The policy for surplus blocks and for ENIs without a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReleasePolicy {
    /// They go back to EC2.
    is_on: bool,
    /// Time after which a block that no agent claims is released.
    delay: Duration,
}

impl ReleasePolicy {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            is_on: settings.release == ReleaseMode::On && settings.compat != Compat::Always,
            delay: settings.release_delay,
        }
    }
}

/// A version of a node's object, with its parsed parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot<'a> {
    pub(crate) object: &'a Value,
    pub(crate) published: &'a Published,
    pub(crate) document: &'a NodeDocument,
}

/// The state of a node's blocks as far as they can go back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Releases {
    /// Blocks in the status.
    shown: BTreeMap<IpNet, Claim>,
    marked: Marked,
    /// ENIs without a block, each with the time since when.
    empty: BTreeMap<EniId, Time>,
    /// Blocks to mark now.
    chosen: BTreeSet<IpNet>,
    /// Blocks of calls to EC2 in flight that unassign them. A recreated object has no mark of them.
    pub(crate) taking: BTreeSet<IpNet>,
    policy: ReleasePolicy,
    grace: Duration,
    words: Words,
}

/// Blocks that were marked and are not any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    /// EC2 has taken them back.
    pub(crate) released: BTreeSet<IpNet>,
    /// The agent claims them again.
    pub(crate) returned: BTreeSet<IpNet>,
}

/// The claims on a block, as this leader has seen them.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    /// The agent claimed it, or wrote its claims after the block was shown.
    is_answered: bool,
    /// The time since when it has not been claimed, if that is an answer.
    idle_since: Option<Time>,
}

impl Releases {
    /// Nothing is known.
    pub(crate) fn new(policy: ReleasePolicy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Handles an object. `before` is the previous one, unless that was another node's or a later
    /// one.
    pub(crate) fn observe(&mut self, snapshot: Snapshot<'_>, before: Option<&Value>, now: Time) {
        let Snapshot {
            object,
            published,
            document,
        } = snapshot;
        if before.is_none() {
            *self = Self {
                taking: std::mem::take(&mut self.taking),
                ..Self::new(self.policy)
            };
        }
        let pools = |object: &Value| object["spec"]["ipam"]["pools"].clone();
        let wrote = before.is_some_and(|before| pools(before) != pools(object));
        let claimed = document.claimed();
        if self.words.observe(object, document) {
            self.shown.clear();
        }
        let blocks = published.enis.values().flatten();
        let mut shown = BTreeMap::new();
        for block in blocks.filter(|block| Family::of_net(**block) == Family::V4) {
            let known = self.shown.get(block).copied();
            let mut claim = known.unwrap_or_default();
            let is_claimed = match self.words.is_used(block) {
                Some(is_used) => is_used,
                None => claimed.contains(block),
            };
            if is_claimed {
                claim.is_answered = true;
                claim.idle_since = None;
            } else {
                // An agent of the older generation answers for each address.
                claim.is_answered |= self.words.are_spoken() || (wrote && known.is_some());
                if claim.is_answered {
                    claim.idle_since.get_or_insert(now);
                }
            }
            shown.insert(*block, claim);
        }
        self.shown = shown;
        self.marked.observe(marks::blocks(object), &claimed, now);
        self.grace = if marks::has_agent(object) {
            RETURN_TIME
        } else {
            RETURN_TIME_OF_OTHERS
        };
    }

    /// The object went back in time, as after the API server was restored from a backup, or is
    /// another one. Its marks are those of that time, so the status is to show these blocks again.
    pub(crate) fn void_marks(&mut self) {
        self.marked.void();
    }

    /// The blocks whose marks have gone since the last call.
    pub(crate) fn take_ended(&mut self) -> Ended {
        self.marked.take_ended()
    }

    /// Begins an epoch: another leader may be at work on what is marked, and nothing else is known.
    pub(crate) fn begin_epoch(&mut self, now: Time) {
        self.shown.clear();
        self.empty.clear();
        self.chosen.clear();
        self.marked.begin_epoch(now);
        self.words.begin_epoch(now);
    }

    /// Decides what goes back now. `is_read` is true if the node's ENIs are read.
    pub(crate) fn update(&mut self, node: &Node, world: &World<'_>, is_read: bool) -> Release {
        let Some(instance) = &node.instance else {
            return Release::default();
        };
        let (inventory, now) = (&world.memory.inventory, world.now);
        let may_release = self.policy.is_on && is_read;
        let has_lost = |block: &IpNet| is_read && inventory.lacks(instance, block);
        self.marked.note_gone(has_lost);
        let enis = inventory.of_instance(instance);
        let attached: BTreeSet<IpNet> = enis.flat_map(|eni| eni.blocks.iter().copied()).collect();
        if is_read {
            let was_given = |block: &IpNet| inventory.was_given(instance, block);
            self.marked.note_reused(&attached, was_given);
        }
        let mut answer = Release {
            leaving: self.marked.leaving(),
            ..Release::default()
        };
        self.words.note_ready(&attached, has_lost, now);
        answer.leaving.extend(self.words.ready());
        self.chosen.clear();
        self.empty = if may_release {
            self.empty_enis(node, instance, world)
        } else {
            BTreeMap::new()
        };
        let spare = if may_release {
            self.spare(node, &answer, world)
        } else {
            BTreeSet::new()
        };
        if self.words.are_spoken() {
            let attached = is_read.then_some(&attached);
            self.words.decide(attached, &spare, &self.taking);
            answer
                .due
                .extend(self.words.due(RETURN_TIME_OF_OTHERS, now));
        } else {
            self.words.end(&self.taking);
            self.chosen = spare;
        }
        let due = self.marked.since().iter().filter(|(block, since)| {
            now.since(**since) >= self.grace && answer.leaving.contains(*block)
        });
        answer.due.extend(due.map(|(block, _)| *block));
        let empty = self.empty.iter();
        let empty = empty.filter(|(_, since)| now.since(**since) >= EMPTY);
        answer.empty = empty.map(|(id, _)| id.clone()).collect();
        answer
    }

    /// Blocks that no agent has claimed for the delay, as far as the node can do without them.
    fn spare(&self, node: &Node, release: &Release, world: &World<'_>) -> BTreeSet<IpNet> {
        let now = world.now;
        let idle = self.shown.iter().filter(|(_, claim)| {
            let since = claim.idle_since;
            since.is_some_and(|since| now.since(since) >= self.policy.delay)
        });
        let idle: BTreeSet<IpNet> = idle.map(|(block, _)| *block).collect();
        if idle.is_empty() {
            return idle;
        }
        let node = Node {
            release: release.clone(),
            ..node.clone()
        };
        release::spare(&node, world, &idle)
    }

    /// The empty ENIs of this cluster, each with the time since when.
    fn empty_enis(
        &self,
        node: &Node,
        instance: &InstanceId,
        world: &World<'_>,
    ) -> BTreeMap<EniId, Time> {
        let inventory = &world.memory.inventory;
        let ours = inventory.of_instance(instance).filter(|eni| {
            tags::instance_of(&eni.tags, inventory.cluster()).is_some() && is_empty(eni, node)
        });
        ours.map(|eni| {
            let since = self.empty.get(&eni.id).copied();
            (eni.id.clone(), since.unwrap_or(world.now))
        })
        .collect()
    }

    /// Returns true if the status must not show a block.
    pub(crate) fn withholds(&self, block: &IpNet) -> bool {
        self.marked.is_leaving(block)
            || self.chosen.contains(block)
            || self.taking.contains(block)
            || self.words.is_ready(block)
    }

    /// The marks that the status is to have.
    pub(crate) fn marks(&self, has_operator: bool) -> Marks {
        Marks {
            blocks: self.marked.kept().chain(&self.chosen).copied().collect(),
            has_operator,
            words: self.words.changes().clone(),
        }
    }

    /// The time at which something can go back, if nothing changes before.
    pub(crate) fn next(&self, now: Time) -> Option<Time> {
        let idle = self.shown.values().filter_map(|claim| claim.idle_since);
        let idle = idle.map(|since| since.after(self.policy.delay));
        let marked = self
            .marked
            .since()
            .values()
            .map(|since| since.after(self.grace));
        let empty = self.empty.values().map(|since| since.after(EMPTY));
        let ready = self
            .words
            .since()
            .map(|since| since.after(RETURN_TIME_OF_OTHERS));
        let times = idle.chain(marked).chain(empty).chain(ready);
        times.filter(|at| *at > now).min()
    }

    /// Number of blocks that no agent has claimed, or answered for, since this leader first saw
    /// them.
    pub(crate) fn never_claimed(&self) -> usize {
        self.shown
            .values()
            .filter(|claim| !claim.is_answered)
            .count()
    }

    /// The number of blocks in release.
    pub(crate) fn leaving(&self) -> usize {
        self.marked.since().len() + self.words.ready().count()
    }
}

#[cfg(test)]
mod tests;
