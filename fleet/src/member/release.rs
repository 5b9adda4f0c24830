//! Release of blocks: a node's agent gives a block up, its status shows the block no more, and then
//! EC2 unassigns it.
//!
//! The status without the block is written for the version of the object in which the agent had no
//! claim on it. The agent claims a block only for a version that shows it. The API server lets one
//! of the two writes win. So no agent can claim a block that EC2 unassigns.

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
    /// Blocks that the status marks, each with the time at which this leader saw that first.
    marked: BTreeMap<IpNet, Time>,
    /// Marked blocks that the agent claims nevertheless.
    returning: BTreeSet<IpNet>,
    /// Marked blocks of an object that went back in time. Pods may have had addresses of them since.
    void: BTreeSet<IpNet>,
    /// Marked blocks that EC2 took back, as this leader has seen.
    taken: BTreeSet<IpNet>,
    /// Those of them that EC2 answered it has assigned again. They are new blocks.
    reused: BTreeSet<IpNet>,
    /// ENIs without a block, each with the time since when.
    empty: BTreeMap<EniId, Time>,
    /// Blocks to mark now.
    chosen: BTreeSet<IpNet>,
    /// Marked blocks that EC2 has no more.
    gone: BTreeSet<IpNet>,
    /// Blocks of calls to EC2 in flight that unassign them. A recreated object has no mark of them.
    pub(crate) taking: BTreeSet<IpNet>,
    policy: ReleasePolicy,
    grace: Duration,
    ended: Ended,
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
        let marked = marks::blocks(object);
        self.note_ended(&marked);
        self.marked = marked
            .into_iter()
            .map(|block| (block, self.marked.get(&block).copied().unwrap_or(now)))
            .collect();
        let marked = &self.marked;
        for blocks in [&mut self.void, &mut self.taken, &mut self.reused] {
            blocks.retain(|block| marked.contains_key(block));
        }
        let returns = |block: &&IpNet| {
            claimed.contains(*block) || self.void.contains(*block) || self.reused.contains(*block)
        };
        self.returning = marked.keys().filter(returns).copied().collect();
        self.grace = if marks::has_agent(object) {
            RETURN_TIME
        } else {
            RETURN_TIME_OF_OTHERS
        };
    }

    fn note_ended(&mut self, marked: &BTreeSet<IpNet>) {
        for block in self.marked.keys().filter(|it| !marked.contains(it)) {
            if self.gone.contains(block) || self.reused.contains(block) {
                self.ended.released.insert(*block);
            } else if self.returning.contains(block) && !self.void.contains(block) {
                self.ended.returned.insert(*block);
            }
        }
    }

    /// The object went back in time, as after the API server was restored from a backup, or is
    /// another one. Its marks are those of that time, so the status is to show these blocks again.
    pub(crate) fn void_marks(&mut self) {
        self.void = self.marked.keys().copied().collect();
        self.returning = self.void.clone();
    }

    /// The blocks whose marks have gone since the last call.
    pub(crate) fn take_ended(&mut self) -> Ended {
        std::mem::take(&mut self.ended)
    }

    /// Begins an epoch: another leader may be at work on what is marked, and nothing else is known.
    pub(crate) fn begin_epoch(&mut self, now: Time) {
        self.shown.clear();
        self.empty.clear();
        self.chosen.clear();
        self.gone.clear();
        self.taken.clear();
        let void = std::mem::take(&mut self.void);
        let reused = std::mem::take(&mut self.reused);
        self.returning
            .retain(|block| !reused.contains(block) && !void.contains(block));
        self.words.begin_epoch(now);
        for since in self.marked.values_mut() {
            *since = now;
        }
    }

    /// Decides what goes back now. `is_read` is true if the node's ENIs are read.
    pub(crate) fn update(&mut self, node: &Node, world: &World<'_>, is_read: bool) -> Release {
        let Some(instance) = &node.instance else {
            return Release::default();
        };
        let (inventory, now) = (&world.memory.inventory, world.now);
        let may_release = self.policy.is_on && is_read;
        let marked = self.marked.keys();
        self.gone = marked
            .copied()
            .filter(|block| is_read && inventory.lacks(instance, block))
            .collect();
        let enis = inventory.of_instance(instance);
        let attached: BTreeSet<IpNet> = enis.flat_map(|eni| eni.blocks.iter().copied()).collect();
        if is_read {
            self.note_reused(&attached, |block| inventory.was_given(instance, block));
        }
        let mut answer = Release {
            leaving: self.marked.keys().copied().collect(),
            ..Release::default()
        };
        answer.leaving.retain(|it| !self.returning.contains(it));
        let has_late_reads = |block: &IpNet| is_read && inventory.lacks(instance, block);
        self.words.note_ready(&attached, has_late_reads, now);
        answer.leaving.extend(self.words.ready());
        self.chosen.clear();
        self.empty = if may_release {
            self.empty_enis(node, instance, world)
        } else {
            BTreeMap::new()
        };
        let mut spare = BTreeSet::new();
        if may_release {
            let idle = self.shown.iter().filter(|(_, claim)| {
                let since = claim.idle_since;
                since.is_some_and(|since| now.since(since) >= self.policy.delay)
            });
            let idle: BTreeSet<IpNet> = idle.map(|(block, _)| *block).collect();
            if !idle.is_empty() {
                let node = Node {
                    release: answer.clone(),
                    ..node.clone()
                };
                spare = release::spare(&node, world, &idle);
            }
        }
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
        let due = self.marked.iter().filter(|(block, since)| {
            now.since(**since) >= self.grace && answer.leaving.contains(*block)
        });
        answer.due.extend(due.map(|(block, _)| *block));
        let empty = self.empty.iter();
        let empty = empty.filter(|(_, since)| now.since(**since) >= EMPTY);
        answer.empty = empty.map(|(id, _)| id.clone()).collect();
        answer
    }

    /// Notes the marked blocks that EC2 has assigned again. It can do so at once, and would do so
    /// again and again if such a block were released for its old mark.
    fn note_reused(&mut self, attached: &BTreeSet<IpNet>, was_given: impl Fn(&IpNet) -> bool) {
        for block in self.marked.keys() {
            if !attached.contains(block) {
                self.taken.insert(*block);
            } else if self.taken.contains(block) && was_given(block) {
                self.reused.insert(*block);
                self.returning.insert(*block);
            }
        }
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
        let is_marked = self.marked.contains_key(block) && !self.returning.contains(block);
        is_marked
            || self.chosen.contains(block)
            || self.taking.contains(block)
            || self.words.is_ready(block)
    }

    /// The marks that the status is to have.
    pub(crate) fn marks(&self, has_operator: bool) -> Marks {
        let marked = self.marked.keys();
        let marked = marked.filter(|it| !self.returning.contains(it) && !self.gone.contains(it));
        Marks {
            blocks: marked.chain(&self.chosen).copied().collect(),
            has_operator,
            words: self.words.changes().clone(),
        }
    }

    /// The time at which something can go back, if nothing changes before.
    pub(crate) fn next(&self, now: Time) -> Option<Time> {
        let idle = self.shown.values().filter_map(|claim| claim.idle_since);
        let idle = idle.map(|since| since.after(self.policy.delay));
        let marked = self.marked.values().map(|since| since.after(self.grace));
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
        self.marked.len() + self.words.ready().count()
    }
}

#[cfg(test)]
mod tests;
