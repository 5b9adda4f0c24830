//! The agent's own addresses, for listeners of the node, as a separate kind of resource.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::{
    AnnouncedBlock, Announcement, Barrier, Demand, EdgeRules, Family, Formula, Kind, PreAllocation,
    Settings, Source, Wanted,
};

/// The agent's own addresses, and its demand of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPools {
    /// The addresses that it has got, each with its pool.
    pub given: BTreeMap<IpAddr, String>,
    /// The total number of addresses that it requests.
    pub requested: Demand,
}

/// The resource kind of the agent's own addresses. Each address is a block of its own, since the
/// allocator of pods' addresses, or a delegated IPAM plugin, gives them one by one.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgentAddresses;

impl AgentAddresses {
    /// Settings with a pool to draw from. No address is pre-allocated. None cools down here,
    /// because its source gets it back and does that.
    #[must_use]
    pub fn settings(pool: &str) -> Settings {
        Settings {
            families: Family::ALL.into(),
            in_store: BTreeSet::new(),
            default_pool: pool.to_owned(),
            formula: Formula::Linear,
            pre_allocation: PreAllocation::none(),
            cooldown: Duration::ZERO,
            barriers: [Barrier::DOCUMENT].into(),
            ..Settings::default()
        }
    }
}

impl Kind for AgentAddresses {
    type Document = AgentPools;
    type Details = ();

    fn read(&self, document: &AgentPools) -> Announcement {
        let given = document.given.iter();
        let blocks = given.map(|(address, pool)| AnnouncedBlock {
            cidr: (*address).into(),
            source: Source::Node,
            pool: Some(pool.clone()),
            edges: EdgeRules::ALL,
        });
        Announcement {
            blocks: blocks.collect(),
            ..Announcement::default()
        }
    }

    fn write(&self, wanted: &Wanted, document: &mut AgentPools) -> bool {
        let kept = wanted.allocated.iter().flat_map(|kept| &kept.cidrs);
        let kept: BTreeSet<IpAddr> = kept.map(IpNet::addr).collect();
        let given = document.given.iter();
        let given = given.filter(|(address, _)| kept.contains(*address));
        let next = AgentPools {
            given: given.map(|(a, pool)| (*a, pool.clone())).collect(),
            requested: wanted.requested.clone(),
        };
        let is_changed = *document != next;
        *document = next;
        is_changed
    }

    /// Answers of the node's listeners leave untranslated.
    fn skips_masquerade(&self, _: &str) -> Option<bool> {
        Some(true)
    }

    fn details(&self, _: &AgentPools, _: &Source, _: IpNet, _: IpAddr) {}
}
