//! A full node: what it costs the API server, and what the agent takes.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::time::Instant;

use ipnet::{IpNet, Ipv4Net};
use serde_json::json;
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, SOON, requested};

/// Prefixes of each ENI: 256 addresses in all.
const PREFIXES: u8 = 8;

/// The number of pods.
fn pods() -> usize {
    if env::var_os("TOWPATH_FULL").is_some() {
        250
    } else {
        25
    }
}

/// A line of the kernel's about the agent's memory, in KiB.
fn memory(cluster: &Cluster, name: &str) -> u64 {
    let id = cluster.fabric.agent.id().unwrap();
    let rollup = fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

#[test]
fn pods_that_come_one_after_the_other_are_no_storm_of_writes() {
    let mut cluster = Cluster::prepare(true).unwrap();
    let blocks = |number: u8| -> (u8, Vec<IpNet>) {
        let net = |index| {
            let first = Ipv4Addr::new(10, 0, number, 64 + index * 16);
            Ipv4Net::new(first, 28).unwrap().into()
        };
        (number, (0..PREFIXES).map(net).collect())
    };
    let blocks = [blocks(0), blocks(1)];
    cluster.fabric.set_blocks(&blocks).unwrap();
    let cluster = cluster.made_ready().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let count = pods();
    let guests: Vec<_> = (0..count)
        .map(|n| cluster.pod("plain", &format!("p{n}"), &json!({})).unwrap())
        .collect();
    let before = cluster.proxy().writes().len();
    let start = Instant::now();
    for guest in &guests {
        guest.add(&cluster.fabric);
    }
    let wanted = u64::try_from(count + 8).unwrap();
    cluster
        .node_is("all of them are counted", |node| {
            requested(node, "default") == Some(wanted)
        })
        .unwrap();
    let seconds = start.elapsed().as_secs() + 1;
    let writes = u64::try_from(cluster.proxy().writes().len() - before).unwrap();
    // Changes gather for a second in this test.
    assert!(writes <= seconds + 1, "{writes} writes in {seconds} s");
    println!(
        "{count} endpoints: {} writes a minute; resident {} KiB, of no file {} KiB",
        writes * 60 / seconds,
        memory(&cluster, "Rss:"),
        memory(&cluster, "Anonymous:")
    );
    for guest in &guests {
        guest.delete(&cluster.fabric);
    }
    let gone = || {
        let endpoints = cluster.fabric.agent.ask("GET", "/v1/endpoints", None)?;
        check(endpoints == json!([]), || endpoints.to_string())
    };
    eventually(SOON, "all are gone", gone).unwrap();
    cluster.fabric.finish().unwrap();
}
