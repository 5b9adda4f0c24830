//! Plain pools: their documents, the blocks of nodes, and the beginning of a leader's term.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cloud::VpcId;

use ipam::cluster::{Ledger, Requested, Shortfall, Takeover};
use ipam::{EdgeRules, Time};
use kubernetes::operation::node::{DEFAULT_POOL, NodeDocument};
use kubernetes::operation::pool::{FINALIZER, PoolDocument};
use kubernetes::operation::report::Reason;
use serde_json::Value;

use crate::member::{Obstacle, is_older};
use crate::writes::Writes;

/// All plain pools.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    pub(crate) ledger: Ledger,
    pub(crate) pools: BTreeMap<String, Pool>,
    pub(crate) opening: Opening,
    /// A read that grants wait for.
    pub(crate) unread: Option<Unread>,
    /// Nodes whose demand is not met.
    pub(crate) short: BTreeMap<String, Vec<Shortfall>>,
    /// The state of the ledger at the last plan of the nodes in `short`.
    pub(crate) freed: u64,
    /// Earliest time of the next check of the pools.
    pub(crate) next_look: Time,
}

/// A read without which a block could overlap with addresses that are no pool's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The `ServiceCIDRs` of the cluster.
    Services,
    /// A VPC of nodes.
    Vpc(VpcId),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Services => f.write_str("the ServiceCIDRs are read, with which none may overlap"),
            Self::Vpc(id) => write!(f, "the CIDRs of {id} are read, with which none may overlap"),
        }
    }
}

/// The beginning of a leader's term, before any block is granted.
#[derive(Debug)]
pub(crate) enum Opening {
    /// All nodes have to be listed, not before this time.
    Unlisted(Time),
    /// The list is in flight.
    Listing,
    /// Nodes that an older leader may have granted blocks are changed and read.
    Listed(Takeover),
}

impl Default for Opening {
    fn default() -> Self {
        Self::Unlisted(Time::default())
    }
}

impl Opening {
    /// Returns true once blocks may be granted.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Listed(takeover) if takeover.is_over())
    }

    /// Returns true if a node's object is to be changed first.
    pub(crate) fn awaits(&self, node: &str) -> bool {
        matches!(self, Self::Listed(takeover) if takeover.awaits(node))
    }

    /// Records that a node's object was changed, or is gone.
    pub(crate) fn touched(&mut self, node: &str) {
        if let Self::Listed(takeover) = self {
            takeover.touched(node);
        }
    }
}

/// A pool's object.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) object: Value,
    pub(crate) document: PoolDocument,
    pub(crate) writes: Writes,
    /// The faults that an event was recorded for.
    pub(crate) reported: BTreeSet<String>,
}

impl Pool {
    fn new(object: Value) -> Self {
        Self {
            document: PoolDocument::read(&object),
            object,
            writes: Writes::default(),
            reported: BTreeSet::new(),
        }
    }

    /// Returns true if blocks may be granted: the pool stays while nodes have them. A pool that is
    /// being deleted grants none anyway.
    fn is_open(&self) -> bool {
        let spec = self.document.plain.as_ref();
        self.document.has_finalizer() || spec.is_some_and(|spec| spec.is_deleted)
    }
}

impl Plain {
    /// Begins an epoch: another leader may have granted blocks.
    pub(crate) fn begin(&mut self) {
        self.opening = Opening::default();
        self.unread = Some(Unread::Services);
        self.short.clear();
        for pool in self.pools.values_mut() {
            pool.writes = Writes::default();
        }
    }

    /// True if nodes may be granted blocks.
    pub(crate) fn may_grant(&self) -> bool {
        self.opening.is_over() && self.unread.is_none()
    }

