//! Bulk transfers with and without segmentation and checksum offloads: every checksum that a
//! receiver verifies is right.

use std::fs;

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::{Asker, Echo, tcp_bulk};
use testkit::fabric::{Fabric, Netns, POD_INTERFACE};

use crate::masq::{internet, internet_scene};

const BULK: usize = 32 * 1024 * 1024;

/// Packets with a wrong checksum that a namespace has counted, whatever the protocol.
fn checksum_errors(netns: &Netns) -> u64 {
    let (v4, v6) = netns
        .enter(|| {
            // Below /proc/net is the namespace of the main thread.
            let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            Ok((read("snmp")?, read("snmp6")?))
        })
        .unwrap();
    let mut errors = 0;
    let lines: Vec<_> = v4.lines().collect();
    for pair in lines.chunks(2) {
        let names = pair[0].split_whitespace();
        for (name, value) in names.zip(pair[1].split_whitespace()) {
            if name == "InCsumErrors" {
                errors += value.parse::<u64>().unwrap();
            }
        }
    }
    for line in v6.lines() {
        let mut words = line.split_whitespace();
        if words.next().unwrap().ends_with("InCsumErrors") {
            errors += words.next().unwrap().parse::<u64>().unwrap();
        }
    }
    errors
}

/// A device whose offloads can be switched.
struct Device<'a>(&'a Netns, String);

fn devices<'a>(fabric: &'a Fabric, pod: &'a Netns) -> Vec<Device<'a>> {
    let server = internet(fabric, Family::V4).netns;
    let own = |netns, device: &str| Device(netns, device.to_owned());
    vec![
        own(pod, POD_INTERFACE),
        own(server, "eth0"),
        own(&fabric.vpc.router, "eni0"),
        own(&fabric.vpc.router, "eni1"),
        own(&fabric.vpc.router, "world"),
    ]
}

fn switch(devices: &[Device], feature: &str, on: bool) {
    let state = if on { "on" } else { "off" };
    for Device(netns, device) in devices {
        netns
            .run(&format!("ethtool -K {device} {feature} {state}"))
            .unwrap();
    }
}

#[test]
fn bulk_transfers_have_right_checksums_with_and_without_offloads() {
    let (fabric, pods) = internet_scene(json!({}));
    for (index, pod) in pods.iter().enumerate() {
        let all = devices(&fabric, &pod.netns);
        // A device without transmit checksums has the kernel finish them, and cut what is large:
        // the receiver verifies then. GRO puts together again what was cut.
        for (tx, gro) in [(true, false), (true, true), (false, false), (false, true)] {
            switch(&all, "tx", tx);
            switch(&all, "gro", gro);
            for family in Family::ALL {
                let (from, to) = (pod.at(family), internet(&fabric, family));
                let places = [from.netns, to.netns, &fabric.node];
                let before = places.map(checksum_errors);
                let plain = Echo::start(to).unwrap();
                let what = format!("pod {index} {family:?} tx {tx} gro {gro}");
                if let Err(error) = tcp_bulk(from, plain.address(), BULK) {
                    panic!("{what}: {error:#}");
                }
                let server = Echo::telling(to, 0).unwrap();
                let asker = Asker::open(from, 0, server.address()).unwrap();
                for bytes in [0, 1, 7, 1000, 1472, 10_000] {
                    asker.ask(bytes).unwrap();
                }
                assert_eq!(places.map(checksum_errors), before, "{what}");
            }
        }
    }
    fabric.finish().unwrap();
}
