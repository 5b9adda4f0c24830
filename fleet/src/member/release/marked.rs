//! Blocks that a node's status marks for release.

use std::collections::{BTreeMap, BTreeSet};

use ipam::Time;
use ipnet::IpNet;

use super::Ended;

/// The marked blocks of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Marked {
    /// The time at which this leader saw each block's mark first.
    since: BTreeMap<IpNet, Time>,
    /// Those that the agent claims nevertheless.
    returning: BTreeSet<IpNet>,
    /// Those of an object that went back in time. Pods may have had addresses of them since.
    void: BTreeSet<IpNet>,
    /// Those that EC2 took back, as this leader has seen.
    taken: BTreeSet<IpNet>,
    /// Those of them that EC2 answered it has assigned again. They are new blocks.
    reused: BTreeSet<IpNet>,
    /// Those that EC2 has no more.
    gone: BTreeSet<IpNet>,
    ended: Ended,
}

impl Marked {
    /// Handles the marks and the claims of an object.
    pub(super) fn observe(
        &mut self,
        marked: BTreeSet<IpNet>,
        claimed: &BTreeSet<IpNet>,
        now: Time,
    ) {
        self.note_ended(&marked);
        self.since = marked
            .into_iter()
            .map(|block| (block, self.since.get(&block).copied().unwrap_or(now)))
            .collect();
        let marked = &self.since;
        for blocks in [&mut self.void, &mut self.taken, &mut self.reused] {
            blocks.retain(|block| marked.contains_key(block));
        }
        let returns = |block: &&IpNet| {
            claimed.contains(*block) || self.void.contains(*block) || self.reused.contains(*block)
        };
        self.returning = marked.keys().filter(returns).copied().collect();
    }

    fn note_ended(&mut self, marked: &BTreeSet<IpNet>) {
        for block in self.since.keys().filter(|it| !marked.contains(it)) {
            if self.gone.contains(block) || self.reused.contains(block) {
                self.ended.released.insert(*block);
            } else if self.returning.contains(block) && !self.void.contains(block) {
                self.ended.returned.insert(*block);
            }
        }
    }

    /// The blocks whose marks have gone since the last call.
    pub(super) fn take_ended(&mut self) -> Ended {
        std::mem::take(&mut self.ended)
    }

    /// Makes all marks those of an object that went back in time.
    pub(super) fn void(&mut self) {
        self.void = self.since.keys().copied().collect();
        self.returning = self.void.clone();
    }

    /// Begins an epoch: another leader may be at work on what is marked.
    pub(super) fn begin_epoch(&mut self, now: Time) {
        self.gone.clear();
        self.taken.clear();
        let void = std::mem::take(&mut self.void);
        let reused = std::mem::take(&mut self.reused);
        self.returning
            .retain(|block| !reused.contains(block) && !void.contains(block));
        for since in self.since.values_mut() {
            *since = now;
        }
    }

    /// Notes the marked blocks that EC2 has no more.
    pub(super) fn note_gone(&mut self, is_gone: impl Fn(&IpNet) -> bool) {
        let marked = self.since.keys().copied();
        self.gone = marked.filter(is_gone).collect();
    }

    /// Notes the marked blocks that EC2 has assigned again. It can do so at once, and would do so
    /// again and again if such a block were released for its old mark.
    pub(super) fn note_reused(
        &mut self,
        attached: &BTreeSet<IpNet>,
        was_given: impl Fn(&IpNet) -> bool,
    ) {
        for block in self.since.keys() {
            if !attached.contains(block) {
                self.taken.insert(*block);
            } else if self.taken.contains(block) && was_given(block) {
                self.reused.insert(*block);
                self.returning.insert(*block);
            }
        }
    }

    /// The blocks that go back to EC2, which the status must not show.
    pub(super) fn leaving(&self) -> BTreeSet<IpNet> {
        let mut leaving: BTreeSet<IpNet> = self.since.keys().copied().collect();
        leaving.retain(|it| !self.returning.contains(it));
        leaving
    }

    /// True if a block goes back to EC2.
    pub(super) fn is_leaving(&self, block: &IpNet) -> bool {
        self.since.contains_key(block) && !self.returning.contains(block)
    }

    /// The blocks whose marks are to stay in the status.
    pub(super) fn kept(&self) -> impl Iterator<Item = &IpNet> {
        let marked = self.since.keys();
        marked.filter(|it| !self.returning.contains(it) && !self.gone.contains(it))
    }

    /// Every marked block, with the time at which this leader saw its mark first.
    pub(super) fn since(&self) -> &BTreeMap<IpNet, Time> {
        &self.since
    }
}
