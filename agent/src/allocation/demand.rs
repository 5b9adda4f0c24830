//! The node's demand and the addresses it keeps, as they are written into the node's document.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use api::ids::PodRef;
use ipam::{BlockView, Family, Life, Owner, Rebalanced, Settings, Source};
use kubernetes::node::crd_mode::{Entry, FlatOutlook, FlatPool};
use kubernetes::node::node_pools::NodeDemand;
use kubernetes::node::unmet_demand::{Unanswered, UnmetDemand};
use loader::intent::Intent;
use tokio::time::Instant;

use super::Addresses;

/// Demand that has not been met.
pub(super) struct Unmet {
    unanswered: Unanswered,
    /// Origin of the times in `unanswered`.
    began: Instant,
}

impl Default for Unmet {
    fn default() -> Self {
        Self {
            unanswered: Unanswered::default(),
            began: Instant::now(),
        }
    }
}

impl Unmet {
    fn observe(&mut self, wanting: Vec<UnmetDemand>) {
        self.unanswered.observe(self.began.elapsed(), wanting);
    }

    /// Demand that has not been met in time, with its age.
    pub(super) fn overdue(&self) -> impl Iterator<Item = (&UnmetDemand, Duration)> {
        self.unanswered.overdue(self.began.elapsed())
    }
}

impl Addresses {
    /// The node's demand and the blocks it keeps; `None` before allocation has started, and if
    /// released blocks cannot be recorded on disk.
    ///
    /// Of plain pools the node keeps the blocks it needs. Of its ENIs it keeps all blocks, unless
    /// the setting `ipam.release` is on. Then only blocks whose claim is in the document are used.
    pub(crate) fn demand(&mut self, intent: &Intent) -> Option<NodeDemand> {
        self.look_for_answers();
        if intent.node.flat.is_none() {
            self.balance();
        }
        // Once this is published, another node may get a released block, also across a restart of
        // the agent.
        let is_saved = self.save();
        if !is_saved && self.manager.allocator().unconfirmed().next().is_some() {
            return None;
        }
        self.has_news = false;
        let manager = &self.manager;
        let wanted = manager.wanted()?;
        let allocator = manager.allocator();
        let leases = allocator.leases().map(|lease| lease.address);
        let cooling = allocator.cooling().map(|cooling| cooling.address);
        let Settings { default_pool, .. } = allocator.settings();
        let pools = self.inputs.as_ref().and_then(|inputs| inputs.pools.clone());
        let mut on_enis: BTreeSet<String> = [default_pool.clone()].into();
        if let Some(pools) = pools {
            on_enis.extend(pools.bound().map(str::to_owned));
        }
        Some(NodeDemand {
            wanted,
            held: leases.chain(cooling).collect(),
            on_enis,
            agent: allocator
                .settings()
                .release
                .then(|| env!("CARGO_PKG_VERSION").to_owned()),
            flat: intent.node.flat.is_some().then(|| self.flat(intent)),
        })
    }

    /// Releases the blocks that are not needed, and claims released ones again that are.
    fn balance(&mut self) {
        let allocator = self.manager.allocator_mut();
        let balanced = if allocator.settings().release {
            allocator.balance(Self::now())
        } else {
            Rebalanced {
                released: allocator.give_back_plain(),
                retaken: Vec::new(),
            }
        };
        for block in &balanced.released {
            tracing::info!(%block, "given back: no address of it is in use, and enough are left");
        }
        for block in &balanced.retaken {
            tracing::info!(%block, "claimed again: it was given back, and is needed");
        }
        self.records.is_stale |= balanced != Rebalanced::default();
    }

    /// True if a block waits for its claim to be written.
    pub(crate) fn has_claims_to_write(&self) -> bool {
        self.manager.allocator().has_claims_to_write()
    }

    /// True if the next demand may differ from the last one; once for each change.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Answers the operator's release requests of single addresses, and returns the addresses that
    /// pods must not get.
    pub(super) fn shake_hands(&mut self, flat: &FlatPool) -> BTreeSet<IpAddr> {
        let allocator = self.manager.allocator();
        let cooling: BTreeSet<_> = allocator.cooling().map(|cooling| cooling.address).collect();
        let is_held = |address| allocator.lease_of(address).is_some() || cooling.contains(&address);
        let seen = flat.seen();
        let mut promised = BTreeSet::new();
        for family in Family::ALL {
            let key = (allocator.settings().default_pool.clone(), family);
            let waiting = allocator.waiters().get(&key).copied().unwrap_or(0);
            promised.extend(
                self.releases
                    .handshake
                    .promised(&seen, family, waiting, is_held),
            );
        }
        let stays = |address| is_held(address) || promised.contains(&address);
        self.releases.answers = self.releases.handshake.observe(&seen, stays);
        self.releases.handshake.withheld().clone()
    }

    /// The single addresses in use, and the answers to release requests.
    fn flat(&self, intent: &Intent) -> FlatOutlook {
        let endpoints = intent.endpoints.values();
        let abouts = endpoints.map(|endpoint| (&endpoint.owner, &endpoint.about));
        let pods = abouts.chain(&self.records.owners);
        let pods = pods.filter_map(|(owner, about)| Some((owner, about.pod.as_ref()?)));
        let pods: BTreeMap<&Owner, &PodRef> = pods.collect();
        let allocator = self.manager.allocator();
        let used = allocator.leases().map(|lease| {
            let resource = match allocator.whence(lease.address).0 {
                Source::Device(id) => id,
                Source::Node => String::new(),
            };
            let pod = pods.get(&lease.owner);
            let owner = pod.map_or_else(|| lease.owner.to_string(), ToString::to_string);
            (lease.address, Entry { owner, resource })
        });
        FlatOutlook {
            used: used.collect(),
            release: self.releases.answers.clone(),
        }
    }

    /// Advances the clock.
    #[cfg(test)]
    pub(crate) fn age(&mut self, by: Duration) {
        self.unmet.began -= by;
        super::clock::pass(by);
    }

    /// Updates the unmet demand from the node's demand and its blocks.
    fn look_for_answers(&mut self) {
        let allocator = self.manager.allocator();
        let blocks = allocator.blocks();
        let waiters = allocator.waiters();
        let demand = allocator.demand().into_iter();
        let demand = demand.flat_map(|(pool, families)| {
            let families = families.into_iter();
            families.map(move |(family, wanted)| (pool.clone(), family, wanted))
        });
        // Pre-allocation of a family that is off is no unmet demand.
        let demand = demand.filter(|(pool, family, _)| {
            let of_pool = |block: &&BlockView| {
                block.pool.as_ref() == Some(pool) && Family::of_net(block.cidr) == *family
            };
            self.section.families.get().contains(family)
                || waiters.contains_key(&(pool.clone(), *family))
                || blocks
                    .iter()
                    .filter(of_pool)
                    .any(|block| block.counts.in_use() > 0)
        });
        let wanting = demand.map(|(pool, family, wanted)| {
            let there = blocks.iter().filter(|block| block.life != Life::Gone);
            let of_pool = there.filter(|block| {
                block.pool.as_ref() == Some(&pool) && Family::of_net(block.cidr) == family
            });
            UnmetDemand {
                given: of_pool.map(|block| block.counts.total).sum(),
                pool,
                family,
                wanted,
            }
        });
        self.unmet.observe(wanting.collect());
    }
}
