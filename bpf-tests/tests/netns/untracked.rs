//! Hosts that drop packets in connection tracking's state INVALID, and pick up no connection
//! mid-stream.

use std::sync::Arc;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Echo, Session, ping};
use testkit::fabric::{Fabric, MTU_JUMBO, Netns, Place, Pod, Spec};

use crate::managers::repairs_of;
use crate::masq::{internet, scene_of};
use crate::mtu::ask_for_segments;
use crate::support::{CHANGE, within};

/// Enough for many windows.
const BULK: usize = 1024 * 1024;
/// MTU of the ENIs later on.
const LESS: u32 = 1500;

/// Drops INVALID packets at every hook, as hardening guides recommend.
fn harden(node: &Netns) {
    node.run("sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0")
        .unwrap();
    node.run("nft add table inet hard").unwrap();
    for hook in ["prerouting", "input", "forward", "output", "postrouting"] {
        let chain = format!("{{ type filter hook {hook} priority mangle ; }}");
        node.run(&format!("nft add chain inet hard {hook} {chain}"))
            .unwrap();
        node.run(&format!(
            "nft add rule inet hard {hook} ct state invalid counter drop"
        ))
        .unwrap();
    }
}

/// A hardened node with active connection tracking and our table.
fn hardened(spec: &Spec) -> (Fabric, [Arc<Pod>; 2]) {
    let (fabric, pods) = scene_of(spec);
    harden(&fabric.node);
    let peer = fabric.peer(Family::V4);
    ping(fabric.node_at(Family::V4).unwrap(), peer.address, &[]).unwrap();
    has_table(&fabric);
    (fabric, pods)
}

#[track_caller]
fn has_table(fabric: &Fabric) {
    within(CHANGE, "the table is there", || {
        let rules = fabric.node.run("nft list table inet towpath")?;
        check(rules.matches("notrack").count() == 8, || rules)
    });
}

fn shrink(fabric: &Fabric) {
    for router in ["eni0", "eni1"] {
        let shrunk = format!("link set {router} mtu {LESS}");
        fabric.vpc.router.ip(&shrunk).unwrap();
    }
    fabric
        .node
        .ip(&format!("link set eth0 mtu {LESS}"))
        .unwrap();
    within(CHANGE, "ENI 1 follows the primary's MTU", || {
        let links = fabric.node.ip_json("link show dev eth1")?;
        check(links[0]["mtu"] == LESS, || links.to_string())
    });
}

/// Open connections of a pod: into the VPC, and out of it.
fn sessions(fabric: &Fabric, pod: &Pod) -> Vec<(Echo, Session)> {
    let mut all = Vec::new();
    for family in Family::ALL {
        for server in [fabric.peer(family), internet(fabric, family)] {
            let echo = Echo::telling(server, 0).unwrap();
            let session = Session::open(pod.at(family), 0, echo.address()).unwrap();
            all.push((echo, session));
        }
    }
    all
}

#[test]
fn a_link_that_shrinks_cuts_no_open_connection_off() {
    let spec = Spec {
        mtu: MTU_JUMBO,
        ..Spec::with_world(json!({}))
    };
    let (fabric, pods) = hardened(&spec);
    let mut all: Vec<_> = pods.iter().flat_map(|pod| sessions(&fabric, pod)).collect();
    for (_, session) in &mut all {
        session.bulk(BULK).unwrap();
    }
    shrink(&fabric);
    for (_, session) in &mut all {
        session.bulk(BULK).unwrap();
    }
    for pod in &pods {
        for family in Family::ALL {
            let far = internet(&fabric, family);
            for to in [fabric.peer(family), far] {
                hears_of_a_ttl_that_ends(pod.at(family), to);
            }
        }
    }
    fabric.finish().unwrap();
}

/// Expects that the node answers a packet whose hop limit ends there.
#[track_caller]
fn hears_of_a_ttl_that_ends(from: Place, to: Place) {
    let said = ping(from, to.address, &["-t", "1"])
        .unwrap_err()
        .to_string();
    assert!(said.contains("xceeded"), "{said}");
}

#[test]
fn a_pod_that_takes_less_than_its_eni_still_has_the_sender_told() {
    const POD: u32 = 1400;
    let spec = Spec {
        mtu: LESS,
        ..Spec::with_world(json!({"endpoint": {"mtu": POD}}))
    };
    let (fabric, pods) = hardened(&spec);
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        ask_for_segments(pod, LESS);
        for host in [Host::Peer, Host::Outside] {
            let inside = Echo::telling(pod.at(family), 0).unwrap();
            let from = fabric.host(host, family);
            let mut session = Session::open(from, 0, inside.address()).unwrap();
            session.bulk(BULK).unwrap();
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn the_table_comes_back_and_goes_with_a_clean_up() {
    let (mut fabric, _pods) = hardened(&Spec::with_world(json!({})));
    let repairs = |fabric: &Fabric| -> anyhow::Result<u64> {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        Ok(repairs_of(&status, "netfilter-table"))
    };
    assert_eq!(repairs(&fabric).unwrap(), 0);
    for (count, damage) in [
        "flush ruleset",
        "delete table inet towpath",
        "flush chain inet towpath errors",
    ]
    .into_iter()
    .enumerate()
    {
        fabric.node.run(&format!("nft {damage}")).unwrap();
        has_table(&fabric);
        within(CHANGE, "the repair is counted", || {
            let found = repairs(&fabric)?;
            check(found == count as u64 + 1, || format!("{found} repairs"))
        });
    }
    // Foreign rules are left alone.
    fabric.node.run("nft add table inet mine").unwrap();
    fabric.agent.stop().unwrap();
    let words = ["cleanup", "--yes"];
    let removed = fabric.agent.cli(&fabric.node, &words).unwrap();
    let removed = String::from_utf8_lossy(&removed.stdout);
    assert!(removed.contains("nftables table inet towpath"), "{removed}");
    let tables = fabric.node.run("nft list tables").unwrap();
    assert!(
        tables.contains("mine") && !tables.contains("towpath"),
        "{tables}"
    );
}

#[test]
fn connection_tracking_that_is_off_stays_off() {
    let fabric = Fabric::ready(&Spec::default()).unwrap();
    let peer = fabric.peer(Family::V4);
    ping(fabric.node_at(Family::V4).unwrap(), peer.address, &[]).unwrap();
    let passes = || -> anyhow::Result<u64> {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        Ok(status["uptime-seconds"].as_u64().unwrap_or(0))
    };
    let begun = passes().unwrap();
    within(CHANGE * 3, "some passes", || {
        let now = passes()?;
        check(now >= begun + 2, || format!("{now} s"))
    });
    let tables = fabric.node.run("nft list tables").unwrap();
    assert!(!tables.contains("towpath"), "{tables}");
    fabric.finish().unwrap();
}
