//! Little room for flows: the agent makes it as connections end, and takes it from no live one.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use datapath_common::abi::{SharedTable, map};
use datapath_common::headers::protocol;
use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::traffic::{Echo, Session, of_protocol, send_ip};
use testkit::fabric::{Fabric, Place};

use crate::masq::{internet, internet_scene};
use crate::support::{count, get, pinned, within};

/// As many flows as there are to be at once.
const ROOM: usize = 128;
const LIVE: usize = 16;
/// Several times what there is room for.
const SHORT: usize = 4 * ROOM;

#[test]
fn short_connections_find_room_and_idle_ones_keep_theirs() {
    let flows = json!({"ipv4": ROOM, "ipv6": ROOM, "per-endpoint": ROOM});
    let (fabric, pods) = internet_scene(json!({"nat": {"flows": flows}}));
    thread::scope(|scope| {
        for (pod, family) in pods.iter().zip(Family::ALL) {
            let (pod, server) = (pod.at(family), internet(&fabric, family));
            scope.spawn(move || {
                let server = Echo::telling(server, 0).unwrap();
                let open = || Session::open(pod, 0, server.address());
                let mut live: Vec<_> = (0..LIVE).map(|_| open().unwrap()).collect();
                for number in 0..SHORT {
                    // One that is refused for a moment is tried again, as anybody would.
                    let what = format!("connection {number} of {family:?} is opened");
                    let mut short = within(Duration::from_secs(20), &what, open);
                    short.exchange().unwrap();
                }
                for session in &mut live {
                    session.exchange().unwrap();
                }
            });
        }
    });
    let nat = &get(&fabric, "/v1/status")["nat"];
    let reclaimed = nat["reclaimed-under-pressure"].as_u64();
    assert!(reclaimed.is_some_and(|flows| flows > 0), "{nat}");
    fabric.finish().unwrap();
}

/// A quota of which a pod needs several times as many flows.
const SMALL: usize = 64;

#[test]
fn a_pod_borrows_flows_while_the_node_has_room() {
    let flows = json!({"per-endpoint": SMALL, "inbound-per-endpoint": SMALL});
    let (fabric, pods) = internet_scene(json!({"nat": {"flows": flows}}));
    for (pod, family) in pods.iter().zip(Family::ALL) {
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        let open = || Session::open(pod.at(family), 0, server.address());
        let mut sessions: Vec<_> = (0..4 * SMALL).map(|_| open().unwrap()).collect();
        for session in &mut sessions {
            session.exchange().unwrap();
        }
    }
    assert_eq!(count(&fabric, "from_endpoint", "quota-exceeded"), 0);
    fabric.finish().unwrap();
}

/// The agent publishes rooms several times a second.
const PUBLISHED: Duration = Duration::from_secs(5);
/// Room of a table that three pods can fill, if nothing is kept of it for others.
const TABLE: u16 = 1024;

/// Flows that the agent has published as lent beyond the quotas of a family.
fn lent(fabric: &Fabric, family: Family) -> u32 {
    let table = SharedTable::flows(family == Family::V4);
    pinned(fabric, map::LEND).get(&(table as u32), 0).unwrap()
}

/// Sends datagrams of twice as many flows as the table has room for. No socket takes them.
fn flood(from: Place, to: IpAddr) {
    let sources: Vec<u16> = (1..=2 * TABLE).map(|port| 20_000 + port).collect();
    // Less than a device's backlog has room for by far.
    for sources in sources.chunks(256) {
        let datagrams = sources.iter().map(|source| {
            let fields = [*source, 80, 8, 1].map(u16::to_be_bytes);
            of_protocol(from.address, to, protocol::UDP, &fields.concat()).unwrap()
        });
        let datagrams: Vec<_> = datagrams.collect();
        send_ip(from, to, &datagrams).unwrap();
    }
}

/// The programs must know enough by themselves: no agent tells them that the table has filled.
#[test]
fn without_an_agent_pods_that_borrow_leave_room_to_others() {
    let flows = json!({"ipv4": TABLE, "ipv6": TABLE, "per-endpoint": SMALL});
    for family in Family::ALL {
        let (mut fabric, [first, second]) = internet_scene(json!({"nat": {"flows": flows}}));
        let greedy = [first, second, fabric.add_pod(0, 1).unwrap()];
        let innocent = fabric.add_pod(1, 1).unwrap();
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        let connect = || Session::open(innocent.at(family), 0, server.address());
        connect().unwrap().exchange().unwrap();
        eventually(PUBLISHED, "the table lends", || {
            let lent = lent(&fabric, family);
            check(lent > 0, || lent.to_string())
        })
        .unwrap();
        fabric.agent.kill().unwrap();
        for pod in &greedy {
            flood(pod.at(family), server.address().ip());
        }
        for number in 1..=5 {
            connect().unwrap_or_else(|error| panic!("{family:?}, {number} of 5: {error:#}"));
        }
        fabric.start_agent().unwrap();
        fabric.wait_until_ready().unwrap();
        let refused = count(&fabric, "from_endpoint", "flows-full");
        assert!(refused > 0, "{family:?}: the table was not full");
        fabric.finish().unwrap();
    }
}
