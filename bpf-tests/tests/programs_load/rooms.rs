//! Pods that fill a table that all share, and one that needs a few entries.

use datapath_common::abi::{FlowQuotas, Quota, Room, ShareKey, map};
use datapath_common::outcome::DropReason;
use loader::bpf::DatapathSettings;

use crate::frames::{Family, Kind};
use crate::node::{Node, of_capacity};
use crate::sweeps::numbered;
use crate::world::Sent;

const CAPACITY: u32 = 1024;
const GREEDY: usize = 4;
/// Entries that the innocent pod needs.
const WANTED: u32 = 5;
/// Refusals after which a greedy pod has all the entries that it can get.
const REFUSALS_TO_STOP: u32 = 20;

fn node(family: Family) -> Node {
    let settings = of_capacity(CAPACITY);
    Node::with_pods(family, &settings, GREEDY + 1, 0)
}

/// A function that takes an entry: true if a pod got one.
type Take = fn(&Node, usize, u32) -> bool;

fn flow(node: &Node, pod: usize, number: u32) -> bool {
    node.driver.send(numbered(pod, number), Kind::Udp) != Sent::Dropped
}

fn inbound(node: &Node, pod: usize, number: u32) -> bool {
    let tuple = numbered(pod, number);
    node.driver.call(tuple, Kind::Syn) && node.driver.reply(tuple, Kind::SynAck)
}

/// Takes entries for greedy pods in turn, until there are so many or all were refused often.
fn take_all(node: &Node, take: Take, numbers: std::ops::Range<u32>) -> u32 {
    let mut refused = [0; GREEDY];
    let mut taken = 0;
    for number in numbers {
        for (pod, refused) in refused.iter_mut().enumerate() {
            if *refused < REFUSALS_TO_STOP {
                let is_taken = take(node, pod, number);
                taken += u32::from(is_taken);
                *refused += u32::from(!is_taken);
            }
        }
    }
    taken
}

fn shares(node: &Node) -> usize {
    let shares = node.table::<ShareKey, Quota>(map::SHARES);
    shares.entries().unwrap().len()
}

/// Takes the innocent pod's entries at once, while greedy ones have all that they can get.
fn fair(node: &mut Node, take: Take) {
    let half = CAPACITY / 2;
    let each = half / u32::try_from(GREEDY).unwrap() + 1;
    let taken = take_all(node, take, 0..each);
    assert_eq!(
        shares(node),
        0,
        "up to half of the table nothing is counted"
    );
    assert_eq!(node.sweep(false).reaped.idle, 0);
    let taken = taken + take_all(node, take, each..CAPACITY);
    let room = Room::of(u64::from(taken), CAPACITY);
    let most = room.open + u32::try_from(GREEDY).unwrap() * room.share;
    assert_eq!(taken, most, "greedy pods have all but the shares of others");
    for number in 0..WANTED {
        assert!(take(node, GREEDY, number), "entry {number} of {WANTED}");
    }
    assert_eq!(shares(node), GREEDY + 1);
}

#[test]
fn flows_leave_an_innocent_pod_its_share() {
    for family in Family::ALL {
        let mut node = node(family);
        fair(&mut node, flow);
        assert!(node.dropped(DropReason::FlowsFull) > 0);
        node.check();
        // Flows that end give their share back, and the table is open again.
        let entries = node.flows().entries().unwrap();
        let keys: Vec<_> = entries.into_iter().map(|(key, _)| key).collect();
        assert_eq!(node.remove(&keys) as usize, keys.len());
        assert_eq!(shares(&node), 0);
        let again = take_all(&node, flow, 2 * CAPACITY..3 * CAPACITY);
        assert!(again > CAPACITY / 2, "{again}");
    }
}

/// A node whose pods have a small quota and borrow, as its agent has published it before it ended.
fn without_agent(family: Family) -> Node {
    let small = CAPACITY / 16;
    let settings = DatapathSettings {
        quotas: FlowQuotas {
            endpoint: small,
            inbound: small,
            host: small,
        },
        ..of_capacity(CAPACITY)
    };
    let mut node = Node::with_pods(family, &settings, GREEDY + 1, 0);
    assert_eq!(node.sweep(false).reaped.idle, 0);
    node
}

/// The programs know of a crowded table also where no agent tells them.
#[test]
fn without_an_agent_borrowers_leave_an_innocent_pod_its_share() {
    for family in Family::ALL {
        for take in [flow as Take, inbound] {
            let node = without_agent(family);
            let taken = take_all(&node, take, 0..2 * CAPACITY);
            let most = Room::open(CAPACITY) + u32::try_from(GREEDY).unwrap() * 8;
            assert!((CAPACITY / 2..=most).contains(&taken), "{taken}");
            for number in 0..WANTED {
                assert!(take(&node, GREEDY, number), "entry {number} of {WANTED}");
            }
        }
    }
}

#[test]
fn flows_from_outside_leave_an_innocent_pod_its_share() {
    for family in Family::ALL {
        let mut node = node(family);
        fair(&mut node, inbound);
        assert!(node.dropped(DropReason::InboundFull) > 0);
    }
}
