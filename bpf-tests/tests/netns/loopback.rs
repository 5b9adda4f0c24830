//! Services on the node's loopback are no pod's, also where the host routes to loopback addresses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::Place;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Datagram, send_ip, uninterrupted};

use crate::masq::scene;
use crate::masq_host_networks::vpn;
use crate::support::{CHANGE, count, within};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 5353;

/// Sends a datagram for the loopback address out by the default route, whatever the sender's own tables
/// say of that address.
fn send(from: Place, by: IpAddr) {
    let data = [7; 16];
    let datagram = Datagram {
        from: SocketAddr::new(from.address, 4000),
        to: SocketAddr::new(LOOPBACK, PORT),
        data: &data,
    };
    let packets = datagram.fragments(1, 1024).unwrap();
    send_ip(from, by, &packets).unwrap();
}

#[test]
fn a_pod_reaches_nothing_on_the_nodes_loopback_with_route_localnet() {
    let (mut fabric, pods) = scene(json!({}));
    let client = vpn(&mut fabric);
    let node = &fabric.node;
    node.sysctls(&[("ipv4/conf/all/route_localnet", "1")])
        .unwrap();
    let server = node
        .enter(|| Ok(UdpSocket::bind((LOOPBACK, PORT))?))
        .unwrap();
    let peer = fabric.peer(Family::V4).address;
    // With this setting of the host, packets of other senders than pods get through.
    server
        .set_read_timeout(Some(Duration::from_secs(3)))
        .unwrap();
    send(client.at(Family::V4), peer);
    let (_, from) = uninterrupted(|| server.recv_from(&mut [0; 64])).unwrap();
    assert_eq!(from.ip(), client.at(Family::V4).address);
    for pod in &pods {
        let dropped = || count(&fabric, "from_endpoint", "unroutable-destination");
        let before = dropped();
        send(pod.at(Family::V4), peer);
        within(CHANGE, "the packet is dropped", || {
            let more = dropped() - before;
            check(more == 1, || more.to_string())
        });
    }
    server.set_nonblocking(true).unwrap();
    server.recv_from(&mut [0; 64]).unwrap_err();
    fabric.finish().unwrap();
}
