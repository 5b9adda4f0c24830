//! Blocks of nodes out of plain pools: Cilium's own scenarios, pools that change, and a model.

mod model;
mod pools;
mod vectors;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use ipam::cluster::{Blocks, Ledger, Needed, PoolSpec, Requested, Space};
use ipam::{EdgeRules, Family};
use ipnet::IpNet;

/// A pool with CIDRs of the families that these are of.
fn pool(cidrs: &[&str], masks: (u8, u8)) -> PoolSpec {
    let mut spaces: BTreeMap<Family, Space> = BTreeMap::new();
    for cidr in cidrs {
        let cidr: IpNet = cidr.parse().unwrap();
        let family = Family::of_net(cidr);
        let space = spaces.entry(family).or_default();
        space.mask = if family == Family::V4 {
            masks.0
        } else {
            masks.1
        };
        space.cidrs.push(cidr);
    }
    PoolSpec {
        spaces,
        ..PoolSpec::default()
    }
}

fn open(mut pool: PoolSpec) -> PoolSpec {
    pool.edges = EdgeRules::ALL;
    pool
}

fn want(pool: &str, ipv4: u32, ipv6: u32) -> Requested {
    [(pool.to_owned(), Needed { ipv4, ipv6 })].into()
}

fn blocks(pool: &str, cidrs: &[&str]) -> Blocks {
    let nets = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    [(pool.to_owned(), nets)].into()
}

/// Blocks that a node is granted of one pool, as texts.
fn granted(ledger: &mut Ledger, node: &str, wanted: &Requested) -> Vec<String> {
    let grant = ledger.grant(node, wanted);
    let all: BTreeSet<IpNet> = grant.blocks.into_values().flatten().collect();
    all.iter().map(ToString::to_string).collect()
}

/// Why a node is not granted what it wants.
fn shortfalls(ledger: &mut Ledger, node: &str, wanted: &Requested) -> Vec<String> {
    let grant = ledger.grant(node, wanted);
    grant.shortfalls.iter().map(ToString::to_string).collect()
}
