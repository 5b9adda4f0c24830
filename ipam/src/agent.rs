//! The agent's own addresses, for listeners of the node: a kind of resource beside pods.

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
    /// The addresses that it was given, each with its pool.
    pub given: BTreeMap<IpAddr, String>,
    /// The number of addresses that it asks for, in all.
    pub requested: Demand,
}

/// The agent's own addresses. Each is a block of its own: the allocator of pods' addresses gives them
/// one by one, or a delegated IPAM plugin does.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgentAddresses;

impl AgentAddresses {
    /// Settings with a pool to draw from. None is kept in store, and none cools down here, because the
    /// giver gets it back for that.
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

    /// Answers of the node's listeners leave as they are.
    fn skips_masquerade(&self, _: &str) -> Option<bool> {
        Some(true)
    }

    fn details(&self, _: &AgentPools, _: &Source, _: IpNet, _: IpAddr) {}
}
