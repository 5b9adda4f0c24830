//! Pools for people to see, and what of them is in use.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::ledger::Ledger;
use crate::Family;

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Its addresses by family.
    pub spaces: BTreeMap<Family, SpaceView>,
    /// Blocks that nodes have of it and that no CIDR of it in force holds, each with its nodes.
    pub orphans: BTreeMap<IpNet, BTreeSet<String>>,
}

/// The blocks of a pool's family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceView {
    /// All blocks.
    pub blocks: u64,
    /// Blocks that have an address that is taken.
    pub taken: u64,
}

impl Ledger {
    /// A pool, or what nodes have of one that is gone.
    #[must_use]
    pub fn view(&self, pool: &str) -> PoolView {
        let mut spaces = BTreeMap::new();
        let spec = self.pools.get(pool);
        for (family, space) in spec.into_iter().flat_map(|spec| &spec.spaces) {
            let cidrs = self.cidrs.get(&(pool.to_owned(), *family));
            let mut view = SpaceView::default();
            for cidr in cidrs.into_iter().flatten() {
                view.blocks += 1_u64 << space.mask.saturating_sub(cidr.prefix_len()).min(63);
                view.taken += self.taken(*cidr, space.mask);
            }
            spaces.insert(*family, view);
        }
        let mut orphans: BTreeMap<IpNet, BTreeSet<String>> = BTreeMap::new();
        for (name, node) in &self.nodes {
            let blocks = node.allocated.get(pool).into_iter().flatten();
            let blocks = blocks.filter(|block| !self.is_of(pool, **block));
            for block in blocks.filter(|block| !self.is_of_enis(pool, **block)) {
                orphans.entry(*block).or_default().insert(name.clone());
            }
        }
        PoolView { spaces, orphans }
    }

    /// CIDRs of a pool's document that overlap with a block that a node has or is granted.
    #[must_use]
    pub fn in_use(&self, pool: &str) -> BTreeSet<IpNet> {
        let spec = self.pools.get(pool).into_iter();
        let cidrs = spec.flat_map(|spec| spec.spaces.values().flat_map(|it| &it.cidrs));
        let used = |cidr: &&IpNet| {
            let mut blocks = self.held.overlapping(cidr.trunc());
            blocks.any(|(block, nodes)| nodes.iter().any(|node| self.has(node, pool, block)))
        };
        cidrs.filter(used).copied().collect()
    }

    /// Returns true if a node has a block of this pool, or is granted one. Blocks of ENIs, which
    /// nodes list under the pool that the ENIs serve, do not count.
    #[must_use]
    pub fn is_used(&self, pool: &str) -> bool {
        let nodes = self.nodes.values();
        let all = nodes.flat_map(|node| [&node.allocated, &node.granted]);
        let mut blocks = all.filter_map(|blocks| blocks.get(pool)).flatten();
        blocks.any(|block| !self.is_of_enis(pool, *block))
    }

    /// Blocks that have an address that another node's block has too, each with its nodes.
    #[must_use]
    pub fn conflicts(&self) -> BTreeMap<IpNet, BTreeSet<String>> {
        let all = self.held.conflicts();
        all.map(|(block, nodes)| (block, nodes.clone())).collect()
    }

    /// Blocks of a node that have an address of another node's block, each with all its nodes.
    #[must_use]
    pub fn rivals(&self, name: &str) -> BTreeMap<IpNet, BTreeSet<String>> {
        let mut all = BTreeMap::new();
        let node = self.nodes.get(name);
        let blocks = node.into_iter().flat_map(|node| node.allocated.values());
        for block in blocks.flatten() {
            let others = self.held.overlapping(*block).flat_map(|(_, nodes)| nodes);
            let nodes: BTreeSet<String> = others.cloned().collect();
            if nodes.len() > 1 {
                all.insert(*block, nodes);
            }
        }
        all
    }

    /// The names of all pools of which nodes have blocks.
    #[must_use]
    pub fn used_pools(&self) -> BTreeSet<String> {
        let all = self.nodes.values().flat_map(|node| &node.allocated);
        let used = all.filter(|(_, blocks)| !blocks.is_empty());
        used.map(|(pool, _)| pool.clone()).collect()
    }

    fn has(&self, node: &str, pool: &str, block: IpNet) -> bool {
        let node = self.nodes.get(node).into_iter();
        let mut all = node.flat_map(|node| [&node.allocated, &node.granted]);
        all.any(|blocks| blocks.get(pool).is_some_and(|it| it.contains(&block)))
    }

    /// Returns true if a block is in a VPC, and in no CIDR of the pool's document.
    fn is_of_enis(&self, pool: &str, block: IpNet) -> bool {
        let spec = self.pools.get(pool).into_iter();
        let mut cidrs = spec.flat_map(|spec| spec.spaces.values().flat_map(|it| &it.cidrs));
        let mut reserved = self.reserved.keys();
        reserved.any(|cidr| cidr.contains(&block)) && !cidrs.any(|cidr| cidr.contains(&block))
    }

    fn is_of(&self, pool: &str, block: IpNet) -> bool {
        let key = (pool.to_owned(), Family::of_net(block));
        let cidrs = self.cidrs.get(&key).into_iter().flatten();
        let mut cidrs = cidrs.into_iter();
        cidrs.any(|cidr| cidr.contains(&block))
    }

    /// Blocks of a CIDR that have an address that is taken.
    fn taken(&self, cidr: IpNet, mask: u8) -> u64 {
        let mut blocks = BTreeSet::new();
        for (block, _) in self.held.overlapping(cidr) {
            if block.prefix_len() <= cidr.prefix_len() {
                return 1_u64 << mask.saturating_sub(cidr.prefix_len()).min(63);
            }
            if block.prefix_len() >= mask {
                blocks.extend(IpNet::new(block.addr(), mask).map(|it| it.trunc()));
            } else if let Ok(parts) = block.subnets(mask) {
                blocks.extend(parts);
            }
        }
        u64::try_from(blocks.len()).unwrap_or(u64::MAX)
    }
}
