//! ICMP errors about translated flows, in both directions.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::Place;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{ping, uninterrupted};
use testkit::fabric::world::World;

use crate::masq::{internet, scene, snat};
use crate::support::within;

/// A port without a socket.
const CLOSED: u16 = 9;
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// A datagram without an answer by then is sent once more.
const AGAIN: Duration = Duration::from_millis(200);

/// Sends once more, and expects a refusal. A command that another test starts at this moment may
/// hold a copy of a closed socket until its exec. One datagram can end there unanswered.
fn refused(socket: &UdpSocket) -> anyhow::Result<()> {
    let sent = socket.send(b"towpath");
    let error = sent.and_then(|_| socket.recv(&mut [0; 16])).err();
    check(
        error.as_ref().map(std::io::Error::kind) == Some(ErrorKind::ConnectionRefused),
        || format!("{error:?}"),
    )
}

fn socket(at: Place) -> UdpSocket {
    at.netns
        .enter(|| {
            let socket = UdpSocket::bind((at.address, 0))?;
            socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
            Ok(socket)
        })
        .unwrap()
}

#[test]
fn a_pod_is_told_that_nobody_listens() {
    let (fabric, pods) = scene(json!({}));
    for pod in &pods {
        for family in Family::ALL {
            let (from, to) = (pod.at(family), internet(&fabric, family));
            let target = SocketAddr::new(to.address, CLOSED);
            let udp = socket(from);
            udp.connect(target).unwrap();
            udp.send(b"towpath").unwrap();
            let error = uninterrupted(|| udp.recv(&mut [0; 16])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "udp {family:?}");
            let tcp = from
                .netns
                .enter(|| Ok(TcpStream::connect_timeout(&target, REPLY_TIMEOUT)));
            let error = tcp.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "tcp {family:?}");
        }
    }
    fabric.finish().unwrap();
}

/// The pod's own error leaves with the translated address inside and outside: the server's socket
/// recognises the datagram.
#[test]
fn a_server_is_told_that_the_pods_socket_is_gone() {
    let (fabric, pods) = scene(json!({}));
    for (pod, eni) in pods.iter().zip([0, 1]) {
        for family in Family::ALL {
            let server = socket(internet(&fabric, family));
            let client = socket(pod.at(family));
            client
                .send_to(b"towpath", server.local_addr().unwrap())
                .unwrap();
            let (_, seen) = uninterrupted(|| server.recv_from(&mut [0; 16])).unwrap();
            assert_eq!(seen.ip(), snat(&fabric, eni, family));
            drop(client);
            server.connect(seen).unwrap();
            server.set_read_timeout(Some(AGAIN)).unwrap();
            within(REPLY_TIMEOUT, &format!("{family:?}: refused"), || {
                refused(&server)
            });
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn a_pod_is_told_where_its_ttl_ran_out() {
    let (fabric, pods) = scene(json!({}));
    for pod in &pods {
        for family in Family::ALL {
            let (from, to) = (pod.at(family), internet(&fabric, family));
            let said = ping(from, to.address, &["-t", "3"])
                .unwrap_err()
                .to_string();
            let path = World::path_address(family);
            assert!(said.contains(&format!("From {path} ")), "{said}");
            ping(from, to.address, &["-t", "4"]).unwrap();
        }
    }
    fabric.finish().unwrap();
}

/// A router without a route to a destination sends errors, also about translated packets.
#[test]
fn a_pod_is_told_that_there_is_no_way() {
    let (fabric, pods) = scene(json!({}));
    let path = &fabric.world().unwrap().path;
    path.ip("route add prohibit 8.8.5.0/24\nroute add prohibit 2606:4700:99::/64")
        .unwrap();
    for pod in &pods {
        for (family, to) in Family::ALL.iter().zip(["8.8.5.1", "2606:4700:99::1"]) {
            let said = ping(pod.at(*family), to.parse().unwrap(), &[]).unwrap_err();
            let (said, path) = (said.to_string(), World::path_address(*family));
            assert!(said.contains(&format!("From {path} ")), "{said}");
        }
    }
    fabric.finish().unwrap();
}
