//! Pools, and blocks that go back.

use std::collections::{BTreeMap, BTreeSet};

use cloud::node::{Aside, Role};
use cloud::pool::{DEFAULT_POOL, Serves, serves};
use serde::{Deserialize, Serialize};

use super::PlainView;
use crate::input::Moment;
use crate::machine::Fleet;
use crate::member::Member;

/// A pool: `default`, one that is bound to ENIs, or a plain one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// Nodes that ask for it or have ENIs of it.
    pub nodes: u32,
    /// ENIs on network card 0 that serve it.
    pub enis: u32,
    /// IPv4 addresses of these.
    pub addresses: u32,
    /// IPv4 addresses that its nodes ask for, their spare ones included.
    pub wanted: u64,
    /// Its blocks; none for a pool that ENIs serve alone.
    pub plain: Option<PlainView>,
    /// Its faults: annotations that do not count as they are, and parts that are refused.
    pub faults: Vec<String>,
}

/// Blocks that go back, over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReleaseView {
    /// Blocks that are being released to EC2.
    pub leaving: usize,
    /// Blocks that no agent has claimed since this operator leads. They are not taken back.
    pub never_claimed: usize,
}

/// The part of a node in a pool.
#[derive(Clone, Copy, Debug, Default)]
struct PoolShare {
    enis: u32,
    addresses: u32,
    wanted: u64,
}

impl Fleet {
    /// All pools.
    #[must_use]
    pub fn pools(&self, _: Moment) -> Vec<PoolView> {
        let documents = self.cluster.bindings.iter().flatten();
        let bound = documents.filter(|(name, it)| it.binding.is_some() || *name == DEFAULT_POOL);
        let bound = bound.map(|(name, _)| name.clone());
        let plain = self.plain_pools();
        let names = bound.chain([DEFAULT_POOL.to_owned()]);
        let names: BTreeSet<String> = names.chain(plain.iter().cloned()).collect();
        let views = names.into_iter().map(|name| {
            let plain = plain.contains(&name).then(|| self.plain_view(&name));
            (name.clone(), self.empty_pool(name, plain))
        });
        let mut pools: BTreeMap<String, PoolView> = views.collect();
        for member in self.nodes.members.values() {
            for (name, share) in self.shares_of(member) {
                let Some(pool) = pools.get_mut(name) else {
                    continue;
                };
                pool.nodes += 1;
                pool.enis += share.enis;
                pool.addresses = pool.addresses.saturating_add(share.addresses);
                pool.wanted = pool.wanted.saturating_add(share.wanted);
            }
        }
        pools.into_values().collect()
    }

    /// Blocks that go back.
    #[must_use]
    pub fn releases(&self) -> ReleaseView {
        let mut view = ReleaseView::default();
        for member in self.nodes.members.values() {
            view.leaving += member.releases.leaving();
            view.never_claimed += member.releases.never_claimed();
        }
        view
    }

    /// A pool without its nodes.
    fn empty_pool(&self, name: String, plain: Option<PlainView>) -> PoolView {
        let binding = self.cluster.bindings.as_ref().and_then(|it| it.get(&name));
        let faults = binding.and_then(|it| it.problem.clone()).into_iter();
        let of_plain = self.pool_faults(&name).into_iter();
        let faults = faults.chain(of_plain.map(|(_, text)| text)).collect();
        PoolView {
            name,
            nodes: 0,
            enis: 0,
            addresses: 0,
            wanted: 0,
            plain,
            faults,
        }
    }

    /// The addresses of a node's ENIs that serve the pool `default`.
    pub(crate) fn default_addresses(&self, member: &Member) -> u32 {
        let share = self.shares_of(member).remove(DEFAULT_POOL);
        share.unwrap_or_default().addresses
    }

    /// The pools that a node requests or that its ENIs serve.
    fn shares_of<'a>(&'a self, member: &'a Member) -> BTreeMap<&'a str, PoolShare> {
        let facts = &self.topology.facts;
        let mut shares: BTreeMap<&str, PoolShare> = BTreeMap::new();
        for (name, needed) in &member.document.demand.requested {
            shares.entry(name).or_default().wanted = needed.ipv4.into();
        }
        let enis = member.instance().into_iter();
        for eni in enis.flat_map(|it| self.memory.inventory.of_instance(it)) {
            let name = match serves(eni, &facts.pools, &facts.subnets) {
                Serves::Default => DEFAULT_POOL,
                Serves::Pool(name) => name,
                Serves::Nothing(_) => continue,
            };
            let attachment = eni.attachment.as_ref().filter(|it| it.card == 0);
            let role = Role::of(eni, &member.node.rules);
            let is_kept = matches!(role, Role::Aside(Aside::Tags)) && name != DEFAULT_POOL;
            let Some(attachment) = attachment.filter(|_| role == Role::Counted || is_kept) else {
                continue;
            };
            let with_own = member.node.rules.use_primary && attachment.index != 0;
            let share = shares.entry(name).or_default();
            share.enis += 1;
            share.addresses = share.addresses.saturating_add(eni.available(with_own));
        }
        shares
    }
}
