//! Every port towards one destination.

use std::collections::BTreeSet;

use datapath_common::abi::{PortBlock, PortBlockKey, map};
use datapath_common::config::PortSlice;
use datapath_common::counter::NatStat;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use datapath_common::ports::Ports;
use loader::bpf::DatapathSettings;
use testkit::random::Random;

use crate::frames::{Family, Kind};
use crate::node::Node;
use crate::world::{Driver, PODS, Sent, Tuple};

/// Ports of the default slice.
const PORTS: usize = PortSlice::DEFAULT.ports() as usize;
/// Up to here nothing may fail.
const SAFE: usize = PORTS * 99 / 100;

/// Sources of flows to one destination: every pod, with ports in no order, none twice.
fn tuples(seed: u64) -> impl Iterator<Item = Tuple> {
    let mut random = Random::new(seed);
    let mut used = BTreeSet::new();
    std::iter::from_fn(move || {
        loop {
            let tuple = Tuple {
                pod: random.below(PODS),
                port: u16::try_from(1024 + random.below(64_512)).unwrap(),
                remote: 1,
                remote_port: 443,
            };
            if used.insert(tuple) {
                return Some(tuple);
            }
        }
    })
}

/// A flow that holds a port.
type Held = (Tuple, u16);

/// Opens flows until every port is used, and fails on too many failures before that.
fn fill(
    driver: &Driver,
    tuples: &mut impl Iterator<Item = Tuple>,
    held: &mut Vec<Held>,
    kind: Kind,
) {
    let mut failures = 0;
    let mut tries = 0;
    while held.len() < PORTS {
        let tuple = tuples.next().unwrap();
        match driver.send(tuple, kind) {
            Sent::Translated(port) => held.push((tuple, port)),
            Sent::Dropped => {
                assert!(held.len() >= SAFE, "failed with {} ports used", held.len());
                failures += 1;
            }
        }
        tries += 1;
        assert!(
            tries <= 2 * PORTS,
            "{} ports after {tries} tries",
            held.len()
        );
    }
    // At most one in a thousand of those above 99%: there are 246.
    assert!(failures <= 1, "{failures} failures while a port was free");
}

fn all_ports(family: Family, kind: Kind) {
    let node = Node::new(family, &DatapathSettings::default());
    let mut tuples = tuples(0x5eed_0001);
    let mut held = Vec::new();
    fill(&node.driver, &mut tuples, &mut held, kind);
    let ports: BTreeSet<_> = held.iter().map(|(_, port)| *port).collect();
    assert_eq!(ports.len(), PORTS, "each port once");
    assert!(ports.iter().all(|port| PortSlice::DEFAULT.contains(*port)));
    node.check();

    // Full: a drop with its reason, and no other flow loses its port.
    let (before, failed) = (node.dropped(DropReason::NoPort), node.stat(NatStat::Failed));
    let refused = 100;
    for tuple in tuples.by_ref().take(refused) {
        assert_eq!(node.driver.send(tuple, kind), Sent::Dropped);
    }
    let refused = u64::try_from(refused).unwrap();
    assert_eq!(node.dropped(DropReason::NoPort) - before, refused);
    assert_eq!(node.stat(NatStat::Failed) - failed, refused);
    for (tuple, port) in held.iter().step_by(97) {
        assert_eq!(node.driver.must_send(*tuple, kind), *port, "{tuple:?}");
    }

    // Another destination has all of its ports.
    let elsewhere = Tuple {
        remote: 2,
        ..held[0].0
    };
    node.driver.must_send(elsewhere, kind);

    // Ends give ports back, and all of them can be had again.
    let mut random = Random::new(0x5eed_0002);
    let (ended, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(|_| random.below(3) == 0);
    let keys: Vec<_> = ended
        .iter()
        .map(|(tuple, port)| node.key(*tuple, *port, kind.protocol(node.family)))
        .collect();
    assert_eq!(node.remove(&keys) as usize, keys.len());
    node.check();
    held = rest;
    fill(&node.driver, &mut tuples, &mut held, kind);
    node.check();
    let removed = u64::try_from(keys.len()).unwrap();
    assert_eq!(node.stat(NatStat::Removed), removed);
    let opened = u64::try_from(PORTS + 1).unwrap() + removed;
    assert_eq!(node.stat(NatStat::Allocated), opened);
}

#[test]
fn tcp_ports_of_one_ipv4_destination_can_all_be_used() {
    all_ports(Family::V4, Kind::Syn);
}

#[test]
fn udp_ports_of_one_ipv6_destination_can_all_be_used() {
    all_ports(Family::V6, Kind::Udp);
}

/// Where every port was used for a time and most are free now, hints that are stale must not hide
/// them.
#[test]
fn ports_are_found_again_after_all_have_ended() {
    let node = Node::new(Family::V4, &DatapathSettings::default());
    let mut tuples = tuples(0x5eed_0003);
    let mut held = Vec::new();
    fill(&node.driver, &mut tuples, &mut held, Kind::Udp);
    let keys: Vec<_> = held
        .iter()
        .map(|(tuple, port)| node.key(*tuple, *port, protocol::UDP))
        .collect();
    assert_eq!(node.remove(&keys) as usize, PORTS);
    node.check();
    assert!(node.flows().entries().unwrap().is_empty());
    let blocks = node.table::<PortBlockKey, PortBlock>(map::PORT_BLOCKS);
    for (key, block) in blocks.entries().unwrap() {
        assert_eq!(block.used, [0; 8], "{key:?}");
    }
    held.clear();
    fill(&node.driver, &mut tuples, &mut held, Kind::Udp);
}

/// Ports that flows kept, without any search, must not hide the free ones from the first searches.
#[test]
fn free_ports_are_found_among_ports_that_were_kept() {
    let node = Node::new(Family::V4, &DatapathSettings::default());
    let tuple = |pod, port| Tuple {
        pod,
        port,
        remote: 1,
        remote_port: 443,
    };
    let first = u16::try_from(usize::from(u16::MAX) + 1 - PORTS).unwrap();
    // No flow of a pod is kept in the reserve.
    let open = usize::try_from(Ports::DEFAULT.open().count()).unwrap();
    let kept = u16::try_from(open * 98 / 100).unwrap();
    for port in first..first + kept {
        // Two pods, because of the quota.
        let pod = usize::from(port % 2);
        assert_eq!(node.driver.must_send(tuple(pod, port), Kind::Syn), port);
    }
    let more = u16::try_from(open * 99 / 100).unwrap() - kept;
    for port in first..first + more {
        let sent = node.driver.send(tuple(2, port), Kind::Syn);
        let used = kept + (port - first);
        assert_ne!(
            sent,
            Sent::Dropped,
            "failed with {used} of {open} ports used"
        );
    }
    node.check();
}
