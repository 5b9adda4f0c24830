//! A pod reuses a port while an old connection on the same tuple still exists: in its own
//! `TIME_WAIT`, in our flow, or at the server.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ipam::Family;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::connect_from_port;
use testkit::fabric::{Fabric, Place, Pod};

use crate::masq::{FIRST_PORT, internet, scene, snat};
use crate::support::{CHANGE, get, within};

/// Connections from the same port after the first one.
const AGAIN: usize = 2;
/// A port that keeps its number, and one that gets another.
const PORTS: [u16; 2] = [FIRST_PORT + 79, 20_079];
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Both ends of a connection, and the client's address as the server saw it.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    seen: SocketAddr,
}

/// Connects from a port, and exchanges a few bytes.
fn connect(from: Place, port: u16, listener: &TcpListener) -> anyhow::Result<Connection> {
    let mut client = connect_from_port(from, port, listener.local_addr()?)?;
    let (mut server, seen) = listener.accept()?;
    server.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut back = [0; 7];
    client.write_all(b"towpath")?;
    server.read_exact(&mut back)?;
    server.write_all(&back)?;
    client.read_exact(&mut back)?;
    Ok(Connection {
        client,
        server,
        seen,
    })
}

fn listener(at: Place) -> TcpListener {
    let bind = || {
        let listener = TcpListener::bind((at.address, 0))?;
        // A client may see a connection as open that never reaches the server.
        setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
        Ok(listener)
    };
    at.netns.enter(bind).unwrap()
}

/// Flows of a pod's port.
fn flows(fabric: &Fabric, pod: Place, port: u16) -> usize {
    let list = get(fabric, "/v1/nat/flows");
    let flows = list["flows"].as_array().unwrap().iter();
    flows
        .filter(|flow| flow["pod-port"] == port && flow["pod"] == pod.address.to_string())
        .count()
}

/// Ends a connection and opens one on its tuple, several times; each must have the same flow.
#[track_caller]
fn again(fabric: &Fabric, pod: Place, port: u16, end: impl Fn(Connection)) {
    let family = Family::of(pod.address);
    let listener = listener(internet(fabric, family));
    let mut last = connect(pod, port, &listener).unwrap();
    let seen = last.seen;
    assert_eq!(seen.ip(), snat(fabric, 1, family));
    for time in 0..AGAIN {
        end(last);
        let what = format!("{family:?} port {port}, time {time}: a connection on the old tuple");
        last = within(CHANGE, &what, || connect(pod, port, &listener));
        assert_eq!(last.seen, seen, "{what}");
        assert_eq!(flows(fabric, pod, port), 1, "{what}");
    }
}

/// Closes a connection from the pod's side, which keeps it in `TIME_WAIT`.
fn close_actively(pod: &Pod, connection: Connection) {
    let Connection {
        mut client,
        mut server,
        ..
    } = connection;
    let own = client.local_addr().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    within(REPLY_TIMEOUT, "the pod has it in TIME_WAIT", || {
        let waiting = pod.netns.run("ss -Hnt state time-wait")?;
        check(waiting.contains(&own.to_string()), || waiting.clone())
    });
}

/// The pod closes first, and its kernel reuses the port of its `TIME_WAIT` for the next connection
/// (`tcp_tw_reuse`, after a second).
#[test]
fn a_port_in_time_wait_is_used_again_by_the_pod() {
    let (fabric, [_, pod]) = scene(json!({}));
    pod.netns.sysctls(&[("ipv4/tcp_tw_reuse", "1")]).unwrap();
    for family in Family::ALL {
        for port in PORTS {
            again(&fabric, pod.at(family), port, |connection| {
                close_actively(&pod, connection);
            });
        }
    }
    fabric.finish().unwrap();
}

/// Makes a connection vanish at the pod's side without a FIN or RST: the server and the flow still
/// have it. The server's side ends by a RST, by which the pod refuses the answer to its new SYN.
fn vanish(pod: &Pod, connection: Connection) -> TcpStream {
    const CHAIN: &str = "type filter hook output priority 0 ;";
    for line in [
        "nft add table inet vanish",
        &format!("nft add chain inet vanish output {{ {CHAIN} }}"),
        "nft add rule inet vanish output meta l4proto tcp drop",
    ] {
        pod.netns.run(line).unwrap();
    }
    let own = connection.client.local_addr().unwrap();
    crate::masq_tcp::reset_at_close(&connection.client);
    drop(connection.client);
    within(REPLY_TIMEOUT, "the pod has forgotten it", || {
        let known = pod.netns.run("ss -Hnta")?;
        check(!known.contains(&own.to_string()), || known.clone())
    });
    pod.netns.run("nft delete table inet vanish").unwrap();
    connection.server
}

#[test]
fn a_connection_that_vanished_in_the_pod_gives_way_to_a_new_one() {
    let (fabric, [_, pod]) = scene(json!({}));
    let servers = std::cell::RefCell::new(Vec::new());
    for family in Family::ALL {
        for port in PORTS {
            again(&fabric, pod.at(family), port, |connection| {
                let server = vanish(&pod, connection);
                servers.borrow_mut().push(server);
            });
        }
    }
    // The server got a RST for each of them.
    for mut server in servers.into_inner() {
        let error = server.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    fabric.finish().unwrap();
}
