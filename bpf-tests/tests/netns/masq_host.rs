//! The host's own traffic beside the pods': the same ports towards the same server at the same
//! time, and services of the host on ports that translation uses too.

use std::process::Stdio;

use ipam::Family;
use serde_json::json;
use testkit::fabric::Place;
use testkit::fabric::traffic::{Asker, Echo, Session};

use crate::masq::{FIRST_PORT, internet, scene, snat};

/// A port of the range.
const PORT: u16 = FIRST_PORT + 1000;
/// Flows that pods open beside a service of the host.
const MANY: u16 = 200;

/// Two clients from the same port to the same server: who is first keeps the port, both work.
pub(crate) fn both(
    [first, second]: [Place; 2],
    server: &Echo,
    address: std::net::IpAddr,
    port: u16,
) {
    let to = server.address();
    let mut tcp = [first, second].map(|from| Session::open(from, port, to).unwrap());
    // A socket of the host keeps its port from pods as soon as it is bound.
    let udp = [first, second].map(|from| {
        let asker = Asker::open(from, port, to).unwrap();
        let seen = asker.ask(7).unwrap();
        (asker, seen)
    });
    let seen_tcp = tcp.each_ref().map(Session::seen);
    let seen_udp = udp.each_ref().map(|(_, seen)| *seen);
    for seen in [seen_tcp, seen_udp] {
        let who = format!("{} before {}: {seen:?}", first.address, second.address);
        assert!(seen.iter().all(|seen| seen.ip() == address), "{who}");
        assert_eq!(seen[0].port(), port, "the first one keeps its port: {who}");
        assert_ne!(seen[1].port(), port, "{who}");
    }
    for _ in 0..3 {
        for session in &mut tcp {
            session.bulk(100_000).unwrap();
        }
        for (asker, seen) in &udp {
            assert_eq!(asker.ask(4000).unwrap(), *seen);
        }
    }
}

#[test]
fn host_and_pod_from_the_same_port_to_the_same_server() {
    let (fabric, [pod, _]) = scene(json!({}));
    for family in Family::ALL {
        let (node, pod) = (fabric.node_at(family).unwrap(), pod.at(family));
        let address = snat(&fabric, 0, family);
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        both([pod, node], &server, address, PORT);
        both([node, pod], &server, address, PORT + 1);
    }
    fabric.finish().unwrap();
}

#[test]
fn host_and_pod_ping_with_the_same_id() {
    let (fabric, [pod, _]) = scene(json!({}));
    for family in Family::ALL {
        let to = internet(&fabric, family).address.to_string();
        let places = [fabric.node_at(family).unwrap(), pod.at(family)];
        let pings = places.map(|from| {
            let mut ping = from.netns.command("ping");
            ping.args([
                "-n", "-c", "20", "-i", "0.05", "-W", "2", "-e", "50000", &to,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
            ping.spawn().unwrap()
        });
        for ping in pings {
            let output = ping.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains(" 20 received, 0% packet loss"), "{said}");
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn a_service_of_the_host_within_the_range_is_left_alone() {
    let (fabric, [pod, _]) = scene(json!({}));
    for family in Family::ALL {
        let (node, world) = (fabric.node_at(family).unwrap(), internet(&fabric, family));
        let service = Echo::telling(node, PORT).unwrap();
        // The server's own address and port are a client of the host's service too.
        let mut client = Session::open(world, 0, service.address()).unwrap();
        let server = Echo::telling(world, client.own().unwrap().port()).unwrap();
        let mut sessions = Vec::new();
        for index in 0..MANY {
            // Among these ports is the service's.
            let from = PORT - MANY / 2 + index;
            let session = Session::open(pod.at(family), from, server.address()).unwrap();
            let asker = Asker::open(pod.at(family), from, server.address()).unwrap();
            for seen in [session.seen(), asker.ask(7).unwrap()] {
                assert_eq!(seen.ip(), node.address);
                assert_eq!(seen.port() == from, from != PORT, "{from}: {seen}");
            }
            sessions.push(session);
        }
        client.bulk(100_000).unwrap();
        let late = Asker::open(world, 0, service.address()).unwrap();
        late.ask(4000).unwrap();
        for session in &mut sessions {
            session.exchange().unwrap();
        }
    }
    fabric.finish().unwrap();
}
