//! Translation: flows of pods and of the host, there and back, with ICMP errors and fragments.

use std::net::IpAddr;

use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Verdict};
use datapath_common::ports::Ports;
use testkit::packet::{Body, ETHERNET, Frame, Macs, Piece};

use crate::case::{Case, Expect, check_all, on};
use crate::leaving::{Leaves, all_ways, of_a};
use crate::world::*;

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const UDP: Body = Body::Udp(100);

/// The port that a flow of pod A gets: its own, or a fixed one if its own is not for translation.
fn port_of(net: &Net, port: u16) -> u16 {
    Ports::DEFAULT.candidate(net.a.into(), port, false)
}

/// Packet from the outside in pod A's translated flow by ENI 1, and the packet that A gets.
fn back(net: &Net, what: &str, frame: &Frame, inside: (IpAddr, u16)) -> Case {
    let delivered = frame
        .clone()
        .to(inside.0, inside.1)
        .hop_limit(frame.hop_limit - 1)
        .macs(VETH_A.mac, POD_A);
    let expect = Expect::Redirect(Verdict::Returned, delivered.bytes(), 0);
    from_eni(net, what, frame, expect)
}

fn from_eni(net: &Net, what: &str, frame: &Frame, expect: Expect) -> Case {
    let name = format!("{} {what}", net.family());
    Case::new(Program::FromNetwork, name, on(ENI_1, frame.bytes()), expect)
}

/// A packet from the outside to ENI 1's translation address.
fn answer(net: &Net, body: Body, from: u16, to: u16) -> Frame {
    received(ENI_1, net.outside, net.snat[1], body).ports(from, to)
}

/// A flow of each protocol, from a port for translation and from another one, there and back.
fn flows(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for (body, port, remote) in [
        (Body::Tcp(0), 50_000, 80),
        (Body::Tcp(900), 40_000, 80),
        (UDP, 50_000, 53),
        (UDP, 1, 53),
        (Body::Udp(0), 40_960, 53),
        (Body::Udp(1), 40_959, 53),
        // The reserve is for flows that keep their port.
        (UDP, 62_463, 53),
        (UDP, 62_464, 53),
        (Body::Sctp(20), 65_535, 80),
    ] {
        let what = format!("{body:?} from {port}");
        let is_kept = matches!(body, Body::Sctp(_));
        let mapped = Ports::DEFAULT.candidate(net.a.into(), port, is_kept);
        let frame = from_a(net, net.outside, body)
            .ports(port, remote)
            .tcp(SYN, 1);
        cases.extend(of_a(net, &what, &frame, Leaves::Translated(1, mapped)));
        let frame = answer(net, body, remote, mapped).tcp(SYN | ACK, 1);
        cases.push(back(net, &what, &frame, (net.a, port)));
    }
    let frame = from_a(net, net.outside, UDP)
        .ports(50_001, 53)
        .no_checksum();
    let leaves = Leaves::Translated(1, 50_001);
    cases.extend(of_a(net, "no checksum", &frame, leaves));
    let frame = answer(net, UDP, 53, 50_001).no_checksum();
    cases.push(back(net, "no checksum", &frame, (net.a, 50_001)));
    for port in [50_002, 7] {
        let mapped = port_of(net, port);
        let what = format!("echo {port}");
        let asks = Body::Echo { asks: true };
        let frame = from_a(net, net.outside, asks).ports(port, 0);
        cases.extend(of_a(net, &what, &frame, Leaves::Translated(1, mapped)));
        let frame = answer(net, Body::Echo { asks: false }, 0, mapped);
        cases.push(back(net, &what, &frame, (net.a, port)));
    }
    let frame = from_a(net, net.outside, Body::Sctp(20)).ports(40_000, 80);
    let taken = Leaves::Drop(DropReason::SctpPortTaken);
    cases.extend(of_a(net, "SCTP from another port", &frame, taken));
    let frame = from_a(net, net.metadata, Body::Tcp(0)).ports(50_003, 80);
    let leaves = Leaves::Translated(0, 50_003);
    cases.extend(of_a(net, "to the metadata service", &frame, leaves));
    for hop_limit in [0, 1] {
        let frame = answer(net, UDP, 53, 50_000).hop_limit(hop_limit);
        let inside = frame.clone().to(net.a, 50_000).bytes();
        let expect = Expect::Rewritten(Verdict::TtlExpired, inside, marked(1) | exception());
        cases.push(from_eni(net, "an answer at its end", &frame, expect));
    }
    cases
}

