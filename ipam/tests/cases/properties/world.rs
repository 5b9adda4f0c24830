//! Generators of the events.

use std::collections::BTreeSet;

use ipam::{AnnouncedBlock, Announcement, EdgeRules, Source};
use ipnet::IpNet;
use proptest::prelude::*;

use crate::support::{V4, announce, net};

pub(super) const ENIS: [&str; 2] = ["eni-1", "eni-2"];
pub(super) const POOLS: [&str; 3] = ["default", "mars", "jupiter"];
pub(super) const OWNERS: usize = 12;

/// Every block that can come: where, and by what. Some overlap, so that a prefix can come back as
/// single addresses, or on another ENI.
pub(super) const BLOCKS: [(&str, Option<usize>); 11] = [
    ("10.0.1.16/28", Some(0)),
    ("10.0.1.5/32", Some(0)),
    ("10.0.1.20/32", Some(1)),
    ("10.0.1.16/30", Some(1)),
    ("10.0.2.32/29", Some(1)),
    ("10.0.2.8/32", Some(1)),
    ("10.10.0.0/29", None),
    ("10.10.0.0/30", None),
    ("2001:db8:1::/80", Some(0)),
    ("2001:db8:2::8/127", Some(1)),
    ("fd00::/126", None),
];

/// Addresses that owners request explicitly.
pub(super) const ADDRESSES: [&str; 9] = [
    "10.0.1.16",
    "10.0.1.20",
    "10.0.1.5",
    "10.10.0.0",
    "10.10.0.1",
    "10.99.0.1",
    "2001:db8:1::7",
    "2001:db8:1::1:0:7",
    "fd00::1",
];

/// One thing that happens.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// The node has the blocks whose bit is set, each of the pool of its number. Pool 3 stands for
    /// an unknown one.
    Announce {
        blocks: u16,
        pools: Vec<u8>,
        excluded: bool,
        mars_is_v4: bool,
    },
    /// The ENIs whose bit is set are ready.
    Ready(u8),
    /// An owner asks.
    Allocate {
        owner: usize,
        pool: Option<usize>,
        v6: bool,
    },
    /// An owner requests one address of each family.
    AllocateBoth {
        owner: usize,
        pool: Option<usize>,
    },
    /// An owner requests this address.
    Exactly {
        owner: usize,
        pool: Option<usize>,
        address: usize,
    },
    /// An owner turns out to have one address.
    Adopt {
        owner: usize,
        address: usize,
    },
    Claim(usize),
    Release(usize),
    /// Seconds pass; the flows of addresses with an even number are gone, or all are.
    Pass {
        seconds: u64,
        all_quiet: bool,
    },
    Rebalance,
    /// The runtime knows the owners whose bit is set, as it did some seconds ago.
    Collect {
        living: u16,
        ago: u64,
    },
    /// The agent restarts. `file`: the state is there. `lost`: this owner's endpoint is gone.
    /// `stray`: an unknown endpoint has this address.
    Restart {
        file: bool,
        lost: Option<usize>,
        stray: Option<(usize, usize)>,
    },
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let owner = 0..OWNERS;
    let pool = || prop::option::of(0..POOLS.len());
    let announce = (any::<u16>(), prop::collection::vec(0_u8..12, BLOCKS.len()))
        .prop_flat_map(|(blocks, pools)| {
            (
                Just(blocks),
                Just(pools),
                prop::bool::weighted(0.3),
                prop::bool::weighted(0.2),
            )
        })
        .prop_map(|(blocks, pools, excluded, mars_is_v4)| Op::Announce {
            blocks,
            pools,
            excluded,
            mars_is_v4,
        });
    let address = 0..ADDRESSES.len();
    prop_oneof![
        2 => announce,
        2 => prop::sample::select(vec![0_u8, 1, 2, 3, 3, 3, 3]).prop_map(Op::Ready),
        12 => (owner.clone(), pool(), prop::bool::weighted(0.25))
            .prop_map(|(owner, pool, v6)| Op::Allocate { owner, pool, v6 }),
        4 => (owner.clone(), pool(), address.clone())
            .prop_map(|(owner, pool, address)| Op::Exactly { owner, pool, address }),
        2 => (owner.clone(), address.clone())
            .prop_map(|(owner, address)| Op::Adopt { owner, address }),
        4 => (owner.clone(), pool()).prop_map(|(owner, pool)| Op::AllocateBoth { owner, pool }),
        6 => owner.clone().prop_map(Op::Claim),
        5 => owner.clone().prop_map(Op::Release),
        4 => (prop::sample::select(vec![0, 1, 10, 29, 30, 31, 300, 599, 601]), any::<bool>())
            .prop_map(|(seconds, all_quiet)| Op::Pass { seconds, all_quiet }),
        2 => Just(Op::Rebalance),
        1 => (any::<u16>(), 0_u64..40).prop_map(|(living, ago)| Op::Collect { living, ago }),
        1 => (
            prop::bool::weighted(0.8),
            prop::option::weighted(0.3, owner.clone()),
            prop::option::weighted(0.3, (owner, address)),
        )
            .prop_map(|(file, lost, stray)| Op::Restart { file, lost, stray }),
    ]
}

pub(super) fn name(owner: usize) -> String {
    format!("pod-{owner}")
}

/// The announcement after an event. Most blocks keep their own pool, so that addresses are
/// available.
pub(super) fn announcement(
    blocks: u16,
    pools: &[u8],
    excluded: bool,
    mars_is_v4: bool,
) -> Announcement {
    let chosen = BLOCKS.iter().zip(pools).enumerate();
    let chosen = chosen.filter(|(n, _)| blocks & (1 << n) != 0);
    let blocks = chosen.map(|(_, ((cidr, eni), pool))| AnnouncedBlock {
        cidr: net(cidr),
        source: eni.map_or(Source::Node, |n| Source::Device(ENIS[n].to_owned())),
        pool: match *pool {
            0 => None,
            1 => Some(POOLS[0].to_owned()),
            2 => Some(POOLS[1].to_owned()),
            3 => Some(POOLS[2].to_owned()),
            _ => Some(POOLS[usize::from(eni.is_none())].to_owned()),
        },
        edges: if eni.is_some() {
            EdgeRules::ALL
        } else {
            EdgeRules::default()
        },
    });
    let mut announcement = announce(&blocks.collect::<Vec<_>>());
    if excluded {
        let nets: [IpNet; 3] = [
            net("10.0.1.20/32"),
            net("10.10.0.2/31"),
            net("2001:db8:1::/112"),
        ];
        announcement.excluded = BTreeSet::from(nets);
    }
    if mars_is_v4 {
        announcement.pools.insert(POOLS[1].to_owned(), [V4].into());
    }
    announcement
}
