//! Quotas and full maps.

use datapath_common::abi::{FlowQuotas, Room, SharedTable};
use datapath_common::outcome::DropReason;
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::{Node, of_capacity};
use crate::world::{Driver, Sent, Tuple};

const QUOTA: u32 = 512;
const CAPACITY: u32 = 1024;

/// The flow of a pod with a number, each to another remote.
fn flow(pod: usize, number: u32) -> Tuple {
    Tuple {
        pod,
        port: 50_000,
        remote: u16::try_from(number % 50_000).unwrap(),
        remote_port: u16::try_from(1 + number / 50_000).unwrap(),
    }
}

/// Opens flows of a pod; how many were made.
fn open(driver: &Driver, pod: usize, numbers: std::ops::Range<u32>) -> u32 {
    let made = numbers.filter(|number| driver.send(flow(pod, *number), Kind::Syn) != Sent::Dropped);
    u32::try_from(made.count()).unwrap()
}

#[test]
fn a_pod_at_its_quota_does_not_disturb_another() {
    for family in Family::ALL {
        let settings = DatapathSettings {
            quotas: FlowQuotas {
                endpoint: QUOTA,
                ..FlowQuotas::DEFAULT
            },
            ..DatapathSettings::default()
        };
        let node = Node::new(family, &settings);
        let driver = node.driver;
        let before: Vec<_> = (0..8)
            .map(|number| (flow(0, number), driver.connect(flow(0, number))))
            .collect();
        assert_eq!(open(&driver, 0, 8..2000), QUOTA - 8);
        assert_eq!(
            node.dropped(DropReason::QuotaExceeded),
            u64::from(2000 - QUOTA)
        );
        assert_eq!(node.quota(0), QUOTA);
        // Its own flows go on, another pod knows nothing of it, and neither do its pieces.
        for (tuple, port) in &before {
            assert_eq!(driver.must_send(*tuple, Kind::Ack), *port);
            assert!(driver.answer(*tuple, *port, Kind::Ack));
        }
        assert_eq!(open(&driver, 1, 0..QUOTA), QUOTA);
        node.check();
        // One that ends makes room for one.
        let (tuple, port) = before[0];
        assert_eq!(
            node.remove(&[node.key(tuple, port, Kind::Syn.protocol(family))]),
            1
        );
        assert_eq!(open(&driver, 0, 3000..3010), 1);
        node.check();
    }
}

#[test]
fn pods_borrow_half_of_what_is_free_and_no_more() {
    for family in Family::ALL {
        let settings = DatapathSettings {
            flows_v4: CAPACITY,
            flows_v6: CAPACITY,
            quotas: FlowQuotas {
                endpoint: QUOTA / 4,
                ..FlowQuotas::DEFAULT
            },
            ..DatapathSettings::default()
        };
        let mut node = Node::new(family, &settings);
        let driver = node.driver;
        assert_eq!(open(&driver, 0, 0..CAPACITY), QUOTA / 4, "before a sweep");
        node.sweep(false);
        let most = QUOTA / 4 + Room::lend((QUOTA / 4).into(), CAPACITY);
        let borrowed = open(&driver, 0, CAPACITY..2 * CAPACITY);
        assert_eq!(QUOTA / 4 + borrowed, most);
        // The more is in use, the less is lent; what others have as quota stays theirs.
        node.sweep(false);
        assert_eq!(open(&driver, 0, 2 * CAPACITY..3 * CAPACITY), 0);
        assert_eq!(open(&driver, 1, 0..QUOTA / 4), QUOTA / 4);
        node.sweep(false);
        let most_of_other = Room::lend((most + QUOTA / 4).into(), CAPACITY);
        assert_eq!(open(&driver, 1, QUOTA / 4..CAPACITY), most_of_other);
        node.sweep(false);
        assert_eq!(open(&driver, 2, 0..QUOTA / 4), QUOTA / 4);
        node.check();
        // A table that lends nothing leaves a borrower what it has.
        let table = SharedTable::flows(family == Family::V4);
        node.lend(table, 0);
        assert_eq!(open(&driver, 0, 3 * CAPACITY..3 * CAPACITY + 10), 0);
        assert_eq!(node.quota(0), most);
    }
}

#[test]
fn a_table_lends_to_its_own_flows_alone() {
    let settings = DatapathSettings {
        quotas: FlowQuotas {
            endpoint: 4,
            inbound: 4,
            host: 4,
        },
        ..DatapathSettings::default()
    };
    for family in Family::ALL {
        let node = Node::new(family, &settings);
        let own = SharedTable::flows(family == Family::V4);
        for other in SharedTable::ALL.into_iter().filter(|table| *table != own) {
            node.lend(other, 100);
        }
        assert_eq!(open(&node.driver, 0, 0..20), 4);
        assert_eq!(node.dropped(DropReason::QuotaExceeded), 16);
        node.check();
    }
}

#[test]
fn a_full_map_refuses_new_flows_and_keeps_the_old_ones() {
    for family in Family::ALL {
        let node = Node::new(family, &of_capacity(CAPACITY));
        let driver = node.driver;
        let idle: Vec<_> = (0..100)
            .map(|number| (flow(0, number), driver.connect(flow(0, number))))
            .collect();
        let more = open(&driver, 1, 0..3 * CAPACITY);
        assert_eq!(more, CAPACITY - 100);
        assert_eq!(
            node.dropped(DropReason::FlowsFull),
            u64::from(2 * CAPACITY + 100)
        );
        for (tuple, port) in &idle {
            assert!(driver.answer(*tuple, *port, Kind::Ack), "{tuple:?}");
            assert_eq!(driver.must_send(*tuple, Kind::Ack), *port, "{tuple:?}");
        }
        node.check();
        // Flows that end make room at once.
        let ended: Vec<_> = idle
            .iter()
            .map(|(tuple, port)| node.key(*tuple, *port, Kind::Syn.protocol(family)))
            .collect();
        assert_eq!(node.remove(&ended), 100);
        assert_eq!(open(&driver, 2, 0..200), 100);
        node.check();
    }
}