/// Packets of a flow that the kernel segments, and IPv6 with extension headers.
fn segments(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let frame = from_a(net, net.outside, Body::Tcp(3000))
        .ports(50_000, 80)
        .tcp(ACK, 2);
    for case in of_a(net, "segments", &frame, Leaves::Translated(1, 50_000)) {
        cases.push(case.gso(1400));
    }
    let frame = answer(net, Body::Tcp(3000), 80, 50_000).tcp(ACK, 2);
    cases.push(back(net, "segments", &frame, (net.a, 50_000)).gso(1400));
    if net.a.is_ipv6() {
        for body in [Body::Tcp(10), UDP] {
            let frame = from_a(net, net.outside, body)
                .ports(40_001, 80)
                .router_alert();
            let mapped = port_of(net, 40_001);
            let what = format!("{body:?} with a router alert");
            cases.extend(of_a(net, &what, &frame, Leaves::Translated(1, mapped)));
            let frame = answer(net, body, 80, mapped).router_alert();
            cases.push(back(net, &what, &frame, (net.a, 40_001)));
        }
    }
    cases
}

/// Packets that open no flow.
fn nothing_to_open(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let no_flow = Leaves::Drop(DropReason::NoFlow);
    let rst = |flags, sequence| {
        from_a(net, net.outside, Body::Tcp(0))
            .ports(50_010, 81)
            .tcp(flags, sequence)
    };
    cases.extend(of_a(net, "RST", &rst(RST, 0), no_flow));
    cases.extend(of_a(net, "RST with ACK", &rst(RST | ACK, 9), no_flow));
    let refusal = Leaves::As(Verdict::Inbound);
    cases.extend(of_a(net, "a refusal", &rst(RST | ACK, 0), refusal));
    let frame = from_a(net, net.outside, Body::Echo { asks: false }).ports(0, 50_010);
    cases.extend(of_a(net, "an echo reply", &frame, no_flow));
    for protocol in [2, 47, 50] {
        let frame = from_a(net, net.outside, Body::Protocol(protocol));
        let what = format!("protocol {protocol}");
        let no_ports = Leaves::Drop(DropReason::NoPorts);
        cases.extend(of_a(net, &what, &frame, no_ports));
        let keeps = Leaves::As(Verdict::Eni);
        let frame = from_a(net, net.peer, Body::Protocol(protocol));
        cases.extend(of_a(net, &what, &frame, keeps));
    }
    // An ICMP error about an unknown flow, one with half a quote, and one with none.
    let unknown = received(ENI_1, net.outside, net.a, UDP).ports(9, 9);
    let error = |length| {
        let kind = if net.a.is_ipv4() { 3 } else { 1 };
        from_a(net, net.outside, Body::Error(kind)).quoting(&unknown, length)
    };
    let full = net.header() + 8;
    cases.extend(of_a(net, "an error", &error(full), no_flow));
    let cut = Leaves::Drop(DropReason::Truncated);
    cases.extend(of_a(net, "a cut quote", &error(full - 1), cut));
    cases.extend(of_a(net, "no quote", &error(0), cut));
    let mut broken = error(full);
    broken.quote[0] = 0x50;
    let malformed = Leaves::Drop(DropReason::MalformedHeader);
    cases.extend(of_a(net, "a broken quote", &broken, malformed));
    let up = |what, frame: &Frame| {
        let expect = Expect::Stack(Verdict::NotForPod, marked(1));
        from_eni(net, what, frame, expect)
    };
    cases.push(up("to a port of nobody", &answer(net, UDP, 54, 50_000)));
    cases.push(up("to a port of the host", &answer(net, UDP, 53, 40_959)));
    cases
}

