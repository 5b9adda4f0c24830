//! One pod that fills the host's connection tracking.

use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{of_protocol, send_ip};
use testkit::fabric::{Fabric, Place};

use crate::masq::scene;
use crate::support::{get, within};

/// IANA, "Protocol Numbers".
const UDP: u8 = 17;
/// A check, which reads all entries.
const CHECKED: Duration = Duration::from_secs(30);
/// Packets of one burst: less than a device's backlog has room for by far.
const BURST: usize = 256;

fn number(fabric: &Fabric, sysctl: &str) -> usize {
    let text = fabric.node.sysctl(&format!("netfilter/{sysctl}")).unwrap();
    text.parse().unwrap()
}

/// A datagram without a checksum, from and to these ports.
fn datagram(from: Place, to: Place, source: u16, destination: u16) -> Vec<u8> {
    let fields = [source, destination, 8, 0].map(u16::to_be_bytes);
    of_protocol(from.address, to.address, UDP, &fields.concat()).unwrap()
}

/// Sends datagrams from ever new ports until there are so many entries.
fn fill(fabric: &Fabric, [from, to]: [Place; 2], ports: std::ops::Range<u16>, entries: usize) {
    for port in ports {
        let sources: Vec<u16> = (1..=u16::MAX).collect();
        for sources in sources.chunks(BURST) {
            let datagrams = sources
                .iter()
                .map(|source| datagram(from, to, *source, port));
            let datagrams: Vec<_> = datagrams.collect();
            send_ip(from, to.address, &datagrams).unwrap();
        }
        if number(fabric, "nf_conntrack_count") >= entries {
            return;
        }
    }
    panic!("{} entries", number(fabric, "nf_conntrack_count"));
}

#[test]
fn a_pod_that_fills_conntrack_is_named() {
    let (fabric, [innocent, greedy]) = scene(json!({}));
    for command in [
        "nft add table inet tracked",
        "nft add chain inet tracked in { type filter hook input priority filter ; }",
        "nft add rule inet tracked in ct state new accept",
    ] {
        fabric.node.run(command).unwrap();
    }
    let lasting = ("netfilter/nf_conntrack_udp_timeout", "600");
    fabric.node.sysctls(&[lasting]).unwrap();
    let health = || get(&fabric, "/v1/status")["health"].to_string();
    let is_told = |part: &str| {
        let health = health();
        let is_told = [part, greedy.name.as_str()]
            .iter()
            .all(|part| health.contains(part));
        check(is_told && !health.contains(&innocent.name), || health)
    };
    let most = number(&fabric, "nf_conntrack_max");
    let host = fabric.node_at(Family::V4).unwrap();
    let (few, many) = (innocent.at(Family::V4), greedy.at(Family::V4));
    send_ip(few, host.address, &[datagram(few, host, 1, 1)]).unwrap();
    assert!(!health().contains("conntrack"), "{}", health());
    fill(&fabric, [many, host], 1000..1100, most * 91 / 100);
    within(CHECKED, "nearly full", || is_told("more than 90%"));
    // The kernel removes entries by itself once they are nearly all used, so that only packets that
    // are refused between two checks show a full table.
    let mut ports = 2000..;
    within(CHECKED, "full", || {
        let port = ports.next().unwrap();
        fill(&fabric, [many, host], port..port + 1, 0);
        is_told("conntrack is full")
    });
    fabric.node.run("conntrack -F").unwrap();
    within(CHECKED, "room again", || {
        check(!health().contains("conntrack"), health)
    });
    fabric.finish().unwrap();
}
