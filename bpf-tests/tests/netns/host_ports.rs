//! Ports that the reservation leaves to the host, whatever the range of its automatic ports is, and
//! the flows of pods while that range changes.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, UdpSocket};

use anyhow::{Result, ensure};
use ipam::Family;
use loader::intent::masquerade::PortList;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Echo, Session};
use testkit::fabric::{Fabric, Spec};

use crate::masq::{internet, scene, scene_of};
use crate::masq_host::both;
use crate::support::{CHANGE, HEAL, get, is_full, within};

/// Automatic ports that the host keeps.
const KEPT: usize = 8192;
const RANGE: &str = "ipv4/ip_local_port_range";
const RESERVED: &str = "ipv4/ip_local_reserved_ports";
/// Least number of ports for translation: a block at each edge is less than all.
const FEWEST: u32 = 24_576 - 2 * 512;

/// Raises this process's limit on open files, for as many sockets as a host binds here.
fn lift_files() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

/// Binds a number of sockets of the host to automatic ports at the same time.
fn bind(fabric: &Fabric, count: usize) -> Result<()> {
    let bound: Result<Vec<UdpSocket>> = fabric.node.enter(|| {
        let bind = |_| Ok(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?);
        (0..count).map(bind).collect()
    });
    let ports: BTreeSet<u16> = bound?
        .iter()
        .map(|socket| Ok(socket.local_addr()?.port()))
        .collect::<Result<_>>()?;
    ensure!(ports.len() == count, "{} ports of {count}", ports.len());
    Ok(())
}

fn reserved(fabric: &Fabric) -> Result<PortList> {
    Ok(fabric.node.sysctl(RESERVED)?.trim().parse()?)
}

/// Checks that the ports for translation are reserved again, and that the host uses none of them.
fn has_enough(fabric: &Fabric) -> Result<()> {
    let reserved = reserved(fabric)?;
    let is_high = reserved.ranges().iter().all(|(first, _)| *first >= 32_768);
    let is_enough = reserved.count() >= FEWEST && is_high;
    check(is_enough, || format!("{reserved} are reserved"))
}

fn is_ready(fabric: &Fabric) -> Result<()> {
    let health = &get(fabric, "/v1/status")["health"];
    check(health["state"] == "ready", || health.to_string())
}

#[test]
fn the_host_keeps_its_ports_and_pods_their_flows_when_the_range_changes() {
    lift_files();
    let (mut fabric, [pod, _]) = scene(json!({}));
    let mut sessions = Vec::new();
    let servers = Family::ALL.map(|family| Echo::telling(internet(&fabric, family), 0).unwrap());
    // Ports below all of ours, in the default ones, and in the part that IANA's range takes from
    // them.
    let ports = [20_000, 41_000, 50_000, 57_000, 65_000];
    let few = [
        ("49152 65535", KEPT),
        ("60000 60999", 1000),
        ("1024 65535", KEPT),
        ("32768 60999", KEPT),
    ];
    let more = [
        ("40000 65000", KEPT),
        ("57345 65535", 8191),
        ("20000 33000", KEPT),
        ("32768 60999", KEPT),
    ];
    let more = more.iter().filter(|_| is_full());
    for (number, (range, kept)) in few.iter().chain(more).copied().enumerate() {
        fabric.node.sysctls(&[(RANGE, range)]).unwrap();
        within(HEAL, range, || bind(&fabric, kept));
        within(CHANGE, range, || has_enough(&fabric));
        within(CHANGE, range, || is_ready(&fabric));
        bind(&fabric, kept).unwrap();
        for (family, server) in Family::ALL.into_iter().zip(&servers) {
            for port in ports.map(|port| port + u16::try_from(number).unwrap()) {
                let session = Session::open(pod.at(family), port, server.address()).unwrap();
                sessions.push((range, session));
            }
        }
        for (opened, session) in &mut sessions {
            let exchanged = session.exchange();
            assert!(exchanged.is_ok(), "{opened} in {range}: {exchanged:?}");
        }
    }
    // An agent that starts finds the reservation of earlier ones.
    fabric.node.sysctls(&[(RANGE, "49152 65535")]).unwrap();
    fabric.agent.stop().unwrap();
    fabric.start_agent().unwrap();
    for (opened, session) in &mut sessions {
        let exchanged = session.exchange();
        assert!(exchanged.is_ok(), "{opened}: {exchanged:?}");
    }
    bind(&fabric, KEPT).unwrap();
    has_enough(&fabric).unwrap();
    assert!(!fabric.agent.log().contains("no longer uses"));
    fabric.finish().unwrap();
}

