//! The agent's sweeper on flows that packets made: what it removes, and what it leaves.

use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use flows::{Lifetimes, Used};
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::{Node, of_capacity};
use crate::phases;
use crate::world::{Driver, PODS, Sent, Tuple};

const CAPACITY: u32 = 1024;

/// A flow that is none of the others, towards a remote of many.
pub(crate) fn numbered(pod: usize, number: u32) -> Tuple {
    Tuple {
        pod,
        port: 50_000,
        remote: u16::try_from(number % 50_000).unwrap(),
        remote_port: u16::try_from(1 + number / 50_000).unwrap(),
    }
}

/// Packets in both directions pass, with this port.
#[track_caller]
pub(crate) fn assert_alive(driver: &Driver, tuple: Tuple, port: u16) {
    assert!(driver.answer(tuple, port, Kind::Ack), "{tuple:?}");
    assert_eq!(driver.must_send(tuple, Kind::Ack), port, "{tuple:?}");
}

#[test]
fn closed_flows_alone_go_early_and_not_before_they_have_been_idle() {
    for family in Family::ALL {
        let mut node = Node::new(family, &DatapathSettings::default());
        let flows = phases::open(&node);
        let notes = phases::call(&node);
        let closed = flows.iter().filter(|(_, case)| case.is_closed).count();
        let closed_notes = notes.iter().filter(|(_, case)| case.is_closed).count();
        assert_eq!((closed, closed_notes), (1, 1));
        let set_idle = |node: &Node, seconds| {
            for (key, _) in &flows {
                node.set_idle(key, seconds);
            }
            for (tuple, _) in &notes {
                node.set_inbound_idle(tuple, seconds);
            }
        };
        set_idle(&node, 0);
        assert_eq!(node.sweep(true).reaped.idle, 0, "closed, but not idle");
        set_idle(&node, 10);
        assert_eq!(node.sweep(false).reaped.idle, 0, "room is not short");
        // The second that a packet's time may be off.
        let least = Lifetimes::default().closed_under_pressure;
        set_idle(&node, least.as_secs() + 1);
        assert_eq!(node.sweep(true).reaped.idle, 1 + 1);
        for (key, case) in &flows {
            let is_there = node.flows().get(key).unwrap().is_some();
            assert_eq!(is_there, !case.is_closed, "{case:?}");
        }
        for (tuple, case) in &notes {
            let is_there = node.inbound().get(tuple).unwrap().is_some();
            assert_eq!(is_there, !case.is_closed, "{case:?}");
        }
        node.check();
    }
}

#[test]
fn flows_go_with_their_endpoint_and_no_other() {
    for family in Family::ALL {
        let mut node = Node::new(family, &DatapathSettings::default());
        let driver = node.driver;
        let mut kept = Vec::new();
        for number in 0..500 {
            // Both pods use the same port towards the same remote. So each has flows at their first
            // candidate port, and others.
            let (first, second) = (number % 2, (number + 1) % 2);
            for pod in [first, second].map(|pod| usize::try_from(pod).unwrap()) {
                let port = driver.connect(numbered(pod, number));
                if pod == 1 {
                    kept.push((numbered(pod, number), port));
                }
            }
            let call = Tuple {
                port: 53,
                ..numbered(usize::try_from(first).unwrap(), number)
            };
            assert!(driver.call(call, Kind::Udp));
        }
        assert_eq!(node.sweep(true).reaped.gone, 0);
        node.remove_pod(0);
        let sweep = node.sweep(false);
        assert_eq!((sweep.reaped.idle, sweep.reaped.gone), (0, 500 + 250));
        assert_eq!((node.quota(0), node.quota(1)), (0, 500));
        assert_eq!(node.inbound().entries().unwrap().len(), 250);
        node.check();
        for (tuple, port) in kept {
            assert_alive(&driver, tuple, port);
        }
    }
}

/// A pod that has another's address has none of its flows.
#[test]
fn flows_do_not_pass_to_the_next_pod_with_the_address() {
    let mut node = Node::new(Family::V4, &DatapathSettings::default());
    for number in 0..100 {
        node.driver.connect(numbered(0, number));
        node.driver.connect(numbered(1, number));
    }
    // Behind the device of a pod that has no flow.
    node.replace_pod(0, crate::world::veth(PODS - 1));
    assert_eq!(node.sweep(false).reaped.gone, 100);
    assert_eq!((node.quota(0), node.quota(1)), (0, 100));
    node.check();
}

