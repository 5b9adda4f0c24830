//! Pods that take every port of a destination, and one that needs a few there.

use datapath_common::abi::{
    Addr, MAX_PORT_BLOCKS, PortBlock, PortBlockKey, Quota, ShareKey, TransportAddr, map,
};
use datapath_common::headers::protocol;
use datapath_common::ports::{Ports, sharers};
use datapath_common::progress::{DATA, MORE, SYN};
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::Node;
use crate::world::{Sent, Tuple, veth};

/// Ports that any flow may get.
const OPEN: usize = Ports::DEFAULT.open().count() as usize;
/// Flows that the innocent pod opens.
const WANTED: u16 = 5;
/// Refusals after which a greedy pod has all the ports that it can get.
const REFUSALS_TO_STOP: u32 = 100;

const fn tuple(kind: Kind, pod: usize, port: u16) -> Tuple {
    let is_echo = matches!(kind, Kind::Echo);
    Tuple {
        pod,
        port,
        remote: 1,
        remote_port: if is_echo { 0 } else { 443 },
    }
}

/// Opens flows of greedy pods in turn until each has been refused often.
fn take_all(node: &Node, kind: Kind, greedy: usize) {
    let mut refused = vec![0; greedy];
    for port in 1024..u16::MAX {
        for (pod, refused) in refused.iter_mut().enumerate() {
            let may_try = *refused < REFUSALS_TO_STOP;
            if may_try && node.driver.send(tuple(kind, pod, port), kind) == Sent::Dropped {
                *refused += 1;
            }
        }
        if refused.iter().all(|refused| *refused >= REFUSALS_TO_STOP) {
            break;
        }
    }
}

/// Ports of the reserve that an endpoint has.
fn held(node: &Node, pod: usize) -> u32 {
    let shares = node.table::<ShareKey, Quota>(map::SHARES);
    let entries = shares.entries().unwrap();
    let mut of = entries.iter().filter(|(key, _)| key.endpoint == veth(pod));
    of.next().map_or(0, |(_, share)| share.flows)
}

/// Marks all flows as ones in which both sides have sent, and more than a question.
fn establish(node: &Node) {
    for (key, mut flow) in node.flows().entries().unwrap() {
        (flow.progress_out, flow.progress_in) = if key.protocol == protocol::TCP {
            (SYN | DATA, SYN | DATA)
        } else {
            (DATA | MORE, DATA)
        };
        node.flows().put(&key, &flow).unwrap();
    }
}

/// Leaves no room for blocks of ports.
fn fill_blocks(node: &Node) {
    let blocks = node.table::<PortBlockKey, PortBlock>(map::PORT_BLOCKS);
    let elsewhere = Addr::from(node.family.remote(2));
    for port in 0..u16::try_from(MAX_PORT_BLOCKS).unwrap() {
        let key = PortBlockKey::new(0, protocol::UDP, TransportAddr::new(elsewhere, port), 80);
        blocks.put(&key, &PortBlock::FREE).unwrap();
    }
}

/// The share that the agent gives each of so many greedy pods and an innocent one.
fn share(greedy: usize) -> u16 {
    Ports::DEFAULT.share(sharers(greedy + 1))
}

/// A node with greedy pods and an innocent one.
fn node(family: Family, greedy: usize) -> Node {
    Node::with_pods(
        family,
        &DatapathSettings::default(),
        greedy + 1,
        share(greedy),
    )
}

/// Opens the innocent pod's flows at once, while greedy ones have all the ports that they can get.
fn fair(mut node: Node, kind: Kind, greedy: usize, is_established: bool) {
    let (family, share) = (node.family, share(greedy));
    take_all(&node, kind, greedy);
    let taken = node.flows().entries().unwrap().len();
    println!("{family:?} {kind:?}: {greedy} greedy pods have {taken} ports");
    assert!(taken >= OPEN * 99 / 100, "{taken}");
    assert!(taken <= OPEN + greedy * usize::from(share), "{taken}");
    if is_established {
        establish(&node);
        node.age(30);
        assert_eq!(node.sweep(true).reaped.idle, 0, "established flows stay");
    }
    let mut of_reserve = 0;
    for number in 0..WANTED {
        let sent = node.driver.send(tuple(kind, greedy, 30_000 + number), kind);
        let Sent::Translated(port) = sent else {
            panic!("{greedy} greedy pods: flow {number} of {WANTED} is refused");
        };
        of_reserve += u32::from(Ports::DEFAULT.reserve().contains(port));
    }
    node.check();
    assert_eq!(held(&node, greedy), of_reserve);
    assert!((0..greedy).all(|pod| held(&node, pod) <= u32::from(share)));
    // Flows that end give their share back.
    let entries = node.flows().entries().unwrap();
    let keys: Vec<_> = entries.into_iter().map(|(key, _)| key).collect();
    assert_eq!(node.remove(&keys) as usize, keys.len());
    let shares = node.table::<ShareKey, Quota>(map::SHARES);
    assert!(shares.entries().unwrap().is_empty());
}

