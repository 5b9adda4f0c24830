//! Packets that pods send.

use std::net::{IpAddr, Ipv4Addr};

use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Verdict};
use testkit::packet::{Body, ETHERNET, Macs, arp_request, other};

use crate::case::{Case, Expect, check_all, on, to_eni, to_pod};
use crate::world::*;

const UDP: Body = Body::Udp(100);
/// Length of a UDP header, and of the TCP headers that are sent here.
const UDP_HEADER: usize = 8;
const TCP_HEADER: usize = 32;
/// Length of a hop-by-hop header with a router alert.
const ROUTER_ALERT_HEADER: usize = 8;
/// No operation, three times, and the end: valid IPv4 options.
const NOOPS: &[u8] = &[1, 1, 1, 0];

fn case(name: String, device: Device, frame: Vec<u8>, expect: Expect) -> Case {
    Case::new(Program::FromEndpoint, name, on(device, frame), expect)
}

/// Cases of both families.
fn both(net: &Net) -> Vec<Case> {
    let name = |what: &str| format!("{} {what}", net.family());
    let a = |what: &str, destination: IpAddr, expect: Expect| {
        case(
            name(what),
            VETH_A,
            from_a(net, destination, UDP).bytes(),
            expect,
        )
    };
    let stack = |verdict| Expect::Stack(verdict, marked(1));
    let mut cases = vec![
        a("to the host", net.host, stack(Verdict::Host)),
        a("to a service", net.service, stack(Verdict::Service)),
        a(
            "to a service in a block",
            net.service_in_block,
            stack(Verdict::Service),
        ),
        a("to multicast", net.multicast, stack(Verdict::Multicast)),
        a(
            "to nobody in a block",
            net.free,
            Expect::Drop(DropReason::NoEndpoint),
        ),
    ];
    for body in [UDP, Body::Tcp(0), Body::Sctp(9), Body::Protocol(47)] {
        for to in [net.peer, routable(net)] {
            let frame = from_a(net, to, body);
            cases.push(case(
                name("to a peer"),
                VETH_A,
                frame.bytes(),
                to_eni(&frame),
            ));
        }
        // Other reasons for the stack do not matter, such as an exception.
        for (to, hop_limit) in unroutable(net)
            .into_iter()
            .flat_map(|to| [(to, 64), (to, 1)])
        {
            let frame = from_a(net, to, body).hop_limit(hop_limit);
            let expect = Expect::Drop(DropReason::UnroutableDestination);
            cases.push(case(name("to nowhere"), VETH_A, frame.bytes(), expect));
        }
    }
    let frame = from_a(net, net.b, UDP);
    let expect = to_pod(&frame, VETH_B, POD_B);
    cases.push(case(name("to a pod"), VETH_A, frame.bytes(), expect));
    let frame = from_a(net, net.a, UDP);
    let expect = to_pod(&frame, VETH_A, POD_A);
    cases.push(case(name("to itself"), VETH_A, frame.bytes(), expect));
    cases.extend(spoofed(net));
    cases.extend(exceptions(net));
    cases.extend(segments(net));
    cases
}

fn spoofed(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, source) in [
        ("another pod's source", net.b),
        ("the host's source", net.host),
        ("a free source of a block", net.free),
        ("a foreign source", net.outside),
        ("a multicast source", net.multicast),
    ] {
        for destination in [net.peer, net.host, net.b, net.multicast] {
            let frame = sent(IF_A, source, destination, UDP);
            let name = format!("{} {what} to {destination}", net.family());
            let expect = Expect::Drop(DropReason::SpoofedSource);
            cases.push(case(name, VETH_A, frame.bytes(), expect));
        }
    }
    let frame = sent(IF_C, net.c, net.peer, UDP);
    for frame in [frame.clone(), frame.hop_limit(1)] {
        let name = format!("{} by an ENI that is not ready", net.family());
        let expect = Expect::Drop(DropReason::EniNotReady);
        cases.push(case(name, VETH_C, frame.bytes(), expect));
    }
    cases
}