/// Flows that the outside opens.
fn inbound(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let into_a = |what: &str, frame: Frame| {
        let lowered = frame.clone().hop_limit(63).macs(VETH_A.mac, POD_A);
        let expect = Expect::Redirect(Verdict::Local, lowered.bytes(), 0);
        from_eni(net, what, &frame, expect)
    };
    let from = |body, from, to| received(ENI_1, net.outside, net.a, body).ports(from, to);
    let inbound = Leaves::As(Verdict::Inbound);
    cases.push(into_a("a SYN", from(Body::Tcp(0), 3000, 8080).tcp(SYN, 1)));
    let segment = |flags| {
        from_a(net, net.outside, Body::Tcp(0))
            .ports(8080, 3000)
            .tcp(flags, 1)
    };
    let no_flow = Leaves::Drop(DropReason::NoFlow);
    // The SYN has created no entry.
    cases.extend(of_a(net, "a RST of nothing", &segment(RST), no_flow));
    for flags in [SYN | ACK, ACK, RST] {
        let what = format!("an inbound flow's flags {flags}");
        cases.extend(of_a(net, &what, &segment(flags), inbound));
    }
    let reply = from_a(net, net.outside, UDP).ports(53, 3000);
    cases.push(into_a("a datagram", from(UDP, 3000, 53)));
    cases.extend(of_a(net, "its answer", &reply, inbound));
    cases.push(into_a("a ping", from(Body::Echo { asks: true }, 3000, 0)));
    let reply = from_a(net, net.outside, Body::Echo { asks: false }).ports(0, 3000);
    cases.extend(of_a(net, "its answer", &reply, inbound));
    let about = from(UDP, 3000, 53);
    let kind = if net.a.is_ipv4() { 3 } else { 1 };
    let error = from_a(net, net.outside, Body::Error(kind)).quoting(&about, 200);
    cases.extend(of_a(net, "an error about it", &error, inbound));
    cases
}

/// ICMP errors about translated flows, in both directions, with long and short quotes.
fn errors(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let kinds: &[u8] = if net.a.is_ipv4() {
        &[3, 4, 11, 12]
    } else {
        &[1, 2, 3, 4]
    };
    let mapped = port_of(net, 40_000);
    for kind in kinds {
        for (body, remote) in [
            (Body::Tcp(900), 80),
            (Body::Udp(1), 53),
            (Body::Sctp(20), 80),
        ] {
            let port = match body {
                Body::Sctp(_) => 65_535,
                Body::Udp(_) => 40_959,
                _ => 40_000,
            };
            let seen = if port == 65_535 {
                port
            } else {
                port_of(net, port)
            };
            for length in [net.header() + 8, 1000] {
                let what = format!("error {kind} about {body:?} with {length} bytes");
                let sent = from_a(net, net.outside, body).ports(port, remote);
                let outside = sent.clone().from(net.snat[1], seen);
                let error = |about: &Frame| {
                    received(ENI_1, net.outside, net.snat[1], Body::Error(*kind))
                        .quoting(about, length)
                };
                let inside = error(&sent)
                    .to(net.a, 0)
                    .hop_limit(63)
                    .macs(VETH_A.mac, POD_A);
                let expect = Expect::Redirect(Verdict::Returned, inside.bytes(), 0);
                cases.push(from_eni(net, &what, &error(&outside), expect));
                // The pod's own error, about a packet that it has received.
                let got = received(ENI_1, net.outside, net.a, body).ports(remote, port);
                let of_pod = from_a(net, net.outside, Body::Error(*kind)).quoting(&got, length);
                let name = format!("{} {what}", net.family());
                let leaves = Leaves::Translated(1, seen);
                cases.extend(all_ways(&name, &of_pod, leaves, |frame, eni, port| {
                    let about = got.clone().to(net.snat[eni], port);
                    frame.from(net.snat[eni], 0).quoting(&about, length)
                }));
            }
        }
    }
    // Another pod's flow is not A's.
    let others = received(ENI_1, net.outside, net.b, UDP).ports(53, mapped);
    let kind = kinds[0];
    let error = from_a(net, net.outside, Body::Error(kind)).quoting(&others, 100);
    let no_flow = Leaves::Drop(DropReason::NoFlow);
    cases.extend(of_a(net, "an error about another's", &error, no_flow));
    cases
}

