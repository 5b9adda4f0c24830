//! Packets that ENIs receive.

use std::net::{IpAddr, Ipv6Addr};

use datapath_common::abi::EniEntry;
use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Verdict};
use testkit::packet::{Body, Macs, other};

use crate::case::{Case, Expect, check_all, on, to_pod};
use crate::world::*;

const UDP: Body = Body::Udp(100);
const NOOPS: &[u8] = &[1, 1, 1, 0];
const GROUP: Mac = [0x33, 0x33, 0, 0, 0, 0xfb];
const BROADCAST: Mac = [0xff; 6];

fn case(name: String, device: Device, frame: Vec<u8>, expect: Expect) -> Case {
    Case::new(Program::FromNetwork, name, on(device, frame), expect)
}

/// Sources that are dropped, and one that is not.
fn by_source(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for source in unroutable(net).into_iter().chain([net.multicast]) {
        let frame = received(ENI_1, source, net.a, UDP);
        let expect = Expect::Drop(DropReason::UnroutableSource);
        let name = format!("{} from {source}", net.family());
        cases.push(case(name, ENI_1, frame.bytes(), expect));
    }
    let frame = received(ENI_1, routable(net), net.a, UDP);
    let expect = to_pod(&frame, VETH_A, POD_A);
    let name = format!("{} from {}", net.family(), routable(net));
    cases.push(case(name, ENI_1, frame.bytes(), expect));
    cases
}

fn to_pods(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for body in [UDP, Body::Tcp(0)] {
        let frame = received(ENI_1, net.outside, net.a, body);
        let expect = to_pod(&frame, VETH_A, POD_A);
        cases.push(case(
            format!("{} for A", net.family()),
            ENI_1,
            frame.bytes(),
            expect,
        ));
        let frame = received(ENI_0, net.peer, net.b, body).hop_limit(2);
        let expect = to_pod(&frame, VETH_B, POD_B);
        cases.push(case(
            format!("{} for B", net.family()),
            ENI_0,
            frame.bytes(),
            expect,
        ));
    }
    cases
}

/// Cases of both families.
fn both(net: &Net) -> Vec<Case> {
    let mut cases = by_source(net);
    let mut add = |what: &str, device: Device, destination: IpAddr, expect: Expect| {
        let frame = received(device, net.outside, destination, UDP);
        let name = format!("{} {what} by device {}", net.family(), device.ifindex);
        cases.push(case(name, device, frame.bytes(), expect));
    };
    add(
        "for the other ENI's pod",
        ENI_0,
        net.a,
        Expect::Drop(DropReason::WrongEni),
    );
    add(
        "for the primary's pod",
        ENI_1,
        net.b,
        Expect::Drop(DropReason::WrongEni),
    );
    add(
        "for a pod by no ENI",
        OTHER,
        net.a,
        Expect::Drop(DropReason::WrongEni),
    );
    for device in [ENI_0, ENI_1] {
        let not_ready = Expect::Drop(DropReason::EniNotReady);
        add("for a pod without its ENI", device, net.c, not_ready);
        add(
            "for nobody",
            device,
            net.free,
            Expect::Drop(DropReason::NoEndpoint),
        );
    }
    // The primary and devices other than ENIs leave the mark alone.
    for (device, mark) in [(ENI_0, MARK_IN), (ENI_1, marked(1)), (OTHER, MARK_IN)] {
        for destination in [net.host, net.peer, net.outside, net.service] {
            let expect = Expect::Stack(Verdict::NotForPod, mark);
            add("not for a pod", device, destination, expect);
        }
        let expect = Expect::Stack(Verdict::Multicast, mark);
        add("multicast to this MAC", device, net.multicast, expect);
    }
    cases.extend(to_pods(net));
    cases.extend(exceptions(net));
    cases
}