#[test]
fn ports_that_are_set_and_leave_too_few_are_shared() {
    lift_files();
    let set = json!({"nat": {"ports": ["32768-61439"]}});
    let (fabric, [pod, _]) = scene(set);
    bind(&fabric, KEPT).unwrap();
    let health = get(&fabric, "/v1/status")["health"].to_string();
    for part in ["degraded", "32768-40959", "nat.ports", "40960-65535"] {
        assert!(health.contains(part), "{part}: {health}");
    }
    // Ports that are not reserved are still kept apart.
    for (number, family) in (0..).zip(Family::ALL) {
        let (node, pod) = (fabric.node_at(family).unwrap(), pod.at(family));
        let address = crate::masq::snat(&fabric, 0, family);
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        both([pod, node], &server, address, 33_000 + number);
        both([node, pod], &server, address, 33_100 + number);
    }
    // A host whose range is elsewhere loses no ports.
    fabric.node.sysctls(&[(RANGE, "10000 30000")]).unwrap();
    within(HEAL, "all is reserved", || {
        let reserved = reserved(&fabric)?.to_string();
        check(reserved == "32768-61439", || reserved)
    });
    within(CHANGE, "ready", || is_ready(&fabric));
    fabric.finish().unwrap();
}

/// The kernel cuts off a long list where it is read in pieces.
#[test]
fn a_long_list_of_ports_that_others_reserved_stays() {
    let (fabric, _) = scene(json!({}));
    let others = PortList::new(
        (0..100)
            .map(|number| 1001 + 10 * number)
            .map(|port| (port, port)),
    );
    let text = others.to_string();
    fabric.node.sysctls(&[(RESERVED, &text)]).unwrap();
    within(HEAL, "ours beside others", || {
        let reserved = reserved(&fabric)?;
        let is_whole = reserved.contains(&others) && reserved.count() >= 100 + FEWEST;
        check(is_whole, || format!("{reserved} are reserved"))
    });
    fabric.finish().unwrap();
}

#[test]
fn nothing_is_reserved_without_masquerade() {
    let off = json!({"ipv4": false, "ipv6": false});
    let (mut fabric, _) = scene(json!({}));
    within(CHANGE, "reserved", || has_enough(&fabric));
    fabric.agent.stop().unwrap();
    fabric.agent.set("/masquerade/ipv4", &off["ipv4"]).unwrap();
    fabric.agent.set("/masquerade/ipv6", &off["ipv6"]).unwrap();
    fabric.node.sysctls(&[(RANGE, "49152 65535")]).unwrap();
    fabric.start_agent().unwrap();
    assert_eq!(reserved(&fabric).unwrap(), PortList::default());
    fabric.finish().unwrap();
}

#[test]
fn a_host_of_ipv6_alone_keeps_its_ports() {
    lift_files();
    let spec = Spec {
        v6_only: vec![0, 1],
        ..Spec::with_world(json!({"masquerade": {"ipv4": false, "ipv6": true}}))
    };
    let (fabric, [pod, _]) = scene_of(&spec);
    let server = Echo::telling(internet(&fabric, Family::V6), 0).unwrap();
    let open = |port| Session::open(pod.at(Family::V6), port, server.address()).unwrap();
    let mut session = open(50_000);
    fabric.node.sysctls(&[(RANGE, "49152 65535")]).unwrap();
    within(HEAL, "ports of the host", || bind(&fabric, KEPT));
    within(CHANGE, "ports of pods", || has_enough(&fabric));
    session.exchange().unwrap();
    open(50_001).exchange().unwrap();
    fabric.finish().unwrap();
}
