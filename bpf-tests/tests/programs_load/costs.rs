//! Processor time of packets and new flows; `docs/performance.md` quotes the figures.

use std::time::Duration;

use datapath_common::config::PortSlice;
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::Node;
use crate::sweeps::numbered;
use crate::world::{PODS, Sent, Tuple};

/// Packets of each kind.
const PACKETS: u32 = 2000;
/// Limit for the median time of a packet. It is far above the figures, which other work on the
/// machine disturbs, and far below the time of a faulty search.
const MOST: Duration = Duration::from_micros(100);

fn median(name: &str, family: Family, times: impl Iterator<Item = Duration>) {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    let [half, most] = [times.len() / 2, times.len() * 99 / 100].map(|index| times[index]);
    println!("{family:?}: {name}: {half:?}, 99% within {most:?}");
    assert!(half < MOST, "{name}: {half:?}");
}

#[test]
fn packets_and_new_flows_take_microseconds() {
    for family in Family::ALL {
        let node = Node::new(family, &DatapathSettings::default());
        let driver = node.driver;
        // A dropped packet takes less time than the one that is measured.
        let timed = |tuple: Tuple, kind, keeps: Option<bool>| {
            let (sent, took) = driver.timed(tuple, kind);
            let Sent::Translated(port) = sent else {
                panic!("{tuple:?} {kind:?} was dropped")
            };
            assert!(
                keeps.is_none_or(|keeps| keeps == (port == tuple.port)),
                "{tuple:?}"
            );
            took
        };
        let opened = (0..PACKETS).map(|number| timed(numbered(0, number), Kind::Syn, Some(true)));
        median("a new flow that keeps its port", family, opened);
        let sent = (0..PACKETS).map(|number| timed(numbered(0, number), Kind::Ack, Some(true)));
        median("a packet of such a flow", family, sent);
        let moved = (0..PACKETS).map(|number| timed(numbered(1, number), Kind::Syn, Some(false)));
        median("a new flow that finds its port taken", family, moved);
        let sent = (0..PACKETS).map(|number| timed(numbered(1, number), Kind::Ack, Some(false)));
        median("a packet of such a flow", family, sent);
        let called = (0..PACKETS).map(|number| {
            let tuple = Tuple {
                port: 53,
                ..numbered(2, number)
            };
            assert!(driver.call(tuple, Kind::Udp));
            driver.timed_reply(tuple, Kind::Udp)
        });
        median("a packet that answers the outside", family, called);

        // A destination of which nine in ten ports are used.
        let busy = |number: u32| Tuple {
            pod: usize::try_from(number).unwrap() % PODS,
            port: u16::try_from(1024 + number).unwrap(),
            remote: u16::MAX - 1,
            remote_port: 443,
        };
        let used = PortSlice::DEFAULT.ports() / 10 * 9;
        for number in 0..used {
            driver.must_send(busy(number), Kind::Syn);
        }
        let opened = (used..used + 200).map(|number| timed(busy(number), Kind::Syn, None));
        median("a new flow where 90% of the ports are used", family, opened);
    }
}
