//! Connections from the outside: the state that they leave, and its lifetime.

use datapath_common::abi::{FlowQuotas, Quota, SharedTable, inbound_quota, map};
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::Node;
use crate::sweeps::numbered;
use crate::world::{Driver, Tuple, veth};

const QUOTA: u32 = 256;

fn node(family: Family) -> Node {
    let settings = DatapathSettings {
        quotas: FlowQuotas {
            inbound: QUOTA,
            ..FlowQuotas::DEFAULT
        },
        ..DatapathSettings::default()
    };
    Node::new(family, &settings)
}

/// Opens a connection; whether the pod's acceptance has left.
fn open(driver: &Driver, tuple: Tuple) -> bool {
    assert!(driver.call(tuple, Kind::Syn));
    driver.reply(tuple, Kind::SynAck)
}

/// A connection of a question and an answer, which the pod resets.
fn whole(driver: &Driver, tuple: Tuple) -> bool {
    if !open(driver, tuple) {
        return false;
    }
    for (is_pods, kind) in [(false, Kind::Ack), (true, Kind::Ack), (true, Kind::Rst)] {
        let passed = if is_pods {
            driver.reply(tuple, kind)
        } else {
            driver.call(tuple, kind)
        };
        assert!(passed, "{tuple:?} {kind:?}");
    }
    true
}

fn age(node: &Node, seconds: u64) {
    for (tuple, _) in node.inbound().entries().unwrap() {
        node.set_inbound_idle(&tuple, seconds);
    }
}

/// As many notes are counted as there are.
#[track_caller]
fn check(node: &Node, notes: u32) {
    let count = node.inbound().entries().unwrap().len();
    assert_eq!(count, usize::try_from(notes).unwrap());
    let quotas = node.table::<u32, Quota>(map::QUOTA);
    let quota = quotas.get(&inbound_quota(veth(0))).unwrap().unwrap();
    assert_eq!(quota.flows, notes);
}

#[test]
fn those_that_are_over_make_room_at_once() {
    for family in Family::ALL {
        let mut node = node(family);
        let driver = node.driver;
        let live = numbered(0, 0);
        assert!(open(&driver, live) && driver.call(live, Kind::Ack));
        let mut refused = 0;
        for number in 1..4 * QUOTA {
            if whole(&driver, numbered(0, number)) {
                continue;
            }
            refused += 1;
            check(&node, QUOTA);
            // Too early for their last segments.
            assert_eq!(node.sweep(true).reaped.idle, 0);
            age(&node, 3);
            assert_eq!(node.sweep(true).reaped.idle, u64::from(QUOTA - 1));
            node.lend(SharedTable::Inbound, 0);
            assert!(whole(&driver, numbered(0, number)));
        }
        assert_eq!(refused, 4);
        assert_eq!(node.dropped(DropReason::InboundQuotaExceeded), refused);
        assert!(driver.reply(live, Kind::Ack), "the live one");
        // Another pod has its own.
        assert!(whole(&driver, numbered(1, 0)));
    }
}

#[test]
fn half_open_ones_go_early_where_room_is_short_and_completed_ones_do_not() {
    for family in Family::ALL {
        let mut node = node(family);
        let driver = node.driver;
        let completed = [numbered(0, 0), numbered(0, 1)];
        for tuple in completed {
            assert!(open(&driver, tuple) && driver.call(tuple, Kind::Ack));
        }
        let scanned = (2..2 * QUOTA).filter(|number| open(&driver, numbered(0, *number)));
        assert_eq!(scanned.count(), usize::try_from(QUOTA).unwrap() - 2);
        age(&node, 10);
        assert_eq!(node.sweep(true).reaped.idle, 0);
        age(&node, 11);
        // The endpoint's quota is full, the table is not.
        assert_eq!(node.sweep(false).reaped.idle, u64::from(QUOTA - 2));
        check(&node, 2);
        for tuple in completed {
            assert!(driver.reply(tuple, Kind::Ack));
        }
    }
}

/// A client that has connected and says nothing for long, as browsers do.
#[test]
fn a_silent_one_is_answered_after_an_hour() {
    for family in Family::ALL {
        let mut node = node(family);
        let driver = node.driver;
        let silent = numbered(0, 0);
        assert!(open(&driver, silent) && driver.call(silent, Kind::Ack));
        age(&node, 3600);
        assert_eq!(node.sweep(true).reaped.idle, 0);
        assert!(driver.call(silent, Kind::Ack) && driver.reply(silent, Kind::Ack));
        // A reset that the pod does not believe is none.
        assert!(driver.call(silent, Kind::Rst) && driver.reply(silent, Kind::Ack));
        age(&node, 3600);
        assert_eq!(node.sweep(true).reaped.idle, 0);
        // A half-open connection is over after four minutes.
        assert!(open(&driver, numbered(0, 1)));
        let half = node.inbound_key(numbered(0, 1), protocol::TCP);
        node.set_inbound_idle(&half, 242);
        assert_eq!(node.sweep(false).reaped.idle, 1);
    }
}
