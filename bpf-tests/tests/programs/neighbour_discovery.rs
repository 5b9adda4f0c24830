//! Packets that pods may send from `::` and from link-local addresses, and IPv6 addresses of a kind.

use std::net::{IpAddr, Ipv6Addr};

use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Verdict};
use testkit::packet::{Body, ETHERNET, Frame};

use crate::case::{Case, Expect, check_all, on};
use crate::world::*;

const LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xa));
const HIGHEST_LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfebf, 0, 0, 0, 0, 0, 0, 1));
const SITE_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 1));
const UNSPECIFIED: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
const LOOPBACK: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// The gateway that every pod sees.
const GATEWAY: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

const SPOOFED: Expect = Expect::Drop(DropReason::SpoofedSource);
/// Unmarked, because the stack forwards none of it.
const ON_LINK: Expect = Expect::Stack(Verdict::LinkLocal, MARK_IN);
const PASSED: Expect = Expect::Stack(Verdict::NeighbourDiscovery, MARK_IN);

fn case(name: &str, frame: Vec<u8>, expect: Expect) -> Case {
    Case::new(Program::FromEndpoint, name, on(VETH_A, frame), expect)
}

fn from(source: IpAddr, destination: IpAddr, body: Body) -> Frame {
    sent(IF_A, source, destination, body)
}

fn messages() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in 0..=u8::MAX {
        let expect = || match kind {
            133 => Expect::Drop(DropReason::RouterSolicitation),
            135 | 136 | 131 | 132 | 143 => PASSED,
            _ => SPOOFED,
        };
        let name = format!("ICMPv6 type {kind}");
        let frame = from(LINK_LOCAL, V6.multicast, Body::Icmpv6(kind));
        cases.push(case(&name, frame.bytes(), expect()));
        let name = format!("ICMPv6 type {kind} behind a router alert");
        cases.push(case(&name, frame.router_alert().bytes(), expect()));
    }
    for source in [UNSPECIFIED, LINK_LOCAL, HIGHEST_LINK_LOCAL] {
        for destination in [V6.multicast, GATEWAY, V6.peer, V6.b] {
            let frame = from(source, destination, Body::Icmpv6(135));
            cases.push(case("a solicitation", frame.bytes(), PASSED));
            let is_on_link = source != UNSPECIFIED && destination == GATEWAY;
            let expect = || if is_on_link { ON_LINK } else { SPOOFED };
            for (name, body) in [("UDP", Body::Udp(10)), ("a ping", Body::Icmpv6(128))] {
                let frame = from(source, destination, body);
                cases.push(case(name, frame.bytes(), expect()));
            }
        }
    }
    for destination in [SITE_LOCAL, LOOPBACK] {
        let frame = from(LINK_LOCAL, destination, Body::Icmpv6(128));
        cases.push(case("a ping beyond the link", frame.bytes(), SPOOFED));
    }
    for source in [SITE_LOCAL, LOOPBACK, V6.b, V6.outside] {
        let frame = from(source, V6.multicast, Body::Icmpv6(135));
        cases.push(case("a solicitation of another's", frame.bytes(), SPOOFED));
    }
    let frame = from(V6.a, V6.multicast, Body::Icmpv6(135));
    let expect = Expect::Stack(Verdict::Multicast, marked(1));
    cases.push(case(
        "a solicitation from the pod's address",
        frame.bytes(),
        expect,
    ));
    for (name, body) in [
        ("a ping of the gateway", Body::Icmpv6(128)),
        ("UDP", Body::Udp(9)),
    ] {
        let expect = Expect::Stack(Verdict::LinkLocal, marked(1));
        let frame = from(V6.a, GATEWAY, body);
        cases.push(case(name, frame.bytes(), expect));
    }
    cases
}

