//! Flows that do not get their first candidate port, while other tables that they need are full.

use datapath_common::abi::{
    Addr, MAX_PORT_BLOCKS, Moved, PodTuple, PortBlock, PortBlockKey, TransportAddr, map,
};
use datapath_common::outcome::DropReason;
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::{Node, of_capacity};
use crate::world::{Sent, Tuple};

const CAPACITY: u32 = 1024;

fn tuple(pod: usize, port: u16) -> Tuple {
    Tuple {
        pod,
        port,
        remote: 1,
        remote_port: 443,
    }
}

/// An id is a port: where two pods have the same one, each gets its own answers.
#[test]
fn echo_requests_with_one_id_are_told_apart() {
    for family in Family::ALL {
        let node = Node::new(family, &DatapathSettings::default());
        let driver = node.driver;
        let echo = |pod| Tuple {
            remote_port: 0,
            ..tuple(pod, 50_000)
        };
        let [first, second] = [0, 1].map(|pod| driver.must_send(echo(pod), Kind::Echo));
        assert_eq!(first, 50_000);
        assert_ne!(first, second);
        assert!(driver.answer(echo(0), first, Kind::Echo));
        assert!(driver.answer(echo(1), second, Kind::Echo));
        assert!(!driver.answer(echo(0), second, Kind::Echo));
        // The next request has the same id.
        assert_eq!(driver.must_send(echo(1), Kind::Echo), second);
        node.check();
    }
}

/// Without an entry a flow off its first port could not be found, so it is not opened.
#[test]
fn a_flow_that_cannot_be_noted_is_not_opened() {
    for family in Family::ALL {
        let node = Node::new(family, &of_capacity(CAPACITY));
        let driver = node.driver;
        driver.must_send(tuple(0, 50_000), Kind::Udp);
        let notes = node.moved();
        let remote = Addr::from(family.remote(2));
        for number in 0..CAPACITY {
            let port = u16::try_from(number).unwrap();
            let elsewhere = PodTuple::new(
                17,
                TransportAddr::new(remote, port),
                TransportAddr::new(remote, 1),
            );
            notes.put(&elsewhere, &Moved::new(0, port)).unwrap();
        }
        assert_eq!(driver.send(tuple(1, 50_000), Kind::Udp), Sent::Dropped);
        assert_eq!(node.dropped(DropReason::FlowsFull), 1);
        assert_eq!(node.flows().entries().unwrap().len(), 1);
        assert_eq!(node.quota(1), 0);
        // A flow that gets its first port needs no note.
        driver.must_send(tuple(1, 50_001), Kind::Udp);
        notes.clear().unwrap();
        node.check();
        driver.must_send(tuple(1, 50_000), Kind::Udp);
        node.check();
    }
}

/// Where there can be no more blocks, chance finds a port as long as a part of them is free.
#[test]
fn ports_are_found_without_room_for_blocks() {
    const KEPT: u16 = 19_660;
    for family in Family::ALL {
        let node = Node::new(family, &DatapathSettings::default());
        let blocks = node.table::<PortBlockKey, PortBlock>(map::PORT_BLOCKS);
        let remote = Addr::from(family.remote(2));
        for number in 0..MAX_PORT_BLOCKS {
            let key = PortBlockKey::new(
                0,
                17,
                TransportAddr::new(remote, u16::try_from(number).unwrap()),
                80,
            );
            blocks.put(&key, &PortBlock::FREE).unwrap();
        }
        // 80% of the ports, of two pods because of the quota.
        for port in 40_960..40_960 + KEPT {
            let pod = usize::from(port % 2);
            node.driver.must_send(tuple(pod, port), Kind::Udp);
        }
        for port in 40_960..41_960 {
            let sent = node.driver.send(tuple(2, port), Kind::Udp);
            assert_ne!(sent, Sent::Dropped, "{family:?} {port}");
        }
        node.check();
    }
}