/// Fragmented datagrams, in both directions, and fragments that come too early.
fn fragments(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let piece = |offset, length, more, id| Piece {
        offset,
        length,
        more,
        id,
    };
    for (id, body, port) in [
        (1, Body::Udp(1200), 40_003),
        (2, Body::Udp(1200), 50_020),
        (3, Body::Tcp(1200), 40_004),
    ] {
        let mapped = port_of(net, port);
        let frame = from_a(net, net.outside, body).ports(port, 53).tcp(SYN, 1);
        let unknown = Leaves::Drop(DropReason::FragmentUnknown);
        let pieces = [piece(0, 800, true, id), piece(800, 400, false, id)];
        let [first, second] = pieces.map(|piece| frame.clone().piece(piece));
        cases.extend(of_a(net, "a piece too early", &second, unknown));
        let to_peer = second.clone().to(net.peer, 53);
        let keeps = Leaves::As(Verdict::Eni);
        cases.extend(of_a(net, "a piece for the VPC", &to_peer, keeps));
        let translated = Leaves::Translated(1, mapped);
        cases.extend(of_a(net, "the first piece", &first, translated));
        cases.extend(of_a(net, "the second piece", &second, translated));
        let frame = answer(net, body, 53, mapped).tcp(SYN | ACK, 1);
        let [first, second] = pieces.map(|piece| frame.clone().piece(piece));
        let up = Expect::Stack(Verdict::NotForPod, marked(1));
        cases.push(from_eni(net, "a piece too early", &second, up));
        cases.push(back(net, "the first piece", &first, (net.a, port)));
        cases.push(back(net, "the second piece", &second, (net.a, port)));
    }
    cases
}

/// Packet that the host sends by ENI 1.
fn of_host(net: &Net, what: &str, frame: &Frame, expect: Expect) -> Case {
    let name = format!("{} {what}", net.family());
    let case = Case::new(Program::ToNetwork, name, on(ENI_1, frame.bytes()), expect);
    case.of_host()
}

fn host_sends(net: &Net, body: Body, from: u16, to: u16) -> Frame {
    let macs = Macs::new(ENI_1.mac, STRANGER);
    Frame::new(macs, net.snat[1], net.outside, body).ports(from, to)
}

/// The host's packets without a flow of its own, and a pod's to a service that nobody translated.
fn host_without_flow(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let from_host = Expect::Stack(Verdict::FromHost, OTHERS);
    // The host's own ICMP error about a packet that it could not deliver to pod A.
    let kind = if net.a.is_ipv4() { 11 } else { 3 };
    let inside = received(ENI_1, net.outside, net.a, UDP).ports(53, 1);
    let outside = inside.clone().to(net.snat[1], port_of(net, 1));
    let error = |about: &Frame| host_sends(net, Body::Error(kind), 0, 0).quoting(about, 100);
    let rewritten = error(&outside).bytes();
    let expect = Expect::Rewritten(Verdict::HostTranslated, rewritten, OTHERS);
    cases.push(of_host(
        net,
        "an error about A's flow",
        &error(&inside),
        expect,
    ));
    let group = Frame::new(
        Macs::new(ENI_1.mac, STRANGER),
        net.snat[1],
        net.multicast,
        UDP,
    );
    cases.push(of_host(
        net,
        "multicast",
        &group.ports(51_000, 53),
        from_host,
    ));
    let service = from_a(net, net.service, UDP);
    let name = format!("{} a service that nobody translated", net.family());
    let lost = Expect::Drop(DropReason::ServiceNotTranslated);
    let case = Case::new(Program::ToNetwork, name, on(ENI_1, service.bytes()), lost);
    cases.push(case.of_pod(VETH_A));
    cases
}

/// The host's own packets, and their answers.
fn host(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let passes = |verdict| Expect::Stack(verdict, OTHERS);
    let claimed = || passes(Verdict::HostClaimed);
    let from_host = || passes(Verdict::FromHost);
    cases.push(of_host(
        net,
        "a port of its own",
        &host_sends(net, UDP, 40_959, 53),
        from_host(),
    ));
    cases.push(of_host(
        net,
        "a port of ours",
        &host_sends(net, UDP, 51_000, 53),
        claimed(),
    ));
    cases.push(of_host(
        net,
        "the same",
        &host_sends(net, UDP, 51_000, 53),
        claimed(),
    ));
    let returned = Expect::Stack(Verdict::HostReturned, marked(1));
    let back = answer(net, UDP, 53, 51_000);
    cases.push(from_eni(net, "the host's answer", &back, returned));
    // A pod's flow has the port: the host gets another one.
    let frame = from_a(net, net.outside, UDP).ports(51_001, 53);
    cases.extend(of_a(net, "first", &frame, Leaves::Translated(1, 51_001)));
    let frame = host_sends(net, UDP, 51_001, 53);
    let other = Expect::OtherPort(Verdict::HostTranslated, Box::new(frame.clone()));
    cases.push(of_host(net, "a port that a pod has", &frame, other));
    let accepts = host_sends(net, Body::Tcp(0), 51_002, 80).tcp(SYN | ACK, 1);
    cases.push(of_host(net, "an answer", &accepts, from_host()));
    let gre = host_sends(net, Body::Protocol(47), 0, 0);
    cases.push(of_host(net, "without ports", &gre, from_host()));
    let sctp = host_sends(net, Body::Sctp(8), 65_535, 80);
    let taken = Expect::Drop(DropReason::SctpPortTaken);
    cases.push(of_host(net, "an SCTP port that a pod has", &sctp, taken));
    cases.extend(host_without_flow(net));
    cases
}

