//! The node's part of `spec.ipam.pools` of its `CiliumNode`.
//!
//! * `requested` belongs to the node alone: all of it is written.
//! * `allocated` of ENIs' pools belongs to the node alone: its blocks, without those that it
//!   releases.
//! * `allocated` of other pools is extended by the operator and reduced by the node. The node
//!   removes an entry only if none of its addresses is in use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::node::POOL_TAG;
use ipam::{DEFAULT_POOL, Demand, EdgeRules, Family, KeptBlocks, Wanted};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::node::crd_mode::FlatOutlook;
use crate::node::marks::AGENT;

/// `spec.ipam.pools`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodePools {
    /// The node's demand.
    #[serde(deserialize_with = "nullable")]
    pub requested: Vec<Requested>,
    /// The node's blocks.
    #[serde(deserialize_with = "nullable")]
    pub allocated: Vec<Allocated>,
}

/// One of `requested`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requested {
    /// The pool.
    pub pool: String,
    /// The number of addresses, in all.
    #[serde(deserialize_with = "nullable")]
    pub needed: Needed,
}

/// The number of addresses of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Needed {
    /// IPv4.
    #[serde(skip_serializing_if = "is_zero")]
    pub ipv4_addrs: u64,
    /// IPv6.
    #[serde(skip_serializing_if = "is_zero")]
    pub ipv6_addrs: u64,
}

/// One of `allocated`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocated {
    /// The pool.
    pub pool: String,
    /// True if the first address of a block can be given.
    #[serde(rename = "allowFirstIP", skip_serializing_if = "is_false")]
    pub allow_first: bool,
    /// True if the last one can.
    #[serde(rename = "allowLastIP", skip_serializing_if = "is_false")]
    pub allow_last: bool,
    /// The blocks.
    #[serde(deserialize_with = "nullable")]
    pub cidrs: Vec<String>,
}

// `serde` hands over references.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The node's demand and the blocks that it must not lose, for one document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDemand {
    /// The allocator's demand, and the blocks that it keeps.
    pub wanted: Wanted,
    /// The addresses that are in use or cool down.
    pub held: BTreeSet<IpAddr>,
    /// The pools whose blocks are those of ENIs.
    pub on_enis: BTreeSet<String>,
    /// The agent's version, where it gives addresses of claimed blocks alone (`crate::node::marks`).
    pub agent: Option<String>,
    /// The part of single addresses, where the node has those (`ipam.mode: crd`).
    pub flat: Option<FlatOutlook>,
}

impl NodeDemand {
    /// The new value for a document that has this one; `None` if it is the same.
    #[must_use]
    pub fn next(&self, there: &NodePools) -> Option<NodePools> {
        if self.flat.is_some() {
            return self.next_requested(there);
        }
        let next = NodePools {
            requested: requested(&self.wanted.requested),
            allocated: self.allocated(&there.allocated),
        };
        (next != *there).then_some(next)
    }

    /// The new value where the wants belong to another document. The node's blocks are left to
    /// their source.
    #[must_use]
    pub fn next_requested(&self, there: &NodePools) -> Option<NodePools> {
        let requested = match &self.flat {
            None => requested(&self.wanted.requested),
            // The operator counts who has what, unless something stands here.
            Some(_) => Vec::new(),
        };
        let next = NodePools {
            requested,
            allocated: there.allocated.clone(),
        };
        (next != *there).then_some(next)
    }

    /// The new value for an object that is not in force, as one of a backup: the requests, and the
    /// claims on blocks of its ENIs, and of those in force, that have addresses in use.
    #[must_use]
    pub fn next_held(&self, object: &Value, there: &NodePools) -> Option<NodePools> {
        let mut next = self.next_requested(there).unwrap_or_else(|| there.clone());
        if self.flat.is_none() {
            let of_enis = self.wanted.allocated.iter();
            let of_enis = of_enis.filter(|kept| self.on_enis.contains(&kept.pool));
            let in_force = of_enis.map(Allocated::from);
            let shown = shown_on_enis(object);
            let cidrs = there.allocated.iter().flat_map(|entry| &entry.cidrs);
            let mut claimed: BTreeSet<IpNet> = cidrs.filter_map(|it| it.parse().ok()).collect();
            let mut held = Vec::new();
            for mut entry in in_force.chain(shown) {
                entry.cidrs.retain(|cidr| {
                    let net = cidr.parse::<IpNet>();
                    net.is_ok_and(|net| self.is_held(net) && claimed.insert(net))
                });
                held.push(entry);
            }
            held.retain(|entry| !entry.cidrs.is_empty());
            if !held.is_empty() {
                next.allocated = merged(there.allocated.iter().cloned().chain(held).collect());
            }
        }
        (next != *there).then_some(next)
    }

    /// The merge patch that writes the node's pools and the agent's mark; `None` if there is no
    /// change.
    #[must_use]
    pub fn patch(
        &self,
        object: &Value,
        there: &NodePools,
        next: Option<&NodePools>,
    ) -> Option<Value> {
        let mark = object["metadata"]["annotations"][AGENT].as_str();
        let is_marked = mark == self.agent.as_deref();
        if next.is_none() && is_marked {
            return None;
        }
        let mut patch = patch(object, next.unwrap_or(there));
        if !is_marked {
            patch["metadata"]["annotations"] = json!({AGENT: self.agent});
        }
        Some(patch)
    }

