//! All blocks of a cluster's plain pools.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::demand::{Blocks, Grant, Requested, Shortfall};
use super::held::Held;
use super::judge::{Cidrs, judge};
use super::pool::{PoolSpec, Refusal};
use super::search::Ring;
use crate::{EdgeRules, Family};

/// The most blocks that one write gives a node. An object has a size that it cannot exceed.
const MOST: usize = 1024;

/// All pools, and all blocks that nodes have.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(super) pools: BTreeMap<String, PoolSpec>,
    /// Fields of pools that changed and cannot change.
    changed: BTreeMap<String, Vec<Refusal>>,
    /// Addresses that are no pool's, with their owners.
    pub(super) reserved: BTreeMap<IpNet, String>,
    /// The CIDRs in force.
    pub(super) cidrs: Cidrs,
    refusals: Vec<(String, Refusal)>,
    pub(super) held: Held,
    pub(super) nodes: BTreeMap<String, Node>,
    /// The block of each pool and family that was granted last.
    last: BTreeMap<(String, Family), IpNet>,
    /// Grows when a block can have become free.
    freed: u64,
    /// Pools without a free block, with `freed` as it was.
    full: BTreeMap<(String, Family), u64>,
}

/// The blocks of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    version: String,
    /// The blocks that its object has.
    pub(super) allocated: Blocks,
    /// Blocks that are granted for this version of the object.
    pub(super) granted: Blocks,
}

impl Node {
    fn blocks(&self) -> impl Iterator<Item = IpNet> {
        let all = self.allocated.values().chain(self.granted.values());
        all.flatten().copied()
    }

    /// The addresses that the node has of a pool.
    fn usable(&self, pool: &str, family: Family, edges: EdgeRules) -> u128 {
        let of = |blocks: &Blocks| {
            let blocks = blocks.get(pool).into_iter().flatten();
            let blocks = blocks.filter(|block| Family::of_net(**block) == family);
            blocks
                .map(|block| edges.usable(*block))
                .fold(0, u128::saturating_add)
        };
        of(&self.allocated).saturating_add(of(&self.granted))
    }
}

impl Ledger {
    /// Sets the addresses that are no pool's, each CIDR with its owner: those of VPCs and services.
    pub fn reserve(&mut self, reserved: BTreeMap<IpNet, String>) {
        if self.reserved != reserved {
            self.reserved = reserved;
            self.judge();
        }
    }

    /// Updates a pool. Its masks and its edge rules for first and last addresses stay unchanged
    /// while the pool exists.
    pub fn set_pool(&mut self, name: &str, mut spec: PoolSpec) {
        let mut refusals = Vec::new();
        if let Some(known) = self.pools.get(name) {
            keep(known, &mut spec, &mut refusals);
        }
        self.changed.insert(name.to_owned(), refusals);
        if self.pools.get(name) != Some(&spec) {
            self.pools.insert(name.to_owned(), spec);
            self.judge();
        }
    }

    /// Removes a pool. Its blocks stay with their nodes.
    pub fn lose_pool(&mut self, name: &str) {
        self.changed.remove(name);
        if self.pools.remove(name).is_some() {
            self.judge();
        }
    }