/// Packets that a secondary ENI received for an unknown address and the stack sends back, and
/// similar ones.
fn sent_back(net: &Net) -> Vec<Case> {
    let whole = received(ENI_1, net.outside, net.free, Body::Udp(1200));
    let later = Piece {
        offset: 800,
        length: 400,
        more: false,
        id: 4711,
    };
    let piece = whole.clone().piece(later);
    let host = received(ENI_1, net.host, net.outside, UDP);
    let nobody = Device {
        ifindex: 0,
        ..ENI_1
    };
    let passes = |mark| Expect::Stack(Verdict::FromHost, mark);
    let lost = || Expect::Drop(DropReason::ForeignSource);
    [
        (
            "by the ENI that received it",
            &whole,
            ENI_1,
            marked(1),
            lost(),
        ),
        ("a piece of it", &piece, ENI_1, marked(1), lost()),
        (
            "a piece put together again",
            &piece,
            nobody,
            marked(1),
            lost(),
        ),
        ("without a mark", &whole, ENI_1, OTHERS, passes(OTHERS)),
        (
            "of another device",
            &whole,
            VETH_A,
            marked(1),
            passes(marked(1)),
        ),
        ("of no device", &whole, nobody, marked(1), passes(marked(1))),
        ("of the host", &host, ENI_1, marked(1), passes(marked(1))),
    ]
    .map(|(what, frame, by, mark, expect)| {
        let name = format!("{} sent back, {what}", net.family());
        Case::new(Program::ToNetwork, name, on(ENI_1, frame.bytes()), expect).by(by, mark)
    })
    .into()
}

/// Packets of pods whose transport header is truncated.
fn cut(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for (body, header) in [(Body::Tcp(0), 20), (UDP, 8), (Body::Sctp(0), 12)] {
        let frame = from_a(net, net.outside, body);
        let mut bytes = frame.bytes();
        bytes.truncate(ETHERNET + net.header() + header - 1);
        let length = u16::try_from(header - 1).unwrap();
        if net.a.is_ipv4() {
            let length = (length + 20).to_be_bytes();
            bytes[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&length);
        } else {
            bytes[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
        }
        let expect = || Expect::Drop(DropReason::Truncated);
        let name = format!("{} {body:?} cut", net.family());
        let program = Program::FromEndpoint;
        cases.push(Case::new(
            program,
            name.clone(),
            on(VETH_A, bytes.clone()),
            expect(),
        ));
        let program = Program::ToNetwork;
        cases.push(Case::new(program, name, on(ENI_1, bytes), expect()).of_pod(VETH_A));
    }
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for net in [V4, V6] {
        cases.extend(flows(&net));
        cases.extend(segments(&net));
        cases.extend(nothing_to_open(&net));
        cases.extend(inbound(&net));
        cases.extend(errors(&net));
        cases.extend(fragments(&net));
        cases.extend(host(&net));
        cases.extend(sent_back(&net));
        cases.extend(cut(&net));
    }
    cases
}

#[test]
fn flows_are_translated_there_and_back_to_the_byte() {
    check_all(&cases());
}

/// The cases that every kernel's test run can express: the matrix runs them on Linux 5.10.
#[test]
fn flows_that_the_stack_does_not_carry_are_translated_to_the_byte() {
    let mut cases = cases();
    cases.retain(|case| !case.is_carried());
    check_all(&cases);
}