fn with_each_number(family: Family, kind: Kind, is_established: bool) {
    for greedy in [2, 8, 100] {
        fair(node(family, greedy), kind, greedy, is_established);
    }
}

#[test]
fn half_open_connections_leave_an_innocent_pod_its_share() {
    with_each_number(Family::V4, Kind::Syn, false);
}

#[test]
fn established_connections_leave_an_innocent_pod_its_share() {
    for family in Family::ALL {
        with_each_number(family, Kind::Syn, true);
    }
}

#[test]
fn datagrams_leave_an_innocent_pod_its_share() {
    for family in Family::ALL {
        with_each_number(family, Kind::Udp, false);
    }
}

#[test]
fn answered_datagrams_leave_an_innocent_pod_its_share() {
    for family in Family::ALL {
        with_each_number(family, Kind::Udp, true);
    }
}

/// Pods that have equal parts of a destination are greedy, however many there are.
#[test]
fn half_open_flows_of_greedy_pods_go_early() {
    for greedy in [2, 8, 100] {
        let mut node = node(Family::V4, greedy);
        take_all(&node, Kind::Syn, greedy);
        node.age(11);
        assert_eq!(node.sweep(false).reaped.idle, 0, "not known yet");
        let reaped = node.sweep(false).reaped.idle;
        assert!(reaped >= OPEN as u64 * 9 / 10, "{greedy} pods: {reaped}");
    }
}

#[test]
fn pings_leave_an_innocent_pod_its_share() {
    for family in Family::ALL {
        with_each_number(family, Kind::Echo, false);
    }
}

/// A pod gets its share where the table of blocks is full.
#[test]
fn without_room_for_blocks_an_innocent_pod_gets_its_share() {
    let greedy = 100;
    for family in Family::ALL {
        let node = node(family, greedy);
        fill_blocks(&node);
        fair(node, Kind::Syn, greedy, false);
    }
}

/// More greedy pods than a node usually has.
#[test]
fn very_many_greedy_pods_leave_an_innocent_pod_its_share() {
    let greedy = 200;
    fair(node(Family::V4, greedy), Kind::Udp, greedy, false);
}

/// An endpoint that comes once two others have filled the reserve by halves finds nothing.
#[test]
fn a_reserve_without_more_sharers_than_endpoints_is_nothing_to_the_next() {
    for (share, is_there) in [(Ports::DEFAULT.share(2), false), (share(1), true)] {
        let node = Node::with_pods(Family::V4, &DatapathSettings::default(), 3, share);
        take_all(&node, Kind::Syn, 2);
        let sent = node.driver.send(tuple(Kind::Syn, 2, 30_000), Kind::Syn);
        assert_eq!(sent != Sent::Dropped, is_there, "a share of {share}");
    }
}

/// Without shares, greedy pods also take the reserve.
#[test]
fn without_shares_greedy_pods_leave_nothing() {
    let node = Node::with_pods(Family::V4, &DatapathSettings::default(), 3, 0);
    take_all(&node, Kind::Syn, 2);
    for number in 0..WANTED {
        let sent = node
            .driver
            .send(tuple(Kind::Syn, 2, 30_000 + number), Kind::Syn);
        assert_eq!(sent, Sent::Dropped);
    }
}

/// Sweeps use this to distinguish a request and its answer from longer exchanges.
#[test]
fn a_flow_shows_that_a_second_packet_has_passed() {
    for family in Family::ALL {
        let node = Node::new(family, &DatapathSettings::default());
        let question = tuple(Kind::Udp, 0, 50_000);
        let shown = || {
            let port = node.driver.must_send(question, Kind::Udp);
            let key = node.key(question, port, protocol::UDP);
            node.flows().get(&key).unwrap().unwrap().progress_out
        };
        assert_eq!(
            [shown(), shown(), shown()],
            [DATA, DATA | MORE, DATA | MORE]
        );
        // A later question may have the same port.
        let again = tuple(Kind::Udp, 0, 50_001);
        let port = node.driver.must_send(again, Kind::Udp);
        let key = node.key(again, port, protocol::UDP);
        node.set_idle(&key, 1);
        node.driver.must_send(again, Kind::Udp);
        let flow = node.flows().get(&key).unwrap().unwrap();
        assert_eq!(flow.progress_out, DATA);
    }
}
