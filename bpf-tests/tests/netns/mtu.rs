//! Packet sizes: jumbo frames, and path MTU discovery where a link's MTU is smaller.

use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Echo, Protocol, ping, tcp_bulk, udp};
use testkit::fabric::{Fabric, MTU_JUMBO, POD_INTERFACE, Place, Pod, Spec};

use crate::support::{CHANGE, within};

/// Enough for many windows.
const BULK: usize = 4 * 1024 * 1024;
/// MTU of the small link: neither a default of anything nor what TCP would guess.
const SMALL: u32 = 1420;

/// Bytes of headers before the data of an echo request.
fn headers(family: Family) -> u32 {
    match family {
        Family::V4 => 20 + 8,
        Family::V6 => 40 + 8,
    }
}

/// Sends a ping that just fits an MTU and must not be fragmented; returns the output of ping(8).
pub(crate) fn ping_of(mtu: u32, family: Family, from: Place, to: Place) -> anyhow::Result<String> {
    let size = (mtu - headers(family)).to_string();
    ping(from, to.address, &["-M", "do", "-s", &size])
}

/// Sends pings of the links' size until an error reports the smaller MTU; then every size gets
/// through.
#[track_caller]
fn learns(from: Place, to: Place, links: u32, smaller: u32) {
    let family = Family::of(from.address);
    let said = ping_of(links, family, from, to).unwrap_err().to_string();
    received_mtu(from, to, &said, smaller);
    ping_of(smaller, family, from, to).unwrap();
}

/// Expects that the sender got an MTU, by the output of ping, and that its kernel keeps it.
#[track_caller]
fn received_mtu(from: Place, to: Place, said: &str, mtu: u32) {
    let texts = [
        format!("mtu = {mtu}"),
        format!("mtu={mtu}"),
        format!("mtu: {mtu}"),
    ];
    assert!(texts.iter().any(|text| said.contains(text)), "{said}");
    knows(from, to, mtu);
}

/// Expects that the sender's kernel keeps the path's MTU.
#[track_caller]
fn knows(from: Place, to: Place, mtu: u32) {
    within(
        Duration::from_secs(1),
        "the sender knows the path's MTU",
        || {
            let route = from.netns.run(&format!(
                "ip route get {} from {}",
                to.address, from.address
            ))?;
            check(route.contains(&format!("mtu {mtu}")), || route.clone())
        },
    );
}