/// TTL and size, for each kind of redirect, and for the stack, which handles them.
fn exceptions(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let except = |verdict| Expect::Stack(verdict, marked(1) | exception());
    for hop_limit in [0, 1] {
        for (destination, expect) in [
            (net.peer, except(Verdict::TtlExpired)),
            (net.b, except(Verdict::TtlExpired)),
            (net.host, Expect::Stack(Verdict::Host, marked(1))),
            (net.service, Expect::Stack(Verdict::Service, marked(1))),
            (net.multicast, Expect::Stack(Verdict::Multicast, marked(1))),
        ] {
            let frame = from_a(net, destination, UDP).hop_limit(hop_limit);
            let name = format!("{} hop limit {hop_limit} to {destination}", net.family());
            cases.push(case(name, VETH_A, frame.bytes(), expect));
        }
    }
    for hop_limit in [2, 255] {
        let frame = from_a(net, net.peer, UDP).hop_limit(hop_limit);
        let name = format!("{} hop limit {hop_limit}", net.family());
        cases.push(case(name, VETH_A, frame.bytes(), to_eni(&frame)));
    }
    let body = |mtu: usize| Body::Udp(mtu - net.header() - UDP_HEADER);
    let frame = from_a(net, net.peer, body(ENI_MTU));
    let name = |what: &str| format!("{} {what}", net.family());
    cases.push(case(
        name("the ENI's MTU"),
        VETH_A,
        frame.bytes(),
        to_eni(&frame),
    ));
    let frame = from_a(net, net.b, body(POD_B_MTU));
    let expect = to_pod(&frame, VETH_B, POD_B);
    cases.push(case(name("the pod's MTU"), VETH_A, frame.bytes(), expect));
    for (what, destination, mtu, expect) in [
        (
            "above the ENI's MTU",
            net.peer,
            ENI_MTU,
            except(Verdict::TooBig),
        ),
        (
            "above the pod's MTU",
            net.b,
            POD_B_MTU,
            except(Verdict::TooBig),
        ),
        (
            "large to the host",
            net.host,
            ENI_MTU,
            Expect::Stack(Verdict::Host, marked(1)),
        ),
    ] {
        let frame = from_a(net, destination, body(mtu + 1));
        cases.push(case(name(what), VETH_A, frame.bytes(), expect));
    }
    cases
}

/// GSO packets: each of their segments must fit.
fn segments(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for (body, header) in [(Body::Tcp(3000), TCP_HEADER), (Body::Udp(3000), UDP_HEADER)] {
        let fits = ENI_MTU - net.header() - header;
        let frame = from_a(net, net.peer, body);
        let name = format!("{} segments of {body:?}", net.family());
        cases.push(case(name.clone(), VETH_A, frame.bytes(), to_eni(&frame)).gso(fits));
        let expect = Expect::Stack(Verdict::TooBig, marked(1) | exception());
        cases.push(case(name, VETH_A, frame.bytes(), expect).gso(fits + 1));
    }
    if net.a.is_ipv6() {
        let fits = ENI_MTU - net.header() - ROUTER_ALERT_HEADER - TCP_HEADER;
        let frame = from_a(net, net.peer, Body::Tcp(3000)).router_alert();
        let name = "segments behind a router alert".to_owned();
        cases.push(case(name.clone(), VETH_A, frame.bytes(), to_eni(&frame)).gso(fits));
        let expect = Expect::Stack(Verdict::TooBig, marked(1) | exception());
        cases.push(case(name, VETH_A, frame.bytes(), expect).gso(fits + 1));
    }
    // Above 64 KiB the length field is 0, and the packet's own length counts.
    let frame = from_a(net, net.peer, Body::Tcp(3000));
    let without_length = |mut bytes: Vec<u8>| {
        let field = ETHERNET + if net.a.is_ipv4() { 2 } else { 4 };
        bytes[field..field + 2].fill(0);
        if net.a.is_ipv4() {
            let header = etherparse::Ipv4Header::from_slice(&bytes[ETHERNET..])
                .unwrap()
                .0;
            let sum = header.calc_header_checksum().to_be_bytes();
            bytes[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum);
        }
        bytes
    };
    let expect = match to_eni(&frame) {
        Expect::Redirect(verdict, bytes, mark) => {
            Expect::Redirect(verdict, without_length(bytes), mark)
        }
        other => other,
    };
    let name = format!("{} more than 64 KiB", net.family());
    cases.push(case(name, VETH_A, without_length(frame.bytes()), expect).gso(1400));
    cases
}

