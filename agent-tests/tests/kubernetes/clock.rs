//! The wall clock jumps, as on a node that finds its time server late.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::fabric::command;
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, SOON, requested};

/// Stands between a program and the C library's clocks.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The day that this clock is so many hours ahead of, as a log has it.
fn day(hours: i32) -> String {
    let mut date = Command::new("date");
    date.args(["--utc", "--date", &format!("{hours} hours"), "+%Y-%m-%dT%H"]);
    command::run(&mut date).unwrap().trim().to_owned()
}

/// Addresses that cool down.
fn cooling(cluster: &Cluster) -> u64 {
    let pools = cluster.fabric.agent.ask("GET", "/v1/pools", None).unwrap();
    let pools = pools.as_array().unwrap().iter();
    pools.filter_map(|pool| pool["cooling"].as_u64()).sum()
}

/// The agent follows the cluster, gives addresses and takes them back, and writes what it wants.
fn works(cluster: &Cluster, turn: usize, after: &str) {
    cluster.changes_are_seen(turn, after).unwrap();
    let wanted = |node: &Value| requested(node, "default");
    let node = cluster.node_is("it wants some", |node| wanted(node).is_some());
    let before = wanted(&node.unwrap()).unwrap();
    let name = format!("pod-{turn}");
    let pod = cluster.pod("plain", &name, &json!({})).unwrap();
    pod.add(&cluster.fabric);
    cluster
        .node_is(&format!("one more is wanted after {after}"), |node| {
            wanted(node) == Some(before + 1)
        })
        .unwrap();
    // It cools down for half a minute of real time, however much the wall's clock says.
    let cooled = cooling(cluster);
    pod.delete(&cluster.fabric);
    assert_eq!(cooling(cluster), cooled + 1, "{after}");
}

fn jump(file: &Path, hours: i32) {
    std::fs::write(file, format!("{:+}\n", i64::from(hours) * 3600)).unwrap();
}

#[test]
fn jumps_of_the_wall_clock_change_nothing() {
    let mut cluster = Cluster::prepare(false).unwrap();
    let file = cluster.fabric.file("clock");
    jump(&file, 0);
    let settings = json!({"ipam": {"cooldown": 30}});
    cluster.fabric.agent.configure(&settings).unwrap();
    let environment = [
        ("LD_PRELOAD", LIBRARY),
        ("FAKETIME_TIMESTAMP_FILE", &file.to_string_lossy()),
        ("FAKETIME_NO_CACHE", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let fabric = &mut cluster.fabric;
    fabric.agent.start(&fabric.node, &environment).unwrap();
    cluster.node().unwrap();
    cluster.operate().unwrap();
    cluster.wait_until_ready().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    works(&cluster, 0, "nothing");
    // The API server's certificate is good from an hour ago on.
    for (turn, hours) in [(1, 36), (2, 0), (3, 12)] {
        jump(&file, hours);
        works(&cluster, turn, &format!("a jump to {hours} hours from now"));
        let logged = || {
            let log = cluster.fabric.agent.log();
            check(log.contains(&day(hours)), || day(hours))
        };
        eventually(SOON, "the agent's clock has jumped", logged).unwrap();
        assert!(cooling(&cluster) >= 1, "none of them is over early");
    }
    cluster.fabric.finish().unwrap();
}