fn path_mtu_is_discovered(mtu: u32) {
    let mut fabric = Fabric::ready(&Spec {
        mtu,
        ..Spec::default()
    })
    .unwrap();
    let (one, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    for family in Family::ALL {
        for pod in [&one, &other] {
            let (pod, peer) = (pod.at(family), fabric.peer(family));
            ping_of(mtu, family, pod, peer).unwrap();
            ping_of(mtu, family, peer, pod).unwrap();
        }
        ping_of(mtu, family, one.at(family), other.at(family)).unwrap();
        ping_of(mtu, family, one.at(family), fabric.node_at(family).unwrap()).unwrap();
        ping_of(mtu, family, fabric.node_at(family).unwrap(), one.at(family)).unwrap();
    }
    fabric.vpc.set_link_mtu(Host::Peer, SMALL).unwrap();
    for family in Family::ALL {
        let peer = fabric.peer(family);
        let echo = Echo::start(peer).unwrap();
        // TCP must discover the MTU itself on one pod; on the other one ping does.
        tcp_bulk(other.at(family), echo.address(), BULK).unwrap();
        learns(one.at(family), peer, mtu, SMALL);
        tcp_bulk(one.at(family), echo.address(), BULK).unwrap();
        let inside = Echo::start(one.at(family)).unwrap();
        tcp_bulk(peer, inside.address(), BULK).unwrap();
        // Larger than any packet, so that it is fragmented.
        udp(one.at(family), echo.address(), &[7; 12_000]).unwrap();
        udp(peer, inside.address(), &[7; 12_000]).unwrap();
    }
    fabric.finish().unwrap();
}

#[test]
fn path_mtu_is_discovered_with_jumbo_frames() {
    path_mtu_is_discovered(MTU_JUMBO);
}

#[test]
fn path_mtu_is_discovered_with_1500() {
    path_mtu_is_discovered(1500);
}

#[test]
fn an_eni_that_takes_less_than_a_pod_tells_the_pod() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    // The host's network manager follows the cloud's new value.
    for (router, device) in [("eni0", "eth0"), ("eni1", "")] {
        fabric
            .vpc
            .router
            .ip(&format!("link set {router} mtu 1500"))
            .unwrap();
        if !device.is_empty() {
            fabric
                .node
                .ip(&format!("link set {device} mtu 1500"))
                .unwrap();
        }
    }
    within(CHANGE, "ENI 1 follows the primary's MTU", || {
        let links = fabric.node.ip_json("link show dev eth1")?;
        check(links[0]["mtu"] == 1500, || links.to_string())
    });
    for family in Family::ALL {
        let peer = fabric.peer(family);
        let echo = Echo::start(peer).unwrap();
        for pod in [&pod, &other] {
            tcp_bulk(pod.at(family), echo.address(), BULK).unwrap();
            let said = ping_of(MTU_JUMBO, family, pod.at(family), peer).unwrap_err();
            assert!(said.to_string().contains("1500"), "{said}");
            ping_of(1500, family, pod.at(family), peer).unwrap();
            let inside = Echo::start(pod.at(family)).unwrap();
            tcp_bulk(peer, inside.address(), BULK).unwrap();
        }
        Protocol::Tcp
            .exchange(pod.at(family), other.at(family))
            .unwrap();
    }
    fabric.finish().unwrap();
}

/// Makes a pod request TCP segments that fill a packet of this size, whatever the MTU of its own
/// device is.
pub(crate) fn ask_for_segments(pod: &Pod, mtu: u32) {
    for family in Family::ALL {
        let (ip, headers) = match family {
            Family::V4 => ("-4", 20 + 20),
            Family::V6 => ("-6", 40 + 20),
        };
        let routes = pod
            .netns
            .ip_json(&format!("{ip} route show default"))
            .unwrap();
        let gateway = routes[0]["gateway"].as_str().unwrap();
        let segment = mtu - headers;
        let change = format!(
            "ip {ip} route replace default via {gateway} dev {POD_INTERFACE} advmss {segment}"
        );
        pod.netns.run(&change).unwrap();
    }
}

#[test]
fn a_pod_that_takes_less_than_its_eni_has_the_sender_told() {
    const POD: u32 = 1400;
    const LINKS: u32 = 1500;
    let mut fabric = Fabric::ready(&Spec {
        mtu: LINKS,
        settings: json!({"endpoint": {"mtu": POD}}),
        ..Spec::default()
    })
    .unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    for pod in &pods {
        ask_for_segments(pod, LINKS);
        for family in Family::ALL {
            let (pod, peer) = (pod.at(family), fabric.peer(family));
            let node = fabric.node_at(family).unwrap().address;
            let inside = Echo::start(pod).unwrap();
            // TCP must discover the MTU itself first.
            tcp_bulk(peer, inside.address(), BULK).unwrap();
            knows(peer, pod, POD);
            for ip in ["-4", "-6"] {
                let flush = format!("ip {ip} route flush cache");
                peer.netns.run(&flush).unwrap();
            }
            let said = ping_of(LINKS, family, peer, pod).unwrap_err().to_string();
            assert!(said.contains(&format!("From {node} ")), "{said}");
            received_mtu(peer, pod, &said, POD);
            ping_of(POD, family, peer, pod).unwrap();
            tcp_bulk(peer, inside.address(), BULK).unwrap();
        }
    }
    fabric.finish().unwrap();
}
