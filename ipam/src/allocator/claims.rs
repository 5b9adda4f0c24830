//! Blocks on their way between the node and the operator: given back, claimed again, and new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::Time;
use crate::announcement::AnnouncedBlock;

/// An operator that acts on old reads looks at claims at least so often. It may never see one that
/// stood for less.
const READS: Duration = Duration::from_mins(1);

/// The node's claims on blocks, and the releases of blocks, as far as documents show them.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// Blocks that were given back and that the node still has.
    pub(super) released: BTreeSet<IpNet>,
    /// Of these, the time since when each counts as given back, if that is known.
    pub(super) given_back: BTreeMap<IpNet, Time>,
    /// Released blocks that a document has shown without a claim since their release.
    pub(super) unclaimed: BTreeSet<IpNet>,
    /// Reclaimed blocks, each with the time since when it counts as released, if known.
    pub(super) reclaiming: BTreeMap<IpNet, Option<Time>>,
    /// Blocks whose claim the last document shows.
    confirmed: BTreeMap<IpNet, Confirmed>,
    /// Fresh blocks without a confirmed claim, each with the time at which a document showed it
    /// first.
    pub(super) appeared: BTreeMap<IpNet, Time>,
}

/// A claim that the document shows.
#[derive(Clone, Copy, Debug)]
struct Confirmed {
    /// The time at which a document showed the claim first.
    since: Time,
    /// The time since when the block counted as given back before, if that is known.
    given_back: Option<Time>,
}

impl Claims {
    /// Blocks that a restart has to treat as released: the released ones, and those with an
    /// unconfirmed claim.
    pub(super) fn unconfirmed(&self) -> impl Iterator<Item = IpNet> {
        let claims = self.reclaiming.keys().chain(self.appeared.keys());
        self.released.iter().chain(claims).copied()
    }

    /// Dates the release of a block. A claim that was too short for every reader to see it has no
    /// effect on when the block counts as released.
    pub(super) fn date_release(&mut self, net: IpNet, now: Time) {
        let since = self.confirmed.get(&net).and_then(|claim| {
            if now.since(claim.since) >= READS {
                Some(now)
            } else {
                claim.given_back
            }
        });
        if let Some(since) = since {
            self.given_back.insert(net, since);
        }
        self.unclaimed.remove(&net);
    }

    /// Claims a released block again.
    pub(super) fn reclaim(&mut self, net: IpNet) {
        self.released.remove(&net);
        let given_back = self.given_back.remove(&net);
        self.reclaiming.insert(net, given_back);
        self.unclaimed.remove(&net);
    }

    /// Notes that the document shows the claim on a reclaimed block.
    pub(super) fn confirm(&mut self, net: IpNet, given_back: Option<Time>, now: Time) {
        let since = now;
        self.confirmed.insert(net, Confirmed { since, given_back });
    }

    /// Notes the claims of the last document, and that there are no others.
    pub(super) fn confirm_all(&mut self, claimed: &BTreeSet<IpNet>, now: Time) {
        self.confirmed.retain(|net, _| claimed.contains(net));
        for net in claimed {
            self.confirmed.entry(*net).or_insert(Confirmed {
                since: now,
                given_back: None,
            });
        }
    }

    /// Follows a new document: the blocks that it claims, and those that it announces.
    pub(super) fn observe(
        &mut self,
        claimed: &BTreeSet<IpNet>,
        announced: &BTreeMap<IpAddr, AnnouncedBlock>,
    ) {
        let released = &self.released;
        self.given_back.retain(|net, _| released.contains(net));
        self.unclaimed.retain(|net| released.contains(net));
        let unclaimed = released.iter().filter(|net| !claimed.contains(net));
        self.unclaimed.extend(unclaimed);
        self.reclaiming.retain(|net, _| {
            let block = announced.get(&net.addr());
            block.is_some_and(|block| block.cidr == *net)
        });
    }
}
