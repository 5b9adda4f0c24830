//! Quotas and full maps.

use datapath_common::abi::FlowQuotas;
use datapath_common::outcome::DropReason;
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::Node;
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
fn a_full_map_refuses_new_flows_and_keeps_the_old_ones() {
    for family in Family::ALL {
        let settings = DatapathSettings {
            flows_v4: CAPACITY,
            flows_v6: CAPACITY,
            ..DatapathSettings::default()
        };
        let node = Node::new(family, &settings);
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
