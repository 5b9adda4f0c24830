//! Little room for flows: the agent makes it as connections end, and takes it from no live one.

use std::thread;
use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::{Echo, Session};

use crate::masq::{internet, internet_scene};
use crate::support::{count, get, within};

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