/// Cases of IPv4 only.
fn v4() -> Vec<Case> {
    let except = |verdict| Expect::Stack(verdict, marked(1) | exception());
    let mut cases = Vec::new();
    for (destination, expect) in [
        (V4.peer, except(Verdict::IpOptions)),
        (V4.b, except(Verdict::IpOptions)),
        (V4.host, Expect::Stack(Verdict::Host, marked(1))),
        (V4.service, Expect::Stack(Verdict::Service, marked(1))),
    ] {
        let frame = from_a(&V4, destination, UDP).options(NOOPS);
        let name = format!("options to {destination}");
        cases.push(case(name, VETH_A, frame.bytes(), expect));
    }
    let frame = from_a(&V4, V4.peer, UDP).options(NOOPS).hop_limit(1);
    cases.push(case(
        "options and hop limit 1".to_owned(),
        VETH_A,
        frame.bytes(),
        except(Verdict::TtlExpired),
    ));
    let broadcast = IpAddr::V4(Ipv4Addr::BROADCAST);
    let frame = from_a(&V4, broadcast, UDP);
    let expect = Expect::Stack(Verdict::Multicast, marked(1));
    cases.push(case("broadcast".to_owned(), VETH_A, frame.bytes(), expect));
    let frame = sent(IF_A, IpAddr::V4(Ipv4Addr::UNSPECIFIED), broadcast, UDP);
    let expect = Expect::Drop(DropReason::SpoofedSource);
    cases.push(case("DHCP".to_owned(), VETH_A, frame.bytes(), expect));
    cases
}

/// Frames that are not IP.
fn not_ip() -> Vec<Case> {
    [
        (0x8100, Expect::Drop(DropReason::VlanTagged)),
        (0x88a8, Expect::Drop(DropReason::VlanTagged)),
        (0x88cc, Expect::Drop(DropReason::NotIp)),
        (0x8847, Expect::Drop(DropReason::NotIp)),
        (0x0026, Expect::Drop(DropReason::NotIp)),
    ]
    .map(|(ether_type, expect)| {
        let frame = other(Macs::new(POD_A, VETH_A.mac), ether_type);
        case(
            format!("ether type {ether_type:#06x}"),
            VETH_A,
            frame,
            expect,
        )
    })
    .into()
}

/// ARP requests name the pod's own address as their sender, or none.
fn arp() -> Vec<Case> {
    let passed = || Expect::Stack(Verdict::Arp, MARK_IN);
    let spoofed = || Expect::Drop(DropReason::SpoofedSource);
    let mut cases: Vec<Case> = [
        (V4.a, passed()),
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), passed()),
        (V4.b, spoofed()),
        (V4.peer, spoofed()),
        (V4.outside, spoofed()),
    ]
    .into_iter()
    .filter_map(|(sender, expect)| {
        let (IpAddr::V4(sender), IpAddr::V4(target)) = (sender, V4.peer) else {
            return None;
        };
        let frame = arp_request(Macs::new(POD_A, VETH_A.mac), sender, target);
        Some(case(format!("ARP of {sender}"), VETH_A, frame, expect))
    })
    .collect();
    let mut short = arp_request(
        Macs::new(POD_A, VETH_A.mac),
        [10, 0, 0, 1].into(),
        [0; 4].into(),
    );
    short.truncate(ETHERNET + 17);
    let truncated = Expect::Drop(DropReason::Truncated);
    cases.push(case("short ARP".to_owned(), VETH_A, short, truncated));
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = both(&V4);
    cases.extend(both(&V6));
    cases.extend(v4());
    cases.extend(not_ip());
    cases.extend(arp());
    cases
}

#[test]
fn every_packet_of_a_pod_gets_its_verdict() {
    check_all(&cases());
}