    /// Updates all pools. Returns true if one of them changed.
    pub(crate) fn set_pools(&mut self, objects: Vec<Value>) -> bool {
        let names: BTreeSet<String> = objects.iter().map(name_of).collect();
        let gone = self.pools.keys().filter(|name| !names.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        let mut is_changed = !gone.is_empty();
        for name in gone {
            self.pools.remove(&name);
            self.ledger.lose_pool(&name);
        }
        for object in objects {
            is_changed |= self.set_pool(object);
        }
        is_changed
    }

    /// Updates a pool, unless this or a later version of it is known.
    pub(crate) fn set_pool(&mut self, object: Value) -> bool {
        let name = name_of(&object);
        let known = self.pools.get_mut(&name);
        let is_same = |pool: &Pool| pool.object["metadata"]["uid"] == object["metadata"]["uid"];
        match known {
            Some(pool) if is_same(pool) => {
                if object == pool.object || is_older(&object, &pool.object) {
                    return false;
                }
                pool.document = PoolDocument::read(&object);
                pool.object = object;
            }
            _ => {
                self.ledger.lose_pool(&name);
                self.pools.insert(name.clone(), Pool::new(object));
            }
        }
        let spec = self
            .pools
            .get(&name)
            .and_then(|it| it.document.plain.clone());
        match spec {
            Some(spec) => self.ledger.set_pool(&name, spec),
            None => self.ledger.lose_pool(&name),
        }
        true
    }

    /// Updates the blocks that a node has. Those of Cilium's mode `cluster-pool` count as taken,
    /// too.
    pub(crate) fn set_node(&mut self, document: &NodeDocument) {
        let mut allocated = document.allocated.clone();
        if !document.pod_cidrs.is_empty() {
            let default = allocated.entry(DEFAULT_POOL.to_owned()).or_default();
            default.extend(&document.pod_cidrs);
        }
        self.ledger
            .set_node(&document.meta.name, &document.meta.version, allocated);
    }

    pub(crate) fn lose_node(&mut self, name: &str) {
        self.ledger.lose_node(name);
        self.short.remove(name);
        self.opening.touched(name);
    }

    /// The demand of a node that plain pools have to meet. The default pool of a node with an instance
    /// is served by ENIs.
    pub(crate) fn demand(&self, document: &NodeDocument) -> Requested {
        let requested = document.demand.requested.iter();
        let plain = requested.filter(|(pool, _)| {
            let is_of_enis = pool.as_str() == DEFAULT_POOL && document.instance.id.is_some();
            let known = self.pools.get(*pool);
            !is_of_enis && known.is_none_or(|it| it.document.plain.is_some())
        });
        let needed = plain.map(|(pool, needed)| {
            let needed = ipam::cluster::Needed {
                ipv4: needed.ipv4,
                ipv6: needed.ipv6,
            };
            (pool.clone(), needed)
        });
        needed.collect()
    }

    /// The part of a demand that may be met now. A pool gets its finalizer first.
    pub(crate) fn grantable(&self, mut demand: Requested) -> Requested {
        demand.retain(|pool, _| self.pools.get(pool).is_none_or(Pool::is_open));
        demand
    }

    /// True if any pool gives blocks, or may have given some before it became bound to ENIs.
    pub(crate) fn has_marks(&self) -> bool {
        let mut pools = self.pools.values();
        pools.any(|it| it.document.plain.is_some() || it.document.has_finalizer())
    }

    /// True if any pool gives blocks.
    pub(crate) fn has_any(&self) -> bool {
        self.pools.values().any(|it| it.document.plain.is_some())
    }

    /// The first and the last address of a pool's blocks.
    pub(crate) fn edges(&self, pool: &str) -> EdgeRules {
        let document = self.pools.get(pool).map(|it| &it.document);
        let spec = document.and_then(|it| it.plain.as_ref());
        spec.map(|it| it.edges).unwrap_or_default()
    }

    /// The reasons that a node lacks blocks, or that they are not its own.
    pub(crate) fn obstacles(&self, document: &NodeDocument) -> Vec<Obstacle> {
        let demand = self.demand(document);
        if demand.is_empty() || !self.has_any() {
            return Vec::new();
        }
        let name = &document.meta.name;
        let mut all = Vec::new();
        for (block, nodes) in self.ledger.rivals(name) {
            let others: Vec<String> = nodes.into_iter().filter(|it| it != name).collect();
            let text = format!(
                "block {block} is also in pools.allocated of {}; delete the pods of one node that have \
                 addresses of it",
                others.join(", ")
            );
            all.push(Obstacle::new(Reason::BlockConflict, text));
        }
        for pool in demand.keys() {
            let known = self.pools.get(pool).filter(|it| !it.is_open());
            if let Some(fault) = known.and_then(|it| it.writes.fault()) {
                let text = format!(
                    "CiliumPodIPPool {pool} gives blocks once it has the finalizer {FINALIZER}: {fault}"
                );
                all.push(Obstacle::new(Reason::PoolUnusable, text));
            }
        }
        let short = self.short.get(name).into_iter().flatten();
        all.extend(short.map(|it| Obstacle::new(reason(it), it.to_string())));
        if self.ledger.is_unmet(name, &demand) {
            let waits_for = match &self.unread {
                _ if !self.opening.is_over() => "the objects of all nodes are read".to_owned(),
                Some(unread) => unread.to_string(),
                None => return all,
            };
            let text = format!("blocks of plain pools are granted once {waits_for}");
            all.push(Obstacle::new(Reason::NotReady, text));
        }
        all
    }
}

fn reason(shortfall: &Shortfall) -> Reason {
    match shortfall {
        Shortfall::Unknown { .. } => Reason::PoolUnknown,
        Shortfall::Deleted { .. } | Shortfall::NoCidr { .. } => Reason::PoolUnusable,
        Shortfall::Full { .. } => Reason::PoolFull,
    }
}

fn name_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}
