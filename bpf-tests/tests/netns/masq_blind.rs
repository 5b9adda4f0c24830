//! Blind attacks with segments that end connections: the connections go on. Segments of the real
//! peer end them.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etherparse::{
    IpHeaders, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, TcpHeader, ip_number,
};
use ipam::Family;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{of_protocol, send_ip};
use testkit::fabric::{Fabric, Place};
use testkit::random::Random;

use crate::masq::{FIRST_PORT, internet, scene, snat};
use crate::masq_tcp::reset_at_close;
use crate::parked::Parked;
use crate::support::{CHANGE, is_full, within};

const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of attempts with each port; a hundred with `--full`.
const ROUNDS: u32 = 2;
/// Connections that really end.
const ENDED: usize = 100;
/// Connections that a server resets while room is short; 20,000 with `--full`.
const RESET: usize = 200;
const FULL_RESET: usize = 20_000;
/// The time in which they make room.
const REMOVED: Duration = Duration::from_secs(10);
/// Phase of a connection that goes on.
const ESTABLISHED: &str = "established";

/// A TCP segment from one end to another. A FIN comes with an acknowledgement.
fn segment(from: SocketAddr, to: SocketAddr, sequence: u32, is_reset: bool) -> Result<Vec<u8>> {
    let mut tcp = TcpHeader::new(from.port(), to.port(), sequence, 1024);
    (tcp.rst, tcp.fin, tcp.ack) = (is_reset, !is_reset, !is_reset);
    let length = u16::try_from(tcp.header_len())?;
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = Ipv4Header::new(length, 64, ip_number::TCP, from.octets(), to.octets())?;
            tcp.checksum = tcp.calc_checksum_ipv4(&ip, &[])?;
            IpHeaders::Ipv4(ip, Ipv4Extensions::default())
        }
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V6(v6) => Ok(v6.octets()),
                IpAddr::V4(v4) => anyhow::bail!("{v4} is of another family"),
            };
            let ip = Ipv6Header {
                payload_length: length,
                next_header: ip_number::TCP,
                hop_limit: 64,
                source: octets(from)?,
                destination: octets(to)?,
                ..Ipv6Header::default()
            };
            tcp.checksum = tcp.calc_checksum_ipv6(&ip, &[])?;
            IpHeaders::Ipv6(ip, Ipv6Extensions::default())
        }
    };
    let mut packet = Vec::new();
    ip.write(&mut packet)?;
    tcp.write(&mut packet)?;
    Ok(packet)
}

/// Sends resets and FINs from a remote to every port of an address, with random sequence numbers.
fn spray(place: Place, remote: SocketAddr, address: IpAddr, rounds: u32) -> Result<()> {
    let mut random = Random::new(u64::from(remote.port()));
    for _ in 0..rounds {
        for is_reset in [true, false] {
            let packets = (FIRST_PORT..=u16::MAX).map(|port| {
                let sequence = u32::try_from(random.number() >> 32)?;
                segment(remote, (address, port).into(), sequence, is_reset)
            });
            let packets = packets.collect::<Result<Vec<_>>>()?;
            send_ip(place, address, &packets)?;
        }
    }
    Ok(())
}

/// Opens a connection from a pod to a server on the Internet, and returns both ends.
fn connect(from: Place, listener: &TcpListener) -> Result<(TcpStream, TcpStream)> {
    let target = listener.local_addr()?;
    let connect = || Ok(TcpStream::connect_timeout(&target, REPLY_TIMEOUT)?);
    let client = from.netns.enter(connect)?;
    let (server, _) = listener.accept()?;
    for end in [&client, &server] {
        end.set_read_timeout(Some(REPLY_TIMEOUT))?;
    }
    Ok((client, server))
}

fn listener(at: Place) -> TcpListener {
    let bind = || Ok(TcpListener::bind((at.address, 0))?);
    at.netns.enter(bind).unwrap()
}

