//! The end of TCP connections through the masquerade: ports reused at once, resets, half-closed
//! connections.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ipam::Family;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::json;
use testkit::fabric::Place;
use testkit::fabric::traffic::connect_from_port;

use crate::masq::{FIRST_PORT, internet, scene};

/// Connections from the same port, one after the other.
const AGAIN: usize = 20;
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes a socket end with a RST.
pub(crate) fn reset_at_close(stream: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(stream, sockopt::Linger, &linger).unwrap();
}

/// The server closes first, and keeps the old connection in `TIME_WAIT`: the new SYN comes on its
/// tuple. After a RST neither side keeps the connection.
#[test]
fn a_port_is_used_again_at_once_after_fin_and_after_rst() {
    let (fabric, pods) = scene(json!({}));
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        for (reset, port) in [(false, FIRST_PORT + 77), (true, FIRST_PORT + 78)] {
            let to = internet(&fabric, family);
            let bind = || Ok(TcpListener::bind((to.address, 0))?);
            let listener = to.netns.enter(bind).unwrap();
            for time in 0..AGAIN {
                let what = format!("{family:?} reset {reset}, time {time}");
                let target = listener.local_addr().unwrap();
                let mut client = connect_from_port(pod.at(family), port, target)
                    .unwrap_or_else(|error| panic!("{what}: {error:#}"));
                let (mut server, seen) = listener.accept().unwrap();
                assert_eq!(seen.port(), port, "{what}");
                server.write_all(b"towpath").unwrap();
                client.read_exact(&mut [0; 7]).unwrap();
                if reset {
                    reset_at_close(&client);
                } else {
                    drop(server);
                    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "{what}");
                }
            }
        }
    }
    fabric.finish().unwrap();
}

/// A connection from a pod to a server of the test's own: both ends.
fn connect(from: Place, to: Place) -> (TcpStream, TcpStream) {
    let listener = to
        .netns
        .enter(|| Ok(TcpListener::bind((to.address, 0))?))
        .unwrap();
    let target: SocketAddr = listener.local_addr().unwrap();
    let client = from
        .netns
        .enter(|| Ok(TcpStream::connect_timeout(&target, REPLY_TIMEOUT)?))
        .unwrap();
    let (server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
    }
    (client, server)
}

#[test]
fn a_half_closed_connection_goes_on_in_the_other_direction() {
    let (fabric, pods) = scene(json!({}));
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        let (client, server) = connect(pod.at(family), internet(&fabric, family));
        for (mut closes, mut goes_on) in [(&client, &server), (&server, &client)] {
            closes.shutdown(Shutdown::Write).unwrap();
            assert_eq!(goes_on.read(&mut [0; 8]).unwrap(), 0, "the end arrives");
            if std::ptr::eq(closes, &raw const client) {
                for _ in 0..10 {
                    goes_on.write_all(&vec![7; 50_000]).unwrap();
                    closes.read_exact(&mut vec![0; 50_000]).unwrap();
                }
            }
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn a_reset_arrives_at_the_other_end() {
    let (fabric, pods) = scene(json!({}));
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        for by_server in [false, true] {
            let (client, server) = connect(pod.at(family), internet(&fabric, family));
            let (ends, mut other) = if by_server {
                (server, client)
            } else {
                (client, server)
            };
            reset_at_close(&ends);
            drop(ends);
            let error = other.read(&mut [0; 8]).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionReset,
                "{family:?} {by_server}"
            );
        }
    }
    fabric.finish().unwrap();
}