    /// The names of all pools.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        self.pools.keys().map(String::as_str)
    }

    /// Parts of a pool that are not used.
    pub fn refusals(&self, pool: &str) -> impl Iterator<Item = &Refusal> {
        let judged = self.refusals.iter().filter(move |(name, _)| name == pool);
        let changed = self.changed.get(pool).into_iter().flatten();
        changed.chain(judged.map(|(_, refusal)| refusal))
    }

    /// Updates the blocks that a version of a node's object has. A version other than that of a
    /// grant shows its outcome: blocks that it lacks will not come.
    pub fn set_node(&mut self, name: &str, version: &str, allocated: Blocks) {
        let known = self.nodes.get(name);
        if known.is_some_and(|node| node.version == version && node.allocated == allocated) {
            return;
        }
        let mut node = Node {
            version: version.to_owned(),
            allocated,
            granted: Blocks::new(),
        };
        for block in node.blocks() {
            self.held.take(block, name);
        }
        let before = self.nodes.remove(name);
        if let Some(before) = before {
            if before.version == version {
                node.granted = before.granted.clone();
            }
            let kept: BTreeSet<IpNet> = node.blocks().collect();
            let gone = before.blocks().filter(|block| !kept.contains(block));
            self.give_back(gone.collect(), name);
        }
        self.nodes.insert(name.to_owned(), node);
    }

    /// Removes a node with its blocks.
    pub fn lose_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.remove(name) {
            self.give_back(node.blocks().collect(), name);
        }
    }

    /// Grants blocks for a node's demand as far as possible. The blocks are reserved until another
    /// version of the node's object has been seen. A repeated call for a version grants the same
    /// blocks.
    pub fn grant(&mut self, name: &str, requested: &Requested) -> Grant {
        let mut shortfalls = Vec::new();
        for (pool, needed) in requested {
            for family in Family::ALL {
                if let Err(shortfall) = self.serve(name, (pool, family), needed.of(family).into()) {
                    let known = shortfalls.contains(&shortfall);
                    shortfalls.extend((!known).then_some(shortfall));
                }
            }
        }
        Grant {
            blocks: self.granted(name).cloned().unwrap_or_default(),
            shortfalls,
        }
    }

    /// The blocks that are granted to a node for the version of its object that is known.
    #[must_use]
    pub fn granted(&self, name: &str) -> Option<&Blocks> {
        self.nodes.get(name).map(|node| &node.granted)
    }

    /// Returns true if the node's demand is unmet by the strictest rules, so that any leader may
    /// have granted it a block.
    #[must_use]
    pub fn is_unmet(&self, name: &str, requested: &Requested) -> bool {
        let Some(node) = self.nodes.get(name) else {
            return false;
        };
        requested.iter().any(|(pool, needed)| {
            let lacks = |family| {
                let usable = node.usable(pool, family, EdgeRules::default());
                u128::from(needed.of(family)) > usable
            };
            Family::ALL.into_iter().any(lacks)
        })
    }

    /// The addresses that a node has of a pool, blocks that are granted included.
    #[must_use]
    pub fn usable(&self, name: &str, pool: &str, family: Family) -> u128 {
        let edges = self.pools.get(pool).map(|it| it.edges).unwrap_or_default();
        let node = self.nodes.get(name);
        node.map_or(0, |node| node.usable(pool, family, edges))
    }

    /// A number that grows when a block may have become free.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Grants blocks of one pool and family.
    fn serve(
        &mut self,
        name: &str,
        (pool, family): (&str, Family),
        needed: u128,
    ) -> Result<(), Shortfall> {
        let edges = self.pools.get(pool).map(|it| it.edges).unwrap_or_default();
        let Some(node) = self.nodes.get(name) else {
            return Ok(());
        };
        let mut usable = node.usable(pool, family, edges);
        let mut room = MOST.saturating_sub(node.granted.values().map(BTreeSet::len).sum());
        while usable < needed && room > 0 {
            let block = self.find(pool, family, needed - usable)?;
            usable = usable.saturating_add(edges.usable(block));
            room -= 1;
            self.held.take(block, name);
            self.last.insert((pool.to_owned(), family), block);
            if let Some(node) = self.nodes.get_mut(name) {
                let granted = node.granted.entry(pool.to_owned()).or_default();
                granted.insert(block);
            }
        }
        Ok(())
    }

    fn find(&mut self, pool: &str, family: Family, missing: u128) -> Result<IpNet, Shortfall> {
        let name = pool.to_owned();
        let spec = self.pools.get(pool);
        let spec = spec.ok_or_else(|| Shortfall::Unknown { pool: name.clone() })?;
        if spec.is_deleted {
            return Err(Shortfall::Deleted { pool: name });
        }
        let key = (name.clone(), family);
        let (Some(cidrs), Some(space)) = (self.cidrs.get(&key), spec.spaces.get(&family)) else {
            return Err(Shortfall::NoCidr { pool: name, family });
        };
        let is_full = self.full.get(&key) == Some(&self.freed);
        let ring = Ring {
            cidrs,
            mask: space.mask,
            reserved: &space.reserved,
        };
        let last = self.last.get(&key).copied();
        let found = (!is_full).then(|| ring.next(last, &self.held)).flatten();
        found.ok_or_else(|| {
            self.full.insert(key, self.freed);
            Shortfall::Full {
                pool: name,
                family,
                missing,
            }
        })
    }

    fn give_back(&mut self, blocks: Vec<IpNet>, node: &str) {
        for block in blocks {
            if self.held.give(block, node) {
                self.freed += 1;
            }
        }
    }

    fn judge(&mut self) {
        let (cidrs, refusals) = judge(&self.pools, &self.reserved, &self.cidrs);
        self.cidrs = cidrs;
        self.refusals = refusals;
        self.freed += 1;
    }
}

/// Keeps what cannot change of a pool.
fn keep(known: &PoolSpec, spec: &mut PoolSpec, refusals: &mut Vec<Refusal>) {
    let mut hold = |field, from: String, to: String| {
        refusals.push(Refusal::Changed { field, from, to });
    };
    let (old, new) = (known.edges, spec.edges);
    for (field, from, to) in [
        ("allowFirstIP", old.allow_first, new.allow_first),
        ("allowLastIP", old.allow_last, new.allow_last),
    ] {
        if from != to {
            hold(field, from.to_string(), to.to_string());
        }
    }
    spec.edges = old;
    for (family, field) in [(Family::V4, "ipv4.maskSize"), (Family::V6, "ipv6.maskSize")] {
        let old = known.spaces.get(&family).map(|space| space.mask);
        if let (Some(from), Some(space)) = (old, spec.spaces.get_mut(&family))
            && from != space.mask
        {
            hold(field, from.to_string(), space.mask.to_string());
            space.mask = from;
        }
    }
}
