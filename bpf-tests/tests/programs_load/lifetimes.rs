//! Packets that refresh a flow, and the flow's lifetime without them.

use datapath_common::abi::{FlowKey, FlowQuotas};
use datapath_common::headers::protocol;
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::Node;
use crate::phases;
use crate::world::Tuple;

const FLOW: Tuple = Tuple {
    pod: 0,
    port: 50_000,
    remote: 1,
    remote_port: 443,
};

/// The time that a flow has been idle before a packet, in seconds.
const IDLE: u64 = 100;

/// Ages the flow, and returns true if the next action refreshes it.
fn refreshes(node: &Node, port: u16, protocol: u8, what: impl FnOnce()) -> bool {
    let key = node.key(FLOW, port, protocol);
    node.age(IDLE);
    let before = node.last_seen(&key);
    what();
    let after = node.last_seen(&key);
    assert!(
        after == before || after >= before + IDLE,
        "{before} became {after}"
    );
    after != before
}

#[test]
fn packets_in_both_directions_refresh() {
    for family in Family::ALL {
        let node = Node::new(family, &DatapathSettings::default());
        let driver = node.driver;
        let port = driver.connect(FLOW);
        assert!(refreshes(&node, port, protocol::TCP, || {
            driver.must_send(FLOW, Kind::Ack);
        }));
        assert!(refreshes(&node, port, protocol::TCP, || {
            assert!(driver.answer(FLOW, port, Kind::Ack));
        }));
        let port = driver.must_send(FLOW, Kind::Udp);
        assert!(refreshes(&node, port, protocol::UDP, || {
            assert!(driver.answer(FLOW, port, Kind::Udp));
        }));
        assert!(refreshes(&node, port, protocol::UDP, || {
            driver.must_send(FLOW, Kind::Udp);
        }));
    }
}

#[test]
fn icmp_errors_refresh_nothing() {
    for family in Family::ALL {
        let node = Node::new(family, &DatapathSettings::default());
        let driver = node.driver;
        for kind in [Kind::Syn, Kind::Udp] {
            let port = driver.must_send(FLOW, kind);
            assert!(!refreshes(&node, port, kind.protocol(node.family), || {
                assert!(driver.error(FLOW, port, kind), "{family:?} {kind:?}");
            }));
        }
        node.check();
    }
}

/// Margin below the lifetime, in seconds, within which an idle flow must stay, whatever other
/// traffic there is.
///
/// The time of a packet is accurate to a second.
const SLACK: u64 = 5;

#[test]
fn flows_live_as_long_as_their_phase_allows() {
    for family in Family::ALL {
        let mut node = Node::new(family, &DatapathSettings::default());
        let flows = phases::open(&node);
        for (key, case) in &flows {
            node.set_idle(key, case.lifetime - SLACK);
        }
        let mut left = flows.len();
        for (key, case) in &flows {
            node.set_idle(key, case.lifetime + 1);
            let sweep = node.sweep(false);
            assert_eq!(sweep.reaped.idle, 1, "{case:?}");
            assert_eq!(node.flows().get(key).unwrap(), None, "{case:?}");
            left -= 1;
            assert_eq!(node.flows().entries().unwrap().len(), left);
        }
        node.check();
    }
}

/// Where more than half of a pod's quota is used, a resolver's answer ends the need for a flow that
/// has carried no more.
#[test]
fn an_answered_question_goes_early_and_longer_chatter_keeps_its_lifetime() {
    const QUOTA: u16 = 8;
    let settings = DatapathSettings {
        quotas: FlowQuotas {
            endpoint: QUOTA.into(),
            ..FlowQuotas::DEFAULT
        },
        ..DatapathSettings::default()
    };
    for family in Family::ALL {
        let mut node = Node::new(family, &settings);
        let driver = node.driver;
        let exchange = |node: &Node, source, packets| {
            let tuple = Tuple {
                port: source,
                remote_port: 53,
                ..FLOW
            };
            let mut port = 0;
            for _ in 0..packets {
                port = driver.must_send(tuple, Kind::Udp);
                assert!(driver.answer(tuple, port, Kind::Udp));
            }
            node.key(tuple, port, protocol::UDP)
        };
        let [question, chatter] =
            [(50_000, 1), (50_001, 2)].map(|(source, packets)| exchange(&node, source, packets));
        let idle = |node: &mut Node, key: &FlowKey, seconds| {
            node.set_idle(key, seconds);
            node.sweep(false).reaped.idle
        };
        assert_eq!(idle(&mut node, &question, 12), 0, "there is room");
        for other in 0..QUOTA / 2 {
            let tuple = Tuple {
                port: 51_000 + other,
                ..FLOW
            };
            driver.must_send(tuple, Kind::Udp);
        }
        assert_eq!(idle(&mut node, &chatter, 60 - SLACK), 1);
        assert_eq!(node.flows().get(&question).unwrap(), None);
        assert_eq!(idle(&mut node, &chatter, 61), 1);
        assert_eq!(node.flows().get(&chatter).unwrap(), None);
        node.check();
    }
}

#[test]
fn notes_of_calls_live_as_long_as_their_phase_allows() {
    for family in Family::ALL {
        let mut node = Node::new(family, &DatapathSettings::default());
        let notes = phases::call(&node);
        for (tuple, case) in &notes {
            node.set_inbound_idle(tuple, case.lifetime - SLACK);
        }
        let mut left = notes.len();
        assert_eq!(node.inbound().entries().unwrap().len(), left);
        for (tuple, case) in &notes {
            node.set_inbound_idle(tuple, case.lifetime + 1);
            let sweep = node.sweep(false);
            assert_eq!(sweep.reaped.idle, 1, "{case:?}");
            assert_eq!(node.inbound().get(tuple).unwrap(), None, "{case:?}");
            left -= 1;
            assert_eq!(node.inbound().entries().unwrap().len(), left);
        }
        // A packet that would have been an answer now opens a flow of its own.
        assert!(node.flows().entries().unwrap().is_empty());
        let caller = Tuple {
            remote_port: 50_443,
            remote: 6,
            ..FLOW
        };
        assert!(!node.driver.reply(caller, Kind::Udp));
        assert_eq!(node.flows().entries().unwrap().len(), 1);
    }
}
