//! Packets at the same moment on two CPUs, and packets at the same moment as the reaper.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use datapath_common::counter::NatStat;
use datapath_common::headers::protocol;
use loader::bpf::DatapathSettings;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::frames::{Family, Kind};
use crate::node::Node;
use crate::world::{Driver, Sent, Tuple};

/// Flows of each race, within a pod's quota.
const FLOWS: u32 = 8192;

/// Does two things for each number on two CPUs, each number at the same moment.
fn race<A: Send, B: Send>(
    first: impl Fn(u32) -> A + Sync,
    second: impl Fn(u32) -> B + Sync,
) -> (Vec<A>, Vec<B>) {
    let arrived = AtomicUsize::new(0);
    let meet = |number: u32| {
        arrived.fetch_add(1, Ordering::AcqRel);
        let both = 2 * (usize::try_from(number).unwrap() + 1);
        let mut looks = 0_u32;
        while arrived.load(Ordering::Acquire) < both {
            looks += 1;
            // The other may not be running at all.
            if looks.is_multiple_of(1024) {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    };
    let on = |cpu: usize| {
        let mut cpus = CpuSet::new();
        cpus.set(cpu).unwrap();
        sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
    };
    thread::scope(|scope| {
        let one = scope.spawn(|| {
            on(0);
            (0..FLOWS)
                .map(|number| {
                    meet(number);
                    first(number)
                })
                .collect()
        });
        let other = scope.spawn(|| {
            on(1);
            (0..FLOWS)
                .map(|number| {
                    meet(number);
                    second(number)
                })
                .collect()
        });
        (one.join().unwrap(), other.join().unwrap())
    })
}

fn tuple(pod: usize, number: u32) -> Tuple {
    Tuple {
        pod,
        port: u16::try_from(42_000 + number % 16).unwrap(),
        // One for each: no other flow comes upon its port by chance.
        remote: u16::try_from(number).unwrap(),
        remote_port: 443,
    }
}

/// Both CPUs open the same flow: one must come of it, and both packets must have its port.
fn one_flow(family: Family, kind: Kind, is_displaced: bool) {
    let node = Node::new(family, &DatapathSettings::default());
    let driver = node.driver;
    if is_displaced {
        // Another pod holds every first candidate.
        for number in 0..FLOWS {
            driver.must_send(tuple(1, number), kind);
        }
    }
    let before = node.stat(NatStat::Allocated);
    let send = |number| driver.must_send(tuple(0, number), kind);
    let (one, other) = race(send, send);
    for (number, (one, other)) in one.iter().zip(&other).enumerate() {
        assert_eq!(one, other, "{number}: two ports for one flow");
    }
    let flows = usize::try_from(FLOWS).unwrap();
    let pods = if is_displaced { 2 } else { 1 };
    assert_eq!(node.flows().entries().unwrap().len(), pods * flows);
    let moved = if is_displaced { flows } else { 0 };
    assert_eq!(node.moved().entries().unwrap().len(), moved);
    assert_eq!(node.quota(0), FLOWS);
    assert_eq!(node.stat(NatStat::Allocated) - before, u64::from(FLOWS));
    node.check();
    for (number, port) in (0..FLOWS).zip(&one) {
        assert!(driver.answer(tuple(0, number), *port, kind), "{number}");
    }
}

#[test]
fn two_first_packets_of_one_flow_make_one_flow() {
    one_flow(Family::V4, Kind::Syn, false);
    one_flow(Family::V6, Kind::Udp, false);
}

#[test]
fn two_first_packets_of_one_displaced_flow_make_one_flow() {
    one_flow(Family::V4, Kind::Udp, true);
    one_flow(Family::V6, Kind::Syn, true);
}

/// Two pods with the same port to the same remote: one keeps it, the other gets another.
#[test]
fn two_flows_that_want_one_port_get_one_each() {
    for family in Family::ALL {
        let node = Node::new(family, &DatapathSettings::default());
        let driver = node.driver;
        let (one, other) = race(
            |number| driver.must_send(tuple(0, number), Kind::Syn),
            |number| driver.must_send(tuple(1, number), Kind::Syn),
        );
        for (number, (one, other)) in (0..FLOWS).zip(one.iter().zip(&other)) {
            assert_ne!(one, other, "{number}: one port for two flows");
            let wanted = tuple(0, number).port;
            assert!(
                *one == wanted || *other == wanted,
                "{number}: nobody kept {wanted}"
            );
            assert!(
                driver.answer(tuple(0, number), *one, Kind::SynAck),
                "{number}"
            );
            assert!(
                driver.answer(tuple(1, number), *other, Kind::SynAck),
                "{number}"
            );
        }
        node.check();
    }
}

/// The reaper gets a flow at the moment of a packet of it. In either order, once the packet has
/// left, its flow exists, with the packet's port. `packet` returns the port, or `None` for a
/// dropped packet, which requires that the reaper was first.
fn reaper_against(
    family: Family,
    is_displaced: bool,
    packet: impl Fn(&Driver, u32, u16) -> Option<u16> + Sync,
) {
    let node = Node::new(family, &DatapathSettings::default());
    let driver = node.driver;
    if is_displaced {
        for number in 0..FLOWS {
            driver.must_send(tuple(1, number), Kind::Syn);
        }
    }
    let ports: Vec<_> = (0..FLOWS)
        .map(|number| driver.connect(tuple(0, number)))
        .collect();
    let key = |number: u32, port| family.key(tuple(0, number), port, protocol::TCP);
    let aged: BTreeMap<_, _> = node.age(100).into_iter().collect();
    let port = |number: u32| ports[usize::try_from(number).unwrap()];
    let reaper = node.reaper;
    let (left, reaped) = race(
        |number| packet(&driver, number, port(number)),
        |number| {
            let key = key(number, port(number));
            reaper.flows(&[(key, aged[&key])]).unwrap()
        },
    );
    let flows = node.flows();
    let mut kept = 0;
    for (number, (left, reaped)) in (0..FLOWS).zip(left.into_iter().zip(reaped)) {
        kept += 1 - reaped;
        if let Some(port) = left {
            let flow = flows.get(&key(number, port)).unwrap();
            let flow = flow.unwrap_or_else(|| panic!("{number}: a live flow was lost"));
            assert_eq!(flow.dead, 0, "{number}");
        } else {
            assert_eq!(reaped, 1, "{number}: dropped, but not reaped");
            driver.must_send(tuple(0, number), Kind::Ack);
        }
    }
    node.check();
    // Each must have won at times, or there was no race.
    assert!(
        kept > 0 && kept < FLOWS,
        "{kept} of {FLOWS} flows were kept"
    );
}

#[test]
fn the_reaper_takes_no_flow_that_the_pod_uses() {
    reaper_against(Family::V4, false, |driver, number, _| {
        Some(driver.must_send(tuple(0, number), Kind::Ack))
    });
}

/// A packet that meets the end of its displaced flow, which was idle for too long, may be lost; its
/// repetition must not be.
#[test]
fn the_reaper_takes_no_displaced_flow_that_the_pod_uses() {
    reaper_against(Family::V4, true, |driver, number, _| {
        match driver.send(tuple(0, number), Kind::Ack) {
            Sent::Translated(port) => Some(port),
            Sent::Dropped => None,
        }
    });
}

#[test]
fn the_reaper_takes_no_flow_that_is_answered() {
    for is_displaced in [false, true] {
        reaper_against(Family::V6, is_displaced, |driver, number, port| {
            driver
                .answer(tuple(0, number), port, Kind::Ack)
                .then_some(port)
        });
    }
}
