//! A server that answers a translated flow with too large datagrams gets an error that quotes the
//! datagram as the server sent it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice};
use ipam::Family;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use serde_json::json;
use testkit::fabric::world::Link;
use testkit::fabric::{Place, Spec};

use crate::masq::{MTU, internet, scene_of, snat};
use crate::masq_mtu::{SMALL, forget, knows};
use crate::support::{CHANGE, within};

/// MTU of the pods' interfaces: less than that of their ENIs, more than that of the small link.
const POD: u32 = 1400;
/// IANA, "Protocol Numbers".
const UDP: u8 = 17;
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// A UDP socket on a port of the kernel's choice.
fn udp(at: Place) -> UdpSocket {
    let open = || {
        let socket = UdpSocket::bind((at.address, 0))?;
        socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(socket)
    };
    at.netns.enter(open).unwrap()
}

/// A socket that gets every ICMP message of a place.
fn icmp(at: Place) -> UdpSocket {
    let (family, protocol) = match at.address {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    let open = || {
        let raw = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        // Only those calls of a UDP socket are used that every socket has.
        let raw = UdpSocket::from(raw);
        raw.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(raw)
    };
    at.netns.enter(open).unwrap()
}

/// Contents of an error: the MTU, and the ends of the quoted datagram.
#[derive(Debug, PartialEq, Eq)]
struct TooBig {
    mtu: u32,
    from: SocketAddr,
    to: SocketAddr,
}

/// The IP header of a quoted packet: source, destination, protocol, and what follows.
fn quoted(packet: &[u8], family: Family) -> anyhow::Result<(IpAddr, IpAddr, u8, &[u8])> {
    Ok(match family {
        Family::V4 => {
            let header = Ipv4HeaderSlice::from_slice(packet)?;
            let sum = header.to_header().calc_header_checksum();
            ensure!(sum == header.header_checksum(), "the quote's checksum");
            let rest = packet.get(header.slice().len()..).unwrap_or_default();
            let ends = [header.source(), header.destination()];
            let [from, to] = ends.map(|octets| Ipv4Addr::from(octets).into());
            (from, to, header.protocol().0, rest)
        }
        Family::V6 => {
            let header = Ipv6HeaderSlice::from_slice(packet)?;
            let rest = packet.get(header.slice().len()..).unwrap_or_default();
            let ends = [header.source(), header.destination()];
            let [from, to] = ends.map(|octets| Ipv6Addr::from(octets).into());
            (from, to, header.next_header().0, rest)
        }
    })
}

/// The next error that says "too big" and quotes a UDP datagram.
fn too_big(errors: &UdpSocket, family: Family) -> anyhow::Result<TooBig> {
    let mut buffer = [0; 2048];
    loop {
        let length = errors.recv(&mut buffer)?;
        // A raw IPv4 socket returns the IP header too (raw(7)); no packet here has options.
        let (start, kind) = match family {
            Family::V4 => (20, [3, 4]),
            Family::V6 => (0, [2, 0]),
        };
        // RFC 792, RFC 1191, RFC 4443: both families have the MTU in the same place.
        let Some((head, packet)) = buffer[start..length].split_at_checked(8) else {
            continue;
        };
        if head[..2] != kind {
            continue;
        }
        let (from, to, protocol, rest) = quoted(packet, family)?;
        if protocol != UDP {
            continue;
        }
        let ports = rest.get(..4).context("the quote has ports")?;
        let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        return Ok(TooBig {
            mtu: u32::from_be_bytes(head[4..8].try_into()?),
            from: (from, port(0)).into(),
            to: (to, port(2)).into(),
        });
    }
}

/// A server answers with a datagram that fills a packet of the links' MTU.
///
/// A hop of the path reports a smaller MTU, and from then on the server's datagrams of any size
/// arrive.
#[track_caller]
fn server_is_told(pod: Place, server: Place, own: IpAddr, narrow: u32) {
    let family = Family::of(pod.address);
    let headers = match family {
        Family::V4 => 20 + 8,
        Family::V6 => 40 + 8,
    };
    let what = format!("{} through {narrow}", pod.address);
    forget(server);
    let (client, answers, errors) = (udp(pod), udp(server), icmp(server));
    client.connect(answers.local_addr().unwrap()).unwrap();
    // The first one may be lost while a neighbour on the path is being resolved.
    let seen = within(CHANGE, &format!("{what}: the server hears the pod"), || {
        client.send(b"towpath")?;
        Ok(answers.recv_from(&mut [0; 16])?.1)
    });
    assert_eq!(seen.ip(), own, "{what}");
    let data = vec![7; usize::try_from(MTU - headers).unwrap()];
    let reported = within(
        CHANGE,
        &format!("{what}: the server gets the error"),
        || {
            answers.send_to(&data, seen)?;
            too_big(&errors, family)
        },
    );
    let expected = TooBig {
        mtu: narrow,
        from: answers.local_addr().unwrap(),
        to: seen,
    };
    assert_eq!(reported, expected, "{what}");
    knows(server, own, narrow);
    let mut back = vec![0; 64 * 1024];
    for data in [data, vec![9; 5000]] {
        let length = within(CHANGE, &format!("{what}: the pod has its answer"), || {
            answers.send_to(&data, seen)?;
            Ok(client.recv(&mut back)?)
        });
        assert_eq!(back[..length], data, "{what}");
        // An answer that was sent twice may have arrived twice.
        client.set_nonblocking(true).unwrap();
        while client.recv(&mut back).is_ok() {}
        client.set_nonblocking(false).unwrap();
    }
}

#[test]
fn a_server_whose_datagrams_are_too_big_for_the_way_back_is_told() {
    let (fabric, pods) = scene_of(&Spec {
        mtu: MTU,
        ..Spec::with_world(json!({"endpoint": {"mtu": POD}}))
    });
    // First only the device of the primary's pod is narrow, then a link between world and node.
    for (link, narrow) in [(MTU, POD), (SMALL, SMALL)] {
        fabric.set_world_mtu(Link::Near, link).unwrap();
        for (pod, eni) in pods.iter().zip([0, 1]) {
            for family in Family::ALL {
                let own = snat(&fabric, eni, family);
                let server = internet(&fabric, family);
                server_is_told(pod.at(family), server, own, narrow);
            }
        }
    }
    fabric.finish().unwrap();
}