/// Until the agent knows what endpoints there are to be, none is gone.
#[test]
fn an_endpoint_that_is_not_known_yet_keeps_its_flows() {
    let mut node = Node::new(Family::V4, &DatapathSettings::default());
    let port = node.driver.connect(numbered(0, 1));
    node.remove_pod(0);
    let input = std::mem::take(&mut node.input);
    assert_eq!(node.sweep(true).reaped.gone, 0);
    let key = node.key(numbered(0, 1), port, protocol::TCP);
    assert!(node.flows().get(&key).unwrap().is_some());
    node.input = input;
    assert_eq!(node.sweep(false).reaped.gone, 1);
}

#[test]
fn a_full_map_has_room_again_once_flows_are_over() {
    let settings = of_capacity(CAPACITY);
    for family in Family::ALL {
        let mut node = Node::new(family, &settings);
        let driver = node.driver;
        let live: Vec<_> = (0..100)
            .map(|number| (numbered(0, number), driver.connect(numbered(0, number))))
            .collect();
        for number in 100..CAPACITY {
            driver.must_send(numbered(1, number), Kind::Udp);
        }
        assert_eq!(driver.send(numbered(2, 1), Kind::Syn), Sent::Dropped);
        assert_eq!(node.dropped(DropReason::FlowsFull), 1);
        // Full of live flows: pressure takes none of them.
        assert_eq!(node.sweep(true).reaped.idle, 0);
        assert_eq!(driver.send(numbered(2, 1), Kind::Syn), Sent::Dropped);
        node.age(32);
        let sweep = node.sweep(true);
        assert_eq!(sweep.reaped.idle, u64::from(CAPACITY - 100));
        let used = Used::of(&sweep.census);
        assert_eq!(used.flows_v4 + used.flows_v6, 100);
        node.lift_reserves();
        for number in 100..CAPACITY {
            driver.must_send(numbered(2, number), Kind::Syn);
        }
        for (tuple, port) in live {
            assert_alive(&driver, tuple, port);
        }
        node.check();
    }
}

#[test]
fn a_full_map_of_flows_from_the_outside_has_room_again_once_they_are_over() {
    let settings = of_capacity(CAPACITY);
    for family in Family::ALL {
        let mut node = Node::new(family, &settings);
        let driver = node.driver;
        for number in 0..CAPACITY {
            assert!(driver.call(numbered(0, number), Kind::Udp), "{number}");
        }
        assert!(!driver.call(numbered(0, CAPACITY), Kind::Udp));
        // The noted ones are still answered.
        assert!(driver.reply(numbered(0, 7), Kind::Udp));
        for (tuple, _) in node.inbound().entries().unwrap() {
            node.set_inbound_idle(&tuple, 32);
        }
        assert_eq!(node.sweep(true).reaped.idle, u64::from(CAPACITY - 1));
        assert!(driver.call(numbered(0, CAPACITY), Kind::Udp));
        assert!(driver.reply(numbered(0, 7), Kind::Udp));
    }
}

/// A pod that only ever sends SYNs to one destination: its quota holds, others have ports there,
/// and once the SYNs are over everything is as before.
#[test]
fn a_syn_flood_of_a_pod_harms_that_pod_alone() {
    for family in Family::ALL {
        let settings = DatapathSettings::default();
        let mut node = Node::new(family, &settings);
        let driver = node.driver;
        let flow = |pod, port| Tuple {
            pod,
            port,
            remote: 1,
            remote_port: 443,
        };
        let own = flow(0, 60_000);
        let own_port = driver.connect(own);
        let others: Vec<_> = (50_000..50_500)
            .map(|port| (flow(1, port), driver.connect(flow(1, port))))
            .collect();
        let flood = |from, to| {
            let made = (from..to).filter(|port| *port != own.port);
            let made = made.filter(|port| driver.send(flow(0, *port), Kind::Syn) != Sent::Dropped);
            u32::try_from(made.count()).unwrap()
        };
        assert_eq!(flood(1024, u16::MAX), settings.quotas.endpoint - 1);
        assert_eq!(node.quota(0), settings.quotas.endpoint);
        let refused = node.dropped(DropReason::QuotaExceeded);
        let sent = u64::from(u16::MAX - 1024);
        assert_eq!(refused, sent - u64::from(settings.quotas.endpoint));
        for (tuple, port) in &others {
            assert_alive(&driver, *tuple, *port);
        }
        for port in 51_000..51_500 {
            driver.connect(flow(1, port));
        }
        assert_alive(&driver, own, own_port);
        // Pressure does not help it: a SYN that was not answered is no closed connection.
        node.age(60);
        assert_eq!(node.sweep(true).reaped.idle, 0);
        node.age(242 - 60);
        let over = u64::from(settings.quotas.endpoint - 1);
        assert_eq!(node.sweep(false).reaped.idle, over);
        node.check();
        assert_eq!(flood(1024, 3024), 2000);
        for (tuple, port) in others {
            assert_alive(&driver, tuple, port);
        }
        assert_alive(&driver, own, own_port);
    }
}
