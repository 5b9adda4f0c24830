//! ENIs and blocks that a node's status has and EC2 does not show. The leader before may have
//! published them a moment ago, and reads lag: a read by id that is late enough decides.

use std::collections::{BTreeMap, BTreeSet};

use cloud::inventory::SETTLES;
use cloud::{AttachState, Eni, EniId, InstanceId, Inventory};
use ipam::Time;
use ipnet::IpNet;

use super::{Lacked, Published};

/// The reads that a status is compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) lacked: &'a Lacked,
    /// Reads count from then on.
    pub(crate) epoch: Time,
}

/// The ENIs in doubt, each with the time since when.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubts {
    since: BTreeMap<EniId, Time>,
    /// Those that no read has settled yet, with the time from which on a read does.
    pub(crate) open: BTreeMap<EniId, Time>,
    /// Those that EC2 has shown as the status does: later reads are believed at once.
    seen: BTreeSet<EniId>,
}

impl Doubts {
    /// Compares the status of an instance's node with the reads.
    pub(crate) fn update(
        &mut self,
        published: &Published,
        instance: &InstanceId,
        evidence: Evidence<'_>,
        now: Time,
    ) {
        let Evidence {
            inventory,
            lacked,
            epoch,
        } = evidence;
        let mut since = BTreeMap::new();
        self.open.clear();
        for (id, blocks) in &published.enis {
            let eni = inventory.get(id);
            if !is_doubtful(eni, blocks, instance) {
                // Reads can go back to what was before the epoch for so long.
                if now.since(epoch) >= SETTLES {
                    self.seen.insert(id.clone());
                }
                continue;
            }
            if self.seen.contains(id) {
                continue;
            }
            let first = self.since.get(id).copied().unwrap_or(now);
            since.insert(id.clone(), first);
            let read = match eni {
                None => lacked.get(id).copied(),
                Some(_) => inventory.read_by_id(id),
            };
            let from = first.after(SETTLES);
            if read.is_none_or(|begun| begun < from) {
                self.open.insert(id.clone(), from);
            }
        }
        self.since = since;
        self.seen.retain(|id| published.enis.contains_key(id));
    }

    /// The ENIs to read now.
    pub(crate) fn due(&self, now: Time) -> BTreeSet<EniId> {
        let due = self.open.iter().filter(|(_, from)| **from <= now);
        due.map(|(id, _)| id.clone()).collect()
    }

    /// The time of the next read.
    pub(crate) fn next(&self, now: Time) -> Option<Time> {
        self.open.values().copied().filter(|it| *it > now).min()
    }
}

fn is_doubtful(eni: Option<&Eni>, blocks: &BTreeSet<IpNet>, instance: &InstanceId) -> bool {
    let Some(eni) = eni else { return true };
    let Some(attachment) = &eni.attachment else {
        return true;
    };
    if attachment.instance.as_ref() != Some(instance) {
        return false;
    }
    match attachment.state {
        AttachState::Attaching => true,
        AttachState::Detaching => false,
        AttachState::Attached => !eni.blocks.is_superset(blocks),
    }
}
