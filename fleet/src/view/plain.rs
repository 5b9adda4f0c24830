//! Blocks of plain pools.

use std::collections::{BTreeMap, BTreeSet};

use ipam::Family;
use kubernetes::operation::node::DEFAULT_POOL;
use serde::{Deserialize, Serialize};

use crate::machine::Fleet;

/// The blocks of a plain pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlainView {
    /// Its IPv4 blocks.
    pub ipv4: Option<SpaceView>,
    /// Its IPv6 blocks.
    pub ipv6: Option<SpaceView>,
    /// Nodes that lack blocks of it.
    pub short_nodes: u32,
    /// Blocks that nodes have of it and that none of its CIDRs has, each with its nodes.
    pub orphans: BTreeMap<String, Vec<String>>,
    /// It is being deleted.
    pub is_deleted: bool,
}

/// The blocks of a pool's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpaceView {
    /// All blocks.
    pub blocks: u64,
    /// Blocks that are taken.
    pub taken: u64,
}

impl Fleet {
    /// The names of plain pools, with those that are gone and of which nodes have blocks.
    pub(super) fn plain_pools(&self) -> BTreeSet<String> {
        let all = self.plain.pools.iter();
        let plain = all.filter(|(_, pool)| pool.document.plain.is_some());
        let gone = self.plain.ledger.used_pools().into_iter();
        // The blocks of ENIs have no CiliumPodIPPool.
        let gone = gone.filter(|it| *it != DEFAULT_POOL && !self.plain.pools.contains_key(it));
        plain.map(|(name, _)| name.clone()).chain(gone).collect()
    }

    /// The blocks of a plain pool.
    pub(super) fn plain_view(&self, name: &str) -> PlainView {
        let view = self.plain.ledger.view(name);
        let space = |family| {
            let space = view.spaces.get(&family)?;
            Some(SpaceView {
                blocks: space.blocks,
                taken: space.taken,
            })
        };
        let short = self.plain.short.values();
        let short = short.filter(|all| all.iter().any(|it| it.pool() == name));
        let orphans = view.orphans.iter().map(|(block, nodes)| {
            let nodes = nodes.iter().cloned().collect();
            (block.to_string(), nodes)
        });
        let document = self.plain.pools.get(name).map(|it| &it.document);
        let spec = document.and_then(|it| it.plain.as_ref());
        PlainView {
            ipv4: space(Family::V4),
            ipv6: space(Family::V6),
            short_nodes: u32::try_from(short.count()).unwrap_or(u32::MAX),
            orphans: orphans.collect(),
            is_deleted: spec.is_some_and(|it| it.is_deleted),
        }
    }
}
