//! Fragments through the masquerade: both directions, any order once the first was seen.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::{Asker, Datagram, Echo, ping, send_ip, uninterrupted};
use testkit::fabric::{Fabric, Place, Pod};

use crate::masq::{internet, internet_scene, snat};
use crate::support::count;

/// Data of a fragment in bytes, and of the datagrams: three fragments.
const SIZE: usize = 1000;
const DATA: usize = 2500;

#[test]
fn datagrams_larger_than_the_mtu_go_both_ways() {
    let (fabric, pods) = internet_scene(json!({}));
    for (pod, eni) in pods.iter().zip([0, 1]) {
        for family in Family::ALL {
            let (from, to) = (pod.at(family), internet(&fabric, family));
            let server = Echo::telling(to, 0).unwrap();
            let asker = Asker::open(from, 0, server.address()).unwrap();
            for bytes in [1473, 4000, 20_000, 60_000] {
                let seen = asker.ask(bytes).unwrap();
                assert_eq!(seen.ip(), snat(&fabric, eni, family), "{bytes} bytes");
            }
            for size in ["1472", "4000", "20000"] {
                ping(from, to.address, &["-s", size]).unwrap();
            }
        }
    }
    fabric.finish().unwrap();
}

/// Three fragments in an order that the first one leads, once with a copy.
const ORDERS: [&[usize]; 4] = [&[0, 1, 2], &[0, 2, 1], &[0, 2, 2, 1], &[0, 1, 2]];

fn reordered<'a>(pieces: &'a [Vec<u8>], order: &'a [usize]) -> impl Iterator<Item = &'a Vec<u8>> {
    order.iter().filter_map(|index| pieces.get(*index))
}

/// A socket of the pod and one of the server that know each other: what the server sees.
struct Pair {
    client: UdpSocket,
    server: UdpSocket,
    seen: SocketAddr,
}

fn socket(at: Place) -> UdpSocket {
    let socket = at
        .netns
        .enter(|| Ok(UdpSocket::bind((at.address, 0))?))
        .unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    socket
}

fn pair(fabric: &Fabric, pod: &Pod, family: Family) -> Pair {
    let (client, server) = (socket(pod.at(family)), socket(internet(fabric, family)));
    client
        .send_to(b"towpath", server.local_addr().unwrap())
        .unwrap();
    let (_, seen) = uninterrupted(|| server.recv_from(&mut [0; 16])).unwrap();
    Pair {
        client,
        server,
        seen,
    }
}

/// A datagram in fragments.
fn fragments(from: SocketAddr, to: SocketAddr, id: u16, data: &[u8]) -> Vec<Vec<u8>> {
    let datagram = Datagram { from, to, data };
    datagram.fragments(id, SIZE).unwrap()
}

#[track_caller]
fn arrives(at: &UdpSocket, data: &[u8], from: SocketAddr, what: &str) {
    let mut buffer = vec![0; 64 * 1024];
    match uninterrupted(|| at.recv_from(&mut buffer)) {
        Ok((length, source)) => {
            assert_eq!(&buffer[..length], data, "{what}");
            assert_eq!(source, from, "{what}");
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn fragments_may_overtake_each_other_behind_the_first() {
    let (fabric, pods) = internet_scene(json!({}));
    let mut id = 100;
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        let Pair {
            client,
            server,
            seen,
        } = pair(&fabric, pod, family);
        let far = server.local_addr().unwrap();
        for order in ORDERS {
            id += 1;
            let data = vec![u8::try_from(id % 251).unwrap(); DATA];
            let out = fragments(client.local_addr().unwrap(), far, id, &data);
            send_ip(pod.at(family), far.ip(), reordered(&out, order)).unwrap();
            arrives(&server, &data, seen, &format!("out {family:?} {order:?}"));
            let inward = fragments(far, seen, id, &data);
            let at = internet(&fabric, family);
            send_ip(at, seen.ip(), reordered(&inward, order)).unwrap();
            arrives(&client, &data, far, &format!("in {family:?} {order:?}"));
        }
    }
    fabric.finish().unwrap();
}

/// Datagrams of a flood: more than the node has records for.
const FLOOD: u16 = 10_000;

/// First fragments from a place to an address that no network has.
fn flood(from: Place, family: Family) {
    let nowhere: IpAddr = match family {
        Family::V4 => [8, 8, 4, 99].into(),
        Family::V6 => "2606:4700:10::99".parse().unwrap(),
    };
    let first = |id| {
        let datagram = Datagram {
            from: SocketAddr::new(from.address, 4000),
            to: SocketAddr::new(nowhere, 53),
            data: &[0; 16],
        };
        let mut pieces = datagram.fragments(id, 16).unwrap();
        pieces.swap_remove(0)
    };
    let packets: Vec<_> = (0..FLOOD).map(first).collect();
    send_ip(from, nowhere, &packets).unwrap();
}

#[test]
fn a_flood_of_fragments_leaves_the_datagrams_of_another_pod() {
    let (fabric, [pod, greedy]) = internet_scene(json!({}));
    for family in Family::ALL {
        let Pair {
            client,
            server,
            seen,
        } = pair(&fabric, &pod, family);
        let far = server.local_addr().unwrap();
        let data = [7; DATA];
        let out = fragments(client.local_addr().unwrap(), far, 78, &data);
        let inward = fragments(far, seen, 78, &data);
        let at = internet(&fabric, family);
        send_ip(pod.at(family), far.ip(), &out[..1]).unwrap();
        send_ip(at, seen.ip(), &inward[..1]).unwrap();
        flood(greedy.at(family), family);
        send_ip(pod.at(family), far.ip(), &out[1..]).unwrap();
        send_ip(at, seen.ip(), &inward[1..]).unwrap();
        arrives(&server, &data, seen, &format!("out {family:?}"));
        arrives(&client, &data, far, &format!("in {family:?}"));
    }
    fabric.finish().unwrap();
}

#[test]
fn a_pods_fragment_before_its_first_one_is_dropped_and_counted() {
    let (fabric, [pod, _]) = internet_scene(json!({}));
    for family in Family::ALL {
        let Pair { client, server, .. } = pair(&fabric, &pod, family);
        let far = server.local_addr().unwrap();
        let pieces = fragments(client.local_addr().unwrap(), far, 77, &[7; DATA]);
        let before = count(&fabric, "from_endpoint", "fragment-unknown");
        send_ip(pod.at(family), far.ip(), reordered(&pieces, &[1, 0, 2])).unwrap();
        uninterrupted(|| server.recv_from(&mut [0; 16])).unwrap_err();
        let after = count(&fabric, "from_endpoint", "fragment-unknown");
        assert_eq!(after - before, 1, "{family:?}");
    }
    fabric.finish().unwrap();
}