/// The phases of a pod's connections with a port of a remote.
fn phases(fabric: &Fabric, pod: IpAddr, remote_port: u16) -> Vec<Value> {
    let filter = json!({"pod": pod, "protocol": "tcp"});
    let list = fabric.agent.ask("POST", "/v1/nat/flows", Some(&filter));
    let list = list.unwrap();
    let flows = list["flows"].as_array().into_iter().flatten();
    let own = flows.filter(|flow| flow["remote-port"] == remote_port);
    own.map(|flow| flow["phase"].clone()).collect()
}

/// Sends data in both directions.
fn exchange(client: &mut TcpStream, server: &mut TcpStream) -> Result<()> {
    for (from, to) in [(&*server, &*client), (&*client, &*server)] {
        let (mut from, mut to) = (from, to);
        from.write_all(b"towpath").context("writing")?;
        to.read_exact(&mut [0; 7]).context("reading")?;
    }
    Ok(())
}

#[test]
fn segments_of_who_does_not_see_a_connection_end_none() {
    let rounds = if is_full() { 100 } else { ROUNDS };
    let (fabric, pods) = scene(json!({}));
    for (pod, eni) in pods.iter().zip(0..) {
        for family in Family::ALL {
            let place = internet(&fabric, family);
            let listener = listener(place);
            let remote = listener.local_addr().unwrap();
            let (mut client, mut server) = connect(pod.at(family), &listener).unwrap();
            exchange(&mut client, &mut server).unwrap();
            spray(place, remote, snat(&fabric, eni, family), rounds).unwrap();
            let phases = phases(&fabric, pod.address(family), remote.port());
            assert_eq!(phases, ["established"], "{family:?}");
            exchange(&mut client, &mut server).unwrap();
        }
    }
    fabric.finish().unwrap();
}

/// Flows that use up a pod's quota of the default size: more than 90 % of it.
const PRESSING: u16 = 16_000;
/// Interval at which they are used again, so that none expires.
const PRESSED_AGAIN: Duration = Duration::from_secs(5);

/// Opens the flows, or refreshes them. They go to two ports, neither of which runs short of ours.
/// Their checksum is wrong, so there are no answers.
fn press(from: Place, to: IpAddr) -> Result<()> {
    let sources = FIRST_PORT..FIRST_PORT + PRESSING / 2;
    let datagram = |(source, destination)| {
        let fields = [source, destination, 8_u16, 1].map(u16::to_be_bytes);
        of_protocol(from.address, to, ip_number::UDP.0, &fields.concat())
    };
    let tuples = sources.flat_map(|source| [(source, 7001), (source, 7002)]);
    let datagrams = tuples.map(datagram).collect::<Result<Vec<_>>>()?;
    // Less than a device's backlog has room for by far.
    datagrams
        .chunks(256)
        .try_for_each(|datagrams| send_ip(from, to, datagrams))
}

/// The tables have their default sizes, and the pod's quota is used up, so that its closed
/// connections go early. One that its server really resets does.
#[test]
fn segments_of_who_does_not_see_a_connection_end_none_where_room_is_short() {
    let rounds = if is_full() { 100 } else { ROUNDS };
    let (fabric, [_, pod]) = scene(json!({}));
    for family in Family::ALL {
        let (from, place) = (pod.at(family), internet(&fabric, family));
        let listener = listener(place);
        let remote = listener.local_addr().unwrap();
        let (mut client, mut server) = connect(from, &listener).unwrap();
        exchange(&mut client, &mut server).unwrap();
        press(from, place.address).unwrap();
        let (end, ended) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(PRESSED_AGAIN) == Err(RecvTimeoutError::Timeout) {
                    press(from, place.address).unwrap();
                }
            });
            spray(place, remote, snat(&fabric, 1, family), rounds).unwrap();
            let (reset, its_server) = connect(from, &listener).unwrap();
            reset_at_close(&its_server);
            drop(its_server);
            within(REMOVED, "the flow of a real reset is gone", || {
                let phases = phases(&fabric, pod.address(family), remote.port());
                check(phases == [ESTABLISHED], || {
                    format!("{family:?}: {phases:?}")
                })
            });
            drop((reset, end));
        });
        exchange(&mut client, &mut server).unwrap();
    }
    fabric.finish().unwrap();
}

