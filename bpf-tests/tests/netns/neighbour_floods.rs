//! Pods that try to fill the host's neighbour tables, which all namespaces share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, bail};
use testkit::fabric::eventually::check;

use datapath_common::abi::LinkLocals;
use etherparse::PacketBuilder;
use ipam::Family;
use nix::net::if_::if_nametoindex;
use testkit::fabric::{Fabric, POD_INTERFACE, Pod, Spec};
use testkit::packet::{Macs, arp_request};
use testkit::raw::RawSocket;

use crate::support::{CHANGE, End, PEER, carry_all, count, within};

/// Packets of each kind: ten times what the tables hold (`gc_thresh3` of neighbour(7)).
const FLOOD: u16 = 10_000;
/// The addresses of the pod and of the host's own exchanges with it, beside what link-local addresses may add.
const OWN: usize = 4;

/// Bytes of a frame that a pod sends, by its number.
type Frames = fn(&Sender, u16) -> Result<Vec<u8>>;

/// Where frames come from and go to.
struct Sender {
    pod: [u8; 6],
    host: [u8; 6],
    v6: Ipv6Addr,
}

const fn link_local(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x1234, 0, 1, number)
}

/// An ICMPv6 message with a target and the option of a link-layer address (RFC 4861 section 4).
fn icmpv6(of: &Sender, addresses: (Ipv6Addr, Ipv6Addr), kind: u8, option: u8) -> Result<Vec<u8>> {
    let (source, destination) = addresses;
    let mut body = Vec::new();
    if kind != 133 {
        let target = if kind == 135 { destination } else { source };
        body.extend(target.octets());
    }
    body.extend([option, 1]);
    body.extend(of.pod);
    let flags = if kind == 136 { [0x20, 0, 0, 0] } else { [0; 4] };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(of.pod, of.host)
        .ipv6(source.octets(), destination.octets(), 255)
        .icmpv6_raw(kind, 0, flags)
        .write(&mut frame, &body)?;
    Ok(frame)
}

fn router_solicitation(of: &Sender, number: u16) -> Result<Vec<u8>> {
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    icmpv6(of, (link_local(number), routers), 133, 1)
}

fn neighbour_solicitation(of: &Sender, number: u16) -> Result<Vec<u8>> {
    icmpv6(of, (link_local(number), host_link_local(of)), 135, 1)
}

fn neighbour_advertisement(of: &Sender, number: u16) -> Result<Vec<u8>> {
    icmpv6(of, (link_local(number), host_link_local(of)), 136, 2)
}

fn ping_from_link_local(of: &Sender, number: u16) -> Result<Vec<u8>> {
    ping(of, link_local(number), host_link_local(of))
}

fn ping_of_link_local(of: &Sender, number: u16) -> Result<Vec<u8>> {
    ping(of, of.v6, link_local(number))
}

fn ping_between_link_local(of: &Sender, number: u16) -> Result<Vec<u8>> {
    ping(of, link_local(0), link_local(number))
}

fn ping(of: &Sender, source: Ipv6Addr, destination: Ipv6Addr) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(of.pod, of.host)
        .ipv6(source.octets(), destination.octets(), 64)
        .icmpv6_echo_request(1, 1)
        .write(&mut frame, &[0; 8])?;
    Ok(frame)
}

fn arp(of: &Sender, number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let sender = Ipv4Addr::new(198, 18, high, low);
    let macs = Macs::new(of.pod, of.host);
    arp_request(macs, sender, Ipv4Addr::new(10, 0, 0, 10))
}

/// The link-local address that the kernel gives the host's device by its MAC (RFC 4291 appendix A).
fn host_link_local(of: &Sender) -> Ipv6Addr {
    let (vendor, number) = of.host.split_at(3);
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..11].copy_from_slice(vendor);
    octets[8] ^= 2;
    octets[11..13].copy_from_slice(&[0xff, 0xfe]);
    octets[13..].copy_from_slice(number);
    octets.into()
}

fn mac(text: &str) -> Result<[u8; 6]> {
    let bytes: Result<Vec<u8>, _> = text.split(':').map(|b| u8::from_str_radix(b, 16)).collect();
    bytes?.try_into().ok().context("a MAC has six bytes")
}

fn sender(fabric: &Fabric, pod: &Pod) -> Result<Sender> {
    let address_of = |netns: &testkit::fabric::Netns, device: &str| {
        let links = netns.ip_json(&format!("link show dev {device}"))?;
        mac(links[0]["address"].as_str().context("a MAC")?)
    };
    let IpAddr::V6(v6) = pod.address(Family::V6) else {
        bail!("an IPv6 address of another family");
    };
    Ok(Sender {
        pod: address_of(&pod.netns, POD_INTERFACE)?,
        host: address_of(&fabric.node, &pod.host_device())?,
        v6,
    })
}

/// Entries of the host's neighbour tables for a device.
fn entries(fabric: &Fabric, device: &str) -> Result<usize> {
    let shown = fabric
        .node
        .run(&format!("ip neigh show dev {device} nud all"))?;
    let learned = shown.lines().filter(|line| !line.contains("NOARP"));
    Ok(learned.count())
}

fn flood(pod: &Pod, of: &Sender, frames: Frames) -> Result<()> {
    pod.netns.enter(|| {
        let socket = RawSocket::open(if_nametoindex(POD_INTERFACE)?)?;
        (0..FLOOD).try_for_each(|number| socket.send(&frames(of, number)?))
    })
}

#[test]
fn a_pod_fills_no_neighbour_table() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let device = pod.host_device();
    let of = sender(&fabric, &pod).unwrap();
    let rp_filter = format!("ipv4/conf/{device}/rp_filter");
    let floods: [(&str, Frames); 7] = [
        ("RS", router_solicitation),
        ("NS", neighbour_solicitation),
        ("NA", neighbour_advertisement),
        ("a ping from a link-local address", ping_from_link_local),
        ("a ping of a link-local address", ping_of_link_local),
        (
            "a ping between link-local addresses",
            ping_between_link_local,
        ),
        ("ARP", |of, number| Ok(arp(of, number))),
    ];
    let mut most = Vec::new();
    for (name, frames) in floods {
        fabric.node.sysctls(&[(rp_filter.as_str(), "0")]).unwrap();
        flood(&pod, &of, frames).unwrap();
        most.push((name, entries(&fabric, &device).unwrap()));
    }
    println!("entries of neighbours after each flood: {most:?}");
    let allowed = 2 * LinkLocals::MOST + OWN;
    assert!(
        most.iter().all(|(_, entries)| *entries <= allowed),
        "{most:?}"
    );
    for (reason, least) in [
        ("router-solicitation", FLOOD),
        ("link-local-limit", 4 * FLOOD),
        ("spoofed-source", FLOOD),
    ] {
        let dropped = count(&fabric, "from_endpoint", reason);
        assert!(dropped >= u64::from(least), "{reason}: {dropped}");
    }
    within(CHANGE, "rp_filter is on again", || {
        let value = fabric.node.sysctl(&rp_filter)?;
        check(value == "2", || value.clone())
    });
    carry_all(&fabric, End::Pod(&pod), End::Node, &[]);
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    carry_all(&fabric, PEER, End::Pod(&pod), &[1]);
    fabric.finish().unwrap();
}