    fn allocated(&self, there: &[Allocated]) -> Vec<Allocated> {
        let mut kept: Vec<Allocated> = self.wanted.allocated.iter().map(Allocated::from).collect();
        let listed: BTreeSet<IpNet> = self
            .wanted
            .allocated
            .iter()
            .flat_map(|kept| kept.cidrs.iter().copied())
            .collect();
        // With release, an operator takes back what is not claimed. A status that it begins anew
        // shows blocks one after the other, and pods have addresses of those that follow.
        let stays =
            |entry: &&Allocated| self.agent.is_some() || !self.on_enis.contains(&entry.pool);
        for entry in there.iter().filter(stays) {
            let mut left = entry.clone();
            // An unreadable CIDR is left to its writer.
            left.cidrs.retain(|cidr| match cidr.parse::<IpNet>() {
                Ok(net) => !listed.contains(&net.trunc()) && self.is_held(net),
                Err(_unreadable) => true,
            });
            if !left.cidrs.is_empty() {
                kept.push(left);
            }
        }
        merged(kept)
    }

    fn is_held(&self, net: IpNet) -> bool {
        let range = self.held.range(net.network()..=net.broadcast());
        let family = Family::of_net(net);
        range
            .into_iter()
            .any(|address| Family::of(*address) == family)
    }
}

/// One entry of each pool and its switches, in order of their names.
fn merged(entries: Vec<Allocated>) -> Vec<Allocated> {
    let mut by_pool: BTreeMap<(String, bool, bool), Vec<String>> = BTreeMap::new();
    for entry in entries {
        let key = (entry.pool, entry.allow_first, entry.allow_last);
        by_pool.entry(key).or_default().extend(entry.cidrs);
    }
    by_pool
        .into_iter()
        .map(|((pool, allow_first, allow_last), cidrs)| Allocated {
            pool,
            allow_first,
            allow_last,
            cidrs,
        })
        .collect()
}

fn requested(demand: &Demand) -> Vec<Requested> {
    demand
        .iter()
        .map(|(pool, needed)| {
            let of = |family| needed.get(&family).copied().unwrap_or_default();
            Requested {
                pool: pool.clone(),
                needed: Needed {
                    ipv4_addrs: of(Family::V4),
                    ipv6_addrs: of(Family::V6),
                },
            }
        })
        .collect()
}

impl From<&KeptBlocks> for Allocated {
    fn from(kept: &KeptBlocks) -> Self {
        let EdgeRules {
            allow_first,
            allow_last,
        } = kept.edges;
        Self {
            pool: kept.pool.clone(),
            allow_first,
            allow_last,
            cidrs: kept.cidrs.iter().map(ToString::to_string).collect(),
        }
    }
}

/// `spec.ipam.pools` of a `CiliumNode`, empty where it has none; `None` where it cannot be read.
#[must_use]
pub fn pools_of(object: &Value) -> Option<NodePools> {
    match object.pointer("/spec/ipam/pools") {
        None | Some(Value::Null) => Some(NodePools::default()),
        Some(pools) => NodePools::deserialize(pools).ok(),
    }
}

/// The claims of an object that is to replace this one: those on blocks of the ENIs in its status.
/// `None` if it has none. Pods may use these blocks, and an operator takes back blocks that no node
/// claims. Blocks of plain pools are left out, because another node may have them by then.
#[must_use]
pub fn claims_on_enis(object: &Value) -> Option<NodePools> {
    let blocks = blocks_of_enis(object);
    let mut pools = pools_of(object)?;
    for entry in &mut pools.allocated {
        entry
            .cidrs
            .retain(|cidr| cidr.parse().is_ok_and(|net: IpNet| blocks.contains(&net)));
    }
    pools.allocated.retain(|entry| !entry.cidrs.is_empty());
    (!pools.allocated.is_empty()).then_some(pools)
}

/// The blocks of each ENI in a status, with its pool.
fn shown_on_enis(object: &Value) -> Vec<Allocated> {
    let enis = object["status"]["eni"]["enis"].as_object();
    let enis = enis.into_iter().flatten().map(|(_, eni)| {
        let pool = eni["tags"][POOL_TAG].as_str().unwrap_or(DEFAULT_POOL);
        let all: BTreeSet<IpNet> = blocks_of_eni(eni).collect();
        // The addresses of a prefix are listed too.
        let is_within = |net: &&IpNet| all.iter().any(|it| it != *net && it.contains(*net));
        let blocks = all.iter().filter(|net| !is_within(net));
        Allocated {
            pool: pool.to_owned(),
            allow_first: true,
            allow_last: true,
            cidrs: blocks.map(ToString::to_string).collect(),
        }
    });
    enis.collect()
}

/// Addresses and prefixes of the ENIs in a status.
pub(super) fn blocks_of_enis(object: &Value) -> BTreeSet<IpNet> {
    let enis = object["status"]["eni"]["enis"].as_object();
    let enis = enis.into_iter().flatten();
    enis.flat_map(|(_, eni)| blocks_of_eni(eni)).collect()
}

fn blocks_of_eni(eni: &Value) -> impl Iterator<Item = IpNet> {
    let lists = ["addresses", "prefixes", "ipv6-prefixes"].map(|key| eni[key].as_array());
    let texts = lists.into_iter().flatten().flatten();
    texts.filter_map(Value::as_str).filter_map(|text| {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        address.or_else(|_no_address| text.parse()).ok()
    })
}

/// The merge patch that writes it, valid only for the object that it was computed from. The API
/// server refuses it (409) after another write, and if the object was recreated.
#[must_use]
pub fn patch(object: &Value, next: &NodePools) -> Value {
    let metadata = &object["metadata"];
    json!({
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"ipam": {"pools": next}},
    })
}

#[cfg(test)]
mod tests;
