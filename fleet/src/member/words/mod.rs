//! The release of blocks by agents before Cilium 1.20, which answer for each address:
//!
//! ```text
//!  operator: marked-for-release ─> agent: ready-for-release ─> EC2 ─> operator: released ─> agent: no entry
//!                              └─> agent: do-not-release ─> operator: no entry
//! ```
//!
//! From its `ready-for-release` on, an agent withholds an address from pods while the entry exists.
//! So the operator removes no entry of a block for which it has called EC2.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipam::{Family, Time};
use ipnet::IpNet;
use kubernetes::node::crd_mode::{self, FlatPool};
use kubernetes::node::handshake::Release;
use kubernetes::node::marks;
use kubernetes::operation::node::NodeDocument;
use serde_json::Value;

/// Release entries of a node's addresses, each with a word of the handshake.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    /// True if the agent answers for each address.
    are_spoken: bool,
    entries: BTreeMap<IpAddr, Release>,
    /// The addresses that pods have.
    used: BTreeSet<IpAddr>,
    /// Blocks with all addresses ready for release, each with the time at which this leader first
    /// saw that.
    ready: BTreeMap<IpNet, Time>,
    changes: BTreeMap<IpAddr, Option<Release>>,
}

impl Words {
    /// Reads the entries of an object. Returns true if its agent has changed between answering for
    /// each address and not.
    pub(super) fn observe(&mut self, object: &Value, document: &NodeDocument) -> bool {
        let were_spoken = self.are_spoken;
        self.are_spoken = !document.demand.is_requested() && !marks::has_agent(object);
        let words = FlatPool::read(object).release.into_iter();
        self.entries = words
            .filter(|(address, _)| Family::of(*address) == Family::V4)
            .collect();
        self.used = crd_mode::used(object);
        self.are_spoken != were_spoken
    }

    /// Begins an epoch: the calls of the previous leader may still be in flight.
    pub(super) fn begin_epoch(&mut self, now: Time) {
        for since in self.ready.values_mut() {
            *since = now;
        }
    }

    /// Returns true if the agent answers for each address.
    pub(super) fn are_spoken(&self) -> bool {
        self.are_spoken
    }

    /// Returns true if a pod has an address of a block, or the agent refuses to release one; none
    /// if the agent does not answer for each address.
    pub(super) fn is_used(&self, block: &IpNet) -> Option<bool> {
        let is_used = |address: &IpAddr| {
            self.used.contains(address) || self.entries.get(address) == Some(&Release::DoNotRelease)
        };
        self.are_spoken
            .then(|| addresses(block).any(|address| is_used(&address)))
    }

    /// Updates the blocks that the agent releases. A block that EC2 has unassigned stays until
    /// reads show that.
    pub(super) fn note_ready(
        &mut self,
        attached: &BTreeSet<IpNet>,
        is_gone: impl Fn(&IpNet) -> bool,
        now: Time,
    ) {
        let earlier = std::mem::take(&mut self.ready);
        let kept = earlier.keys().filter(|it| !is_gone(it));
        let blocks: BTreeSet<IpNet> = attached.iter().chain(kept).copied().collect();
        let ready = blocks.into_iter().filter(|block| self.gives_back(block));
        self.ready = ready
            .map(|block| (block, earlier.get(&block).copied().unwrap_or(now)))
            .collect();
    }

    fn gives_back(&self, block: &IpNet) -> bool {
        let is_ready = |address: IpAddr| {
            let word = self.entries.get(&address);
            matches!(word, Some(Release::ReadyForRelease | Release::Released))
        };
        self.are_spoken && Family::of_net(*block) == Family::V4 && addresses(block).all(is_ready)
    }

    /// Decides on the changes of entries. `attached` are the blocks of the node's ENIs, none before
    /// they are read, `spare` its surplus blocks, and `taking` those that calls in flight unassign.
    pub(super) fn decide(
        &mut self,
        attached: Option<&BTreeSet<IpNet>>,
        spare: &BTreeSet<IpNet>,
        taking: &BTreeSet<IpNet>,
    ) {
        self.changes.clear();
        let Some(attached) = attached else { return };
        for (address, word) in &self.entries {
            let has = |block: &&IpNet| block.contains(address);
            let block = attached.iter().find(has);
            let is_leaving = taking.iter().chain(self.ready.keys()).any(|it| has(&it));
            let change = match (word, block) {
                _ if is_leaving => continue,
                (Release::Released, None) => continue,
                (Release::ReadyForRelease, None) => Some(Release::Released),
                (Release::MarkedForRelease | Release::ReadyForRelease, Some(block))
                    if spare.contains(block) =>
                {
                    continue;
                }
                _ => None,
            };
            self.changes.insert(*address, change);
        }
        for block in spare {
            let mut all = addresses(block);
            if !all.any(|address| self.entries.contains_key(&address)) {
                let marked = |address| (address, Some(Release::MarkedForRelease));
                self.changes.extend(addresses(block).map(marked));
            }
        }
    }

    /// Removes all entries, since an agent that answers for blocks needs none.
    pub(super) fn end(&mut self, taking: &BTreeSet<IpNet>) {
        let words = self.entries.keys();
        let over = words.filter(|address| !taking.iter().any(|block| block.contains(*address)));
        self.changes = over.map(|address| (*address, None)).collect();
    }

    /// The changes of entries to write.
    pub(super) fn changes(&self) -> &BTreeMap<IpAddr, Option<Release>> {
        &self.changes
    }

    /// The blocks that the agent releases.
    pub(super) fn ready(&self) -> impl Iterator<Item = IpNet> {
        self.ready.keys().copied()
    }

    /// The times since which the blocks are ready for release.
    pub(super) fn since(&self) -> impl Iterator<Item = Time> {
        self.ready.values().copied()
    }

    /// Returns true if the agent releases a block.
    pub(super) fn is_ready(&self, block: &IpNet) -> bool {
        self.ready.contains_key(block)
    }

    /// The blocks that EC2 may unassign by now.
    pub(super) fn due(&self, grace: Duration, now: Time) -> impl Iterator<Item = IpNet> {
        let due = self.ready.iter();
        due.filter(move |(_, since)| now.since(**since) >= grace)
            .map(|(block, _)| *block)
    }
}

fn addresses(block: &IpNet) -> impl Iterator<Item = IpAddr> + use<> {
    let singles = block.subnets(block.max_prefix_len());
    singles.into_iter().flatten().map(|it| it.addr())
}

#[cfg(test)]
mod tests;