/// Packets that end before their ICMPv6 type.
fn cut() -> Vec<Case> {
    let resized = |frame: &Frame, payload: u8| {
        let mut bytes = frame.bytes();
        bytes.truncate(ETHERNET + 40 + usize::from(payload));
        bytes[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&[0, payload]);
        bytes
    };
    let solicitation = from(LINK_LOCAL, V6.multicast, Body::Icmpv6(135));
    let report = from(LINK_LOCAL, V6.multicast, Body::Icmpv6(143)).router_alert();
    let mut beyond = report.bytes();
    beyond[ETHERNET + 41] = 255;
    vec![
        case("no ICMPv6", resized(&solicitation, 0), SPOOFED),
        case("one byte of ICMPv6", resized(&solicitation, 1), PASSED),
        case("no hop-by-hop header", resized(&report, 0), SPOOFED),
        case("a hop-by-hop header alone", resized(&report, 8), SPOOFED),
        case("one byte behind it", resized(&report, 9), PASSED),
        case("a hop-by-hop header beyond the end", beyond, SPOOFED),
    ]
}

/// `::ffff:a.b.c.d` on the wire would be the IPv4 pod's to the maps.
fn mapped() -> Vec<Case> {
    let mapped = |address: IpAddr| match address {
        IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
        IpAddr::V6(_) => address,
    };
    let malformed = Expect::Drop(DropReason::MalformedHeader);
    [
        (mapped(V4.a), V6.peer),
        (V6.a, mapped(V4.b)),
        (mapped(V4.a), mapped(V4.b)),
    ]
    .into_iter()
    .map(|(source, destination)| {
        let frame = from(source, destination, Body::Udp(10));
        let expect = Expect::Drop(DropReason::MalformedHeader);
        case("a v4-mapped address", frame.bytes(), expect)
    })
    .chain([case(
        "a v4-mapped multicast address",
        from(V6.a, mapped(V4.multicast), Body::Udp(10)).bytes(),
        malformed,
    )])
    .collect()
}

/// An endpoint uses four link-local addresses as sources and four as destinations. What is dropped for
/// another reason does not count.
fn many() -> Vec<Case> {
    const LIMIT: Expect = Expect::Drop(DropReason::LinkLocalLimit);
    let address = |number| IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xb, number));
    let frame = |veth, source, destination, kind| {
        let interface = Interface {
            device: veth,
            mac: POD_B,
        };
        sent(interface, source, destination, Body::Icmpv6(kind)).bytes()
    };
    let case = |name: &str, frame, expect| {
        Case::new(Program::FromEndpoint, name, on(VETH_B, frame), expect)
    };
    let mut cases = Vec::new();
    for number in 10..20 {
        let frame = frame(VETH_B, address(number), V6.peer, 128);
        cases.push(case("a spoofed ping", frame, SPOOFED));
    }
    for (number, expect) in (0..6).zip([PASSED, PASSED, PASSED, PASSED, LIMIT, LIMIT]) {
        for kind in [135, 136, 143] {
            let frame = frame(VETH_B, address(number), V6.multicast, kind);
            let name = format!("ICMPv6 type {kind} from link-local address {number}");
            cases.push(case(&name, frame, expect.clone()));
        }
    }
    let on_link = Expect::Stack(Verdict::LinkLocal, marked(0));
    for number in 0..6 {
        let own = if number < 4 { on_link.clone() } else { LIMIT };
        let frame_own = frame(VETH_B, V6.b, address(number), 128);
        cases.push(case("a ping of a link-local address", frame_own, own));
        let expect = if number < 4 { ON_LINK } else { LIMIT };
        let frame = frame(VETH_B, address(0), address(number), 128);
        cases.push(case("a ping between link-local addresses", frame, expect));
    }
    let frame = from(LINK_LOCAL, V6.multicast, Body::Icmpv6(135)).bytes();
    let expect = PASSED;
    cases.push(Case::new(
        Program::FromEndpoint,
        "another endpoint's",
        on(VETH_A, frame),
        expect,
    ));
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = messages();
    cases.extend(cut());
    cases.extend(mapped());
    cases.extend(many());
    cases
}

#[test]
fn only_what_stays_on_the_link_comes_from_link_local_sources() {
    check_all(&cases());
}