/// The datapath ends a connection that the pod's kernel has ended: by a reset of the server, or by
/// both sides.
#[test]
fn connections_that_really_end_are_closed() {
    let (fabric, [_, pod]) = scene(json!({}));
    for family in Family::ALL {
        for is_reset in [true, false] {
            let listener = listener(internet(&fabric, family));
            let port = listener.local_addr().unwrap().port();
            let mut clients = Vec::new();
            for _ in 0..ENDED {
                let (mut client, mut server) = connect(pod.at(family), &listener).unwrap();
                exchange(&mut client, &mut server).unwrap();
                if is_reset {
                    reset_at_close(&server);
                }
                drop(server);
                if !is_reset {
                    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
                }
                clients.push(client);
            }
            if !is_reset {
                clients.clear();
            }
            within(CHANGE, "every flow is closed", || {
                let phases = phases(&fabric, pod.address(family), port);
                let closed = phases.iter().filter(|phase| **phase == "closed").count();
                check(closed == ENDED, || {
                    format!("{closed} of {}: {phases:?}", phases.len())
                })
            });
        }
    }
    fabric.finish().unwrap();
}

/// Opens connections from a pod to a server, and returns both ends of each.
fn connect_all(from: Place, listener: &TcpListener, count: usize) -> Result<Vec<[TcpStream; 2]>> {
    let target = listener.local_addr()?;
    from.netns.enter(|| {
        let connect = |_| {
            let client = TcpStream::connect_timeout(&target, REPLY_TIMEOUT)?;
            let (server, _) = listener.accept()?;
            Ok([client, server])
        };
        (0..count).map(connect).collect()
    })
}

/// Connections that are opened before their ends are parked.
const AT_ONCE: usize = 1000;

/// Opens connections from a pod to a server, which resets each when it closes it. Returns the ends
/// of the pod and those of the server.
fn park_all(from: Place, listener: &TcpListener, count: usize) -> Result<[Parked; 2]> {
    let [clients, servers] = [Parked::new()?, Parked::new()?];
    let mut left = count;
    while left > 0 {
        let ends = connect_all(from, listener, left.min(AT_ONCE))?;
        left -= ends.len();
        let ends = ends.into_iter().map(|[client, server]| {
            reset_at_close(&server);
            (client, server)
        });
        let (of_pod, of_server): (Vec<_>, Vec<_>) = ends.unzip();
        clients.add(&of_pod)?;
        servers.add(&of_server)?;
    }
    Ok([clients, servers])
}

/// The number of connections that a server resets.
fn reset_count() -> usize {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    if is_full() { FULL_RESET } else { RESET }
}

/// Lifetime of a closed connection where room is not short: the default, or that of the short form.
const CLOSED: Duration = Duration::from_mins(4);
const SHORT_CLOSED: Duration = Duration::from_secs(20);
/// A flow must be there so long before the end of its lifetime.
const MARGIN: Duration = Duration::from_secs(5);
/// A closed connection is removed so long after its lifetime at most: a sweep is due every ten
/// seconds.
const SWEPT: Duration = Duration::from_secs(15);