/// Packets for the stack: on a secondary ENI with its mark, on the primary without.
fn exceptions(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for (device, pod, bits) in [
        (ENI_1, net.a, marked(1) | exception()),
        (ENI_0, net.b, OTHERS | exception()),
    ] {
        let mtu = if pod == net.a { ENI_MTU } else { POD_B_MTU };
        let name = |what: &str| format!("{} {what} for {pod}", net.family());
        for hop_limit in [0, 1] {
            let frame = received(device, net.outside, pod, UDP).hop_limit(hop_limit);
            let expect = Expect::Stack(Verdict::TtlExpired, bits);
            cases.push(case(name("hop limit"), device, frame.bytes(), expect));
        }
        let too_big = || Expect::Stack(Verdict::TooBig, bits);
        let frame = received(device, net.outside, pod, Body::Udp(mtu - net.header() - 7));
        cases.push(case(name("too big"), device, frame.bytes(), too_big()));
        let fits = mtu - net.header() - 32;
        let frame = received(device, net.outside, pod, Body::Tcp(3000));
        cases.push(case(name("segments"), device, frame.bytes(), too_big()).gso(fits + 1));
        let (veth, mac) = if pod == net.a {
            (VETH_A, POD_A)
        } else {
            (VETH_B, POD_B)
        };
        let expect = to_pod(&frame, veth, mac);
        cases.push(case(name("segments"), device, frame.bytes(), expect).gso(fits));
        // The stack handles oversize and expiring packets for other destinations.
        let frame = received(device, net.outside, net.host, Body::Udp(3000)).hop_limit(1);
        let mark = if pod == net.a { marked(1) } else { MARK_IN };
        let expect = Expect::Stack(Verdict::NotForPod, mark);
        cases.push(case(name("large"), device, frame.bytes(), expect));
    }
    cases
}

/// Cases of one family only.
fn single() -> Vec<Case> {
    let mut cases = Vec::new();
    for (device, pod, bits) in [
        (ENI_1, V4.a, marked(1) | exception()),
        (ENI_0, V4.b, OTHERS | exception()),
    ] {
        let frame = received(device, V4.outside, pod, UDP).options(NOOPS);
        let expect = Expect::Stack(Verdict::IpOptions, bits);
        cases.push(case(
            format!("options for {pod}"),
            device,
            frame.bytes(),
            expect,
        ));
    }
    let link_local = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 5));
    for (device, mark) in [(ENI_0, MARK_IN), (ENI_1, marked(1))] {
        let frame = received(device, V6.outside, link_local, Body::Icmpv6(136));
        let expect = Expect::Stack(Verdict::NotForPod, mark);
        cases.push(case("link-local".to_owned(), device, frame.bytes(), expect));
    }
    let IpAddr::V4(pod) = V4.a else {
        panic!("{} is not IPv4", V4.a)
    };
    let mapped = IpAddr::V6(pod.to_ipv6_mapped());
    let frame = received(ENI_1, V6.outside, mapped, UDP);
    let expect = Expect::Drop(DropReason::MalformedHeader);
    cases.push(case(
        "a v4-mapped pod".to_owned(),
        ENI_1,
        frame.bytes(),
        expect,
    ));
    cases
}

/// Frames for other MACs, and frames that are not IP: they pass unchanged, whatever they contain.
fn foreign() -> Vec<Case> {
    let mut cases = Vec::new();
    let untouched = || Expect::Stack(Verdict::ForeignFrame, MARK_IN);
    for device in [ENI_0, ENI_1] {
        for destination in [STRANGER, GROUP, BROADCAST] {
            for net in [V4, V6] {
                let frame = received(device, net.outside, net.a, UDP).macs(STRANGER, destination);
                let name = format!("{} to MAC {}", net.family(), text(destination));
                cases.push(case(name, device, frame.bytes(), untouched()));
            }
        }
        for ether_type in [0x0806, 0x8100, 0x88a8, 0x88cc] {
            let frame = other(Macs::new(STRANGER, device.mac), ether_type);
            let name = format!("ether type {ether_type:#06x}");
            cases.push(case(name, device, frame, untouched()));
        }
    }
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = both(&V4);
    cases.extend(both(&V6));
    cases.extend(single());
    cases.extend(foreign());
    cases
}

#[test]
fn every_packet_of_an_eni_gets_its_verdict() {
    check_all(&cases());
}

#[test]
fn a_primary_that_is_not_listed_leaves_the_mark_alone() {
    let mut programs = node();
    programs.put_eni(0, EniEntry::ABSENT).unwrap();
    for net in [V4, V6] {
        for (device, mark) in [(ENI_0, MARK_IN), (ENI_1, marked(1))] {
            let frame = received(device, net.outside, net.host, UDP).bytes();
            let expect = Expect::Stack(Verdict::NotForPod, mark);
            case("host".to_owned(), device, frame, expect).check(&mut programs);
        }
    }
}