/// Room is not short when the server resets the pod's connections: late segments may still come.
#[test]
fn connections_that_a_server_resets_have_their_lifetime_where_there_is_room() {
    let count = reset_count();
    let lifetime = if is_full() { CLOSED } else { SHORT_CLOSED };
    let nat = json!({
        "flows": {"per-endpoint": 2 * count},
        "lifetimes": {"tcp-transitory": lifetime.as_secs()},
    });
    let (fabric, [_, pod]) = scene(json!({"nat": nat}));
    for family in Family::ALL {
        let listener = listener(internet(&fabric, family));
        let port = listener.local_addr().unwrap().port();
        let left = || phases(&fabric, pod.address(family), port);
        let [clients, servers] = park_all(pod.at(family), &listener, count).unwrap();
        let began = Instant::now();
        drop(servers);
        let ended = Instant::now();
        // Sweeps have seen the flows by then.
        thread::sleep(lifetime.saturating_sub(MARGIN + began.elapsed()));
        let closed = left().iter().filter(|phase| **phase == "closed").count();
        assert_eq!(closed, count, "{family:?}: {:?}", began.elapsed());
        within(lifetime + SWEPT, "every flow is gone", || {
            let left = left().len();
            check(left == 0, || format!("{left} of {count} are left"))
        });
        assert!(ended.elapsed() < lifetime + SWEPT, "{:?}", ended.elapsed());
        drop(clients);
    }
    fabric.finish().unwrap();
}

/// The quota of a pod is nearly used up when the server resets the pod's connections.
#[test]
fn connections_that_a_server_resets_make_room_where_it_is_short() {
    let count = reset_count();
    let quota = count + count / 20;
    let (fabric, [_, pod]) = scene(json!({"nat": {"flows": {"per-endpoint": quota}}}));
    for family in Family::ALL {
        let listener = listener(internet(&fabric, family));
        let port = listener.local_addr().unwrap().port();
        let [clients, servers] = park_all(pod.at(family), &listener, count).unwrap();
        let there = phases(&fabric, pod.address(family), port).len();
        assert_eq!(there, count);
        drop(servers);
        within(REMOVED, "every flow is gone", || {
            let left = phases(&fabric, pod.address(family), port).len();
            check(left == 0, || format!("{left} of {count} are left"))
        });
        drop(clients);
    }
    fabric.finish().unwrap();
}

/// Connections of each kind in [`connections_that_end_behind_data_make_room_where_it_is_short`].
const BEHIND: usize = 32;

/// Drops packets in a namespace, by a hook and the match of a rule.
fn drop_at(place: Place, hook: &str, packets: &str) {
    let script = format!(
        "add table inet shut; add chain inet shut {hook} {{ type filter hook {hook} priority 0; }}; \
         add rule inet shut {hook} {packets} drop"
    );
    let nft = || Ok(Command::new("nft").arg(&script).status()?);
    assert!(
        place.netns.enter(nft).unwrap().success(),
        "install nftables"
    );
}

/// Resets pass before data that the pods' sockets have not taken: each pod acknowledges what it has,
/// and the server is silent from then on. Half of the pod's sockets are gone after that, as by a
/// reset.
#[test]
fn connections_that_end_behind_data_make_room_where_it_is_short() {
    let quota = 2 * BEHIND + 1;
    for family in Family::ALL {
        let (fabric, [_, pod]) = scene(json!({"nat": {"flows": {"per-endpoint": quota}}}));
        let place = internet(&fabric, family);
        let listener = listener(place);
        let port = listener.local_addr().unwrap().port();
        let ends = connect_all(pod.at(family), &listener, 2 * BEHIND).unwrap();
        let is_data = format!("tcp sport {port} tcp flags & psh == psh");
        drop_at(pod.at(family), "input", &is_data);
        let is_answer = format!("tcp sport {port} tcp flags & (rst | ack) == rst");
        drop_at(place, "output", &is_answer);
        let mut clients = Vec::new();
        for [client, mut server] in ends {
            server.write_all(b"towpath").unwrap();
            reset_at_close(&server);
            drop(server);
            if clients.len() < BEHIND {
                clients.push(client);
            } else {
                // A socket under repair is closed without a packet. A look at the flow before that
                // would find it.
                setsockopt(&client, sockopt::TcpRepair, &1).unwrap();
            }
        }
        within(REMOVED, "every flow without a socket is gone", || {
            let left = phases(&fabric, pod.address(family), port);
            check(left == [ESTABLISHED; BEHIND], || {
                format!("{left:?} are left")
            })
        });
        fabric.finish().unwrap();
    }
}
