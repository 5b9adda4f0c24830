//! Flows that the stack carries, where service NAT may have translated them: both directions take
//! the stack.

use std::net::{IpAddr, Ipv6Addr};

use datapath_common::abi::{AddressEntry, EndpointAddress};
use datapath_common::counter::Program;
use datapath_common::masquerade::PoolPolicy;
use datapath_common::outcome::{DropReason, Verdict};
use loader::bpf::{DatapathMode, DatapathSettings};
use testkit::packet::{Body, Frame, Macs, Piece, other};
use testkit::testrun::{Programs, REDIRECT};

use crate::case::{Case, Expect, Table, on, to_eni, to_pod};
use crate::leaving::{Leaves, of_a};
use crate::world::*;

const SYN: u8 = 2;
const ACK: u8 = 16;
const UDP: Body = Body::Udp(100);

/// The settings with service NAT.
pub(crate) fn with_service_nat() -> DatapathSettings {
    DatapathSettings {
        path: DatapathMode::ServiceNat,
        ..settings()
    }
}

fn name(net: &Net, what: &str) -> String {
    format!("{} {what}", net.family())
}

/// Packet that the stack sends to pod A.
pub(crate) fn into_a(net: &Net, what: &str, frame: &Frame, verdict: Verdict) -> Case {
    let expect = Expect::Stack(verdict, OTHERS);
    let program = Program::ToEndpoint;
    Case::new(program, name(net, what), on(VETH_A, frame.bytes()), expect)
}

/// Packet that pod A sends.
pub(crate) fn of_pod(net: &Net, what: &str, frame: &Frame, expect: Expect) -> Case {
    let program = Program::FromEndpoint;
    Case::new(program, name(net, what), on(VETH_A, frame.bytes()), expect)
}

/// Packet that ENI 1 receives.
pub(crate) fn of_eni(net: &Net, what: &str, frame: &Frame, expect: Expect) -> Case {
    let program = Program::FromNetwork;
    Case::new(program, name(net, what), on(ENI_1, frame.bytes()), expect)
}

/// Packet that the stack sends for pod A by ENI 1.
pub(crate) fn of_stack(net: &Net, what: &str, frame: &Frame, expect: Expect) -> Case {
    let program = Program::ToNetwork;
    Case::new(program, name(net, what), on(ENI_1, frame.bytes()), expect).of_pod(VETH_A)
}

/// Up to the stack, with an ENI's mark.
pub(crate) fn up(eni: u32) -> Expect {
    Expect::Stack(Verdict::StackFlow, marked(eni))
}

/// Expected result for a packet that reaches pod A past the stack.
fn delivered(frame: &Frame) -> Expect {
    to_pod(frame, VETH_A, POD_A)
}

/// An ICMP error's type: unreachable.
pub(crate) fn unreachable(net: &Net) -> Body {
    Body::Error(if net.a.is_ipv4() { 3 } else { 1 })
}

/// The kinds of flows, each with its request and its answer.
const KINDS: [(Body, Body); 4] = [
    (UDP, UDP),
    (Body::Tcp(0), Body::Tcp(0)),
    (Body::Sctp(20), Body::Sctp(20)),
    (Body::Echo { asks: true }, Body::Echo { asks: false }),
];

/// A flow to pod A by each path to the stack: the answers take the stack too, and leave by the path
/// of the request.
fn from_elsewhere(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    // Answers to another device than an ENI leave by the host's own routes.
    let unmarked = || Expect::Stack(Verdict::StackFlow, OTHERS);
    let devices = [
        (ENI_0, up(0)),
        (ENI_1, up(1)),
        (OTHER, unmarked()),
        (VETH_B, unmarked()),
    ];
    for (place, (by, answered)) in devices.into_iter().enumerate() {
        let port = 3000 + u16::try_from(place).unwrap();
        // Remotes in the outside, where A would be translated, and in the VPC, a local pod, and the
        // host, whose address netfilter has substituted.
        for remote in [net.outside, net.peer, net.b, net.host, net.snat[0]] {
            for (asks, answers) in KINDS {
                let is_echo = matches!(asks, Body::Echo { .. });
                let served = if is_echo { 0 } else { 8080 };
                let what = format!("{asks:?} of {remote} by device {}", by.ifindex);
                let question = to_a(net, remote, asks).ports(port, served).tcp(SYN, 1);
                let answer = from_a(net, remote, answers)
                    .ports(served, port)
                    .tcp(SYN | ACK, 1);
                cases.push(into_a(net, &what, &question, Verdict::Noted).by(by, OTHERS));
                cases.push(of_pod(net, &what, &answer, answered.clone()));
                // The next request, if it comes by the owner ENI.
                let again = question.clone().macs(STRANGER, ENI_1.mac);
                cases.push(of_eni(net, &what, &again, up(1)));
                cases.push(into_a(net, &what, &question, Verdict::Noted).by(by, OTHERS));
            }
        }
    }
    cases
}

/// The host's own connections to pod A with a source that netfilter has changed, to any address:
/// the answers go up, unmarked.
fn from_the_host_with_another_source(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let link_local: IpAddr = if net.a.is_ipv4() {
        [169, 254, 7, 127].into()
    } else {
        Ipv6Addr::new(
            0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff,
        )
        .into()
    };
    let [_, loopback, reserved] = unroutable(net);
    let sources = [
        link_local,
        net.outside,
        net.peer,
        net.b,
        net.free,
        loopback,
        reserved,
    ];
    for (port, source) in (5000..).zip(sources) {
        for (asks, answers) in KINDS {
            let is_echo = matches!(asks, Body::Echo { .. });
            let served = if is_echo { 0 } else { 8080 };
            let what = format!("{asks:?} of the host as {source}");
            let question = to_a(net, source, asks).ports(port, served).tcp(SYN, 1);
            let answer = from_a(net, source, answers)
                .ports(served, port)
                .tcp(SYN | ACK, 1);
            let noted = into_a(net, &what, &question, Verdict::Noted).by(ENI_0, OTHERS);
            cases.push(noted.of_host());
            // An address in a block of ours without a pod is unreachable, whatever entries there
            // are.
            let expect = if source == net.free {
                Expect::Drop(DropReason::NoEndpoint)
            } else {
                Expect::Stack(Verdict::StackFlow, OTHERS)
            };
            cases.push(of_pod(net, &what, &answer, expect));
        }
    }
    cases
}

/// Pod B sends to pod A through a service, and then directly from the same port.
///
/// The direct packets take the stack only if they begin a flow, and only on the same port.
fn on_used_ports(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let unmarked = || Expect::Stack(Verdict::StackFlow, OTHERS);
    for (asks, flags, goes_up) in [
        (UDP, 0, true),
        (Body::Tcp(0), SYN, true),
        (Body::Tcp(100), ACK, false),
        (Body::Tcp(0), SYN | ACK, false),
    ] {
        let ask = |port| {
            Frame::new(Macs::new(POD_B, VETH_B.mac), net.b, net.a, asks)
                .ports(port, 8080)
                .tcp(flags, 1)
        };
        let of_b = |what: &str, frame: &Frame, expect| {
            let name = name(net, &format!("{what} {asks:?} {flags:#x}"));
            Case::new(
                Program::FromEndpoint,
                name,
                on(VETH_B, frame.bytes()),
                expect,
            )
        };
        let (used, other) = (ask(3900), ask(3901));
        cases.push(of_b("before", &used, delivered(&used)));
        cases.push(into_a(net, "by a service", &used, Verdict::Noted).by(VETH_B, OTHERS));
        let again = if goes_up {
            unmarked()
        } else {
            delivered(&used)
        };
        cases.push(of_b("itself", &used, again));
        cases.push(of_b("by another port", &other, delivered(&other)));
    }
    cases
}

/// A pod of the primary, whose ingress packets are unmarked.
fn by_the_primary(net: &Net) -> Vec<Case> {
    let question =
        Frame::new(Macs::new(VETH_B.mac, POD_B), net.outside, net.b, UDP).ports(3000, 8080);
    let noted = Expect::Stack(Verdict::Noted, OTHERS);
    let program = Program::ToEndpoint;
    let note = Case::new(program, name(net, "B"), on(VETH_B, question.bytes()), noted);
    let again = question.macs(STRANGER, ENI_0.mac).bytes();
    let expect = Expect::Stack(Verdict::StackFlow, OTHERS);
    let program = Program::FromNetwork;
    let comes = Case::new(program, name(net, "to B"), on(ENI_0, again), expect);
    vec![note.by(ENI_1, OTHERS), comes]
}

/// A fragment that the stack makes of an IPv6 packet has lost its device, but not its mark.
fn without_a_device(net: &Net) -> Vec<Case> {
    let question = to_a(net, net.peer, UDP).ports(3000, 8081);
    let answer = from_a(net, net.peer, UDP).ports(8081, 3000);
    let noted = Expect::Stack(Verdict::Noted, marked(0));
    let program = Program::ToEndpoint;
    let case = Case::new(
        program,
        name(net, "marked"),
        on(VETH_A, question.bytes()),
        noted,
    );
    let none = Device {
        ifindex: 0,
        ..OTHER
    };
    vec![
        case.by(none, marked(0)),
        of_pod(
            net,
            "its answer",
            &answer,
            Expect::Stack(Verdict::StackFlow, OTHERS),
        ),
    ]
}

/// Packets for which no entry is made, and whose flows therefore bypass the stack.
fn not_noted(net: &Net) -> Vec<Case> {
    let passes =
        |what: &str, frame: &Frame| into_a(net, what, frame, Verdict::ToPod).by(ENI_0, OTHERS);
    let from = |remote: IpAddr, body| to_a(net, remote, body).ports(3000, 8080);
    let mut cases = Vec::new();
    for service in [net.service, net.service_in_block] {
        cases.push(passes("a service's answer", &from(service, UDP)));
    }
    let question = from(net.peer, UDP);
    let mut exceptional = passes("an exception", &question);
    exceptional.input.mark = OTHERS | exception();
    exceptional.expect = Expect::Stack(Verdict::ToPod, OTHERS | exception());
    cases.push(exceptional);
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 5).into();
    for source in [net.host, net.snat[0], net.snat[1], link_local] {
        if source.is_ipv4() == net.a.is_ipv4() {
            let mut own = passes("of the host itself", &from(source, UDP)).of_host();
            own.expect = Expect::Stack(Verdict::FromHost, OTHERS);
            cases.push(own);
        }
    }
    let another = question.clone().to(net.b, 8080);
    cases.push(passes("another pod's", &another));
    cases.push(passes("a host's", &question.clone().to(net.host, 8080)));
    cases.push(passes("nobody's", &question.clone().to(net.free, 8080)));
    let error = from(net.peer, unreachable(net)).quoting(&question, 100);
    cases.push(passes("an error", &error));
    cases.push(passes("GRE", &from(net.peer, Body::Protocol(47))));
    let later = from(net.peer, Body::Udp(1200)).piece(Piece {
        offset: 800,
        length: 400,
        more: false,
        id: 77,
    });
    cases.push(passes("a later piece", &later));
    for ether_type in [0x0806, 0x8100, 0x88cc] {
        let frame = other(Macs::new(VETH_A.mac, POD_A), ether_type);
        let expect = Expect::Stack(Verdict::ToPod, OTHERS);
        let what = name(net, &format!("ether type {ether_type:#06x}"));
        let case = Case::new(Program::ToEndpoint, what, on(VETH_A, frame), expect);
        cases.push(case.by(ENI_0, OTHERS));
    }
    let answer = from_a(net, net.peer, UDP).ports(8080, 3000);
    cases.push(of_pod(net, "the answer", &answer, to_eni(&answer)));
    let again = received(ENI_1, net.peer, net.a, UDP).ports(3000, 8080);
    cases.push(of_eni(net, "the next", &again, delivered(&again)));
    cases
}

/// ICMP errors about a flow through the stack take the stack too; errors about another flow, or
/// from another sender, do not.
fn errors(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for remote in [net.peer, net.outside, net.b] {
        let question = to_a(net, remote, UDP).ports(3100, 8080);
        let answer = from_a(net, remote, UDP).ports(8080, 3100);
        cases.push(into_a(net, "noted", &question, Verdict::Noted).by(ENI_0, OTHERS));
        for length in [net.header() + 8, 128] {
            let of_a = from_a(net, remote, unreachable(net)).quoting(&question, length);
            cases.push(of_pod(net, "A's error", &of_a, up(0)));
            let to_a = received(ENI_1, net.peer, net.a, unreachable(net)).quoting(&answer, length);
            cases.push(of_eni(net, "an error for A", &to_a, up(1)));
        }
        let cut = received(ENI_1, net.peer, net.a, unreachable(net));
        let cut = cut.quoting(&answer, net.header() + 7);
        cases.push(of_eni(net, "a cut quote", &cut, delivered(&cut)));
        let of_another = answer.clone().from(net.c, 8080);
        let error = received(ENI_1, net.peer, net.a, unreachable(net)).quoting(&of_another, 128);
        cases.push(of_eni(net, "about another's", &error, delivered(&error)));
        let unknown = answer.ports(8080, 3101);
        let error = received(ENI_1, net.peer, net.a, unreachable(net)).quoting(&unknown, 128);
        cases.push(of_eni(net, "about another flow", &error, delivered(&error)));
    }
    cases
}

/// The two fragments of a datagram.
fn pieces(frame: &Frame, id: u16) -> [Frame; 2] {
    let first = Piece {
        offset: 0,
        length: 800,
        more: true,
        id,
    };
    let second = Piece {
        offset: 800,
        length: 400,
        more: false,
        id,
    };
    [first, second].map(|piece| frame.clone().piece(piece))
}

/// Expected result for a piece out of order.
fn reordered(mark: u32) -> Expect {
    Expect::Stack(Verdict::Reordered, mark | exception())
}

/// Pieces of datagrams to ends of each kind, the second one first.
fn second_pieces_first(net: &Net, datagram: Body) -> Vec<Case> {
    let mut cases = Vec::new();
    for (place, remote) in [net.peer, net.outside, net.b, net.host, net.c]
        .into_iter()
        .enumerate()
    {
        let id = 10 * u16::try_from(place).unwrap();
        let frame = from_a(net, remote, datagram).ports(8081, 3200);
        let [first, second] = pieces(&frame, id + 1);
        for (what, piece) in [
            ("the second before", &second),
            ("the first", &first),
            ("the second again", &second),
        ] {
            cases.push(of_pod(net, what, piece, reordered(marked(1))));
        }
    }
    cases
}

/// Received pieces, in order and out of order.
fn received_pieces(net: &Net, datagram: Body) -> Vec<Case> {
    let mut cases = Vec::new();
    let comes = received(ENI_1, net.peer, net.a, datagram).ports(3200, 8080);
    for piece in pieces(&comes, 105) {
        cases.push(of_eni(net, "a piece for A", &piece, up(1)));
    }
    let comes = comes.ports(3200, 8083);
    for piece in pieces(&comes, 106) {
        cases.push(of_eni(net, "past the stack", &piece, delivered(&piece)));
    }
    let [first, second] = pieces(&comes, 107);
    for piece in [&second, &first, &second] {
        cases.push(of_eni(net, "out of order", piece, reordered(marked(1))));
    }
    let to_b = Frame::new(Macs::new(STRANGER, ENI_0.mac), net.peer, net.b, datagram);
    for piece in pieces(&to_b, 108).iter().rev() {
        let expect = reordered(OTHERS);
        let program = Program::FromNetwork;
        cases.push(Case::new(
            program,
            name(net, "to B"),
            on(ENI_0, piece.bytes()),
            expect,
        ));
    }
    cases
}

/// A fragmented datagram takes one path.
///
/// That is its flow's path, if the first fragment comes first. Otherwise it is the stack, which
/// puts the fragments in order.
fn fragments(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let datagram = Body::Udp(1200);
    let question = to_a(net, net.peer, datagram).ports(3200, 8080);
    cases.push(into_a(net, "noted", &question, Verdict::Noted).by(ENI_0, OTHERS));
    cases.extend(second_pieces_first(net, datagram));
    // In order, with a flow through the stack, and without one.
    let noted = from_a(net, net.peer, datagram).ports(8080, 3200);
    for piece in pieces(&noted, 102) {
        cases.push(of_pod(net, "a piece in order", &piece, up(0)));
    }
    for piece in pieces(&noted.ports(8082, 3200), 103) {
        cases.push(of_pod(
            net,
            "a piece past the stack",
            &piece,
            to_eni(&piece),
        ));
    }
    let unnoted = from_a(net, net.b, Body::Udp(1200));
    for piece in pieces(&unnoted, 104) {
        let expect = to_pod(&piece, VETH_B, POD_B);
        cases.push(of_pod(net, "a piece for B", &piece, expect));
    }
    cases.extend(received_pieces(net, datagram));
    cases.extend(portless_fragments(net));
    cases
}

/// Packets without ports belong to no flow through the stack; all fragments bypass it, unless they
/// are out of order.
fn portless_fragments(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let protocol = Body::Protocol(47);
    let halves = |frame: &Frame, id| {
        let half = |offset, more| Piece {
            offset,
            length: 16,
            more,
            id,
        };
        [half(0, true), half(16, false)].map(|piece| frame.clone().piece(piece))
    };
    let to_peer = from_a(net, net.peer, protocol);
    let to_b = from_a(net, net.b, protocol);
    let comes = received(ENI_1, net.peer, net.a, protocol);
    for piece in halves(&to_peer, 201) {
        cases.push(of_pod(net, "GRE in pieces", &piece, to_eni(&piece)));
    }
    for piece in halves(&to_b, 202) {
        let expect = to_pod(&piece, VETH_B, POD_B);
        cases.push(of_pod(net, "GRE in pieces for B", &piece, expect));
    }
    for piece in halves(&comes, 203) {
        cases.push(of_eni(
            net,
            "GRE in pieces for A",
            &piece,
            delivered(&piece),
        ));
    }
    for piece in halves(&from_a(net, net.outside, protocol), 204) {
        let expect = Expect::Drop(DropReason::NoPorts);
        cases.push(of_pod(net, "GRE to the outside", &piece, expect));
    }
    let reordered = || Expect::Stack(Verdict::Reordered, marked(1) | exception());
    for piece in halves(&to_peer, 205).iter().rev() {
        cases.push(of_pod(net, "GRE in disorder", piece, reordered()));
    }
    for piece in halves(&comes, 206).iter().rev() {
        cases.push(of_eni(net, "GRE in disorder for A", piece, reordered()));
    }
    cases
}

fn asks(net: &Net, remote: IpAddr, port: u16) -> Frame {
    from_a(net, remote, UDP).ports(port, 53)
}

/// The answer from outside to a translated question.
fn answer_from_outside(net: &Net, port: u16) -> Frame {
    received(ENI_1, net.outside, net.snat[1], UDP).ports(53, port)
}

/// That answer reaches pod A past the stack.
fn returns_past_the_stack(net: &Net, port: u16) -> Case {
    let answer = answer_from_outside(net, port);
    let inside = answer
        .clone()
        .to(net.a, port)
        .hop_limit(63)
        .macs(VETH_A.mac, POD_A);
    let expect = Expect::Redirect(Verdict::Returned, inside.bytes(), 0);
    of_eni(net, "its answer", &answer, expect)
}

fn with_mark(mut case: Case, mark: u32) -> Case {
    case.input.mark = mark;
    case
}

/// Translated in addition: the answer is translated back, and then takes the stack.
fn carried_and_translated(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let translated = |port| {
        let frame = asks(net, net.outside, port).from(net.snat[1], port);
        Expect::Rewritten(Verdict::CarriedTranslated, frame.bytes(), OTHERS)
    };
    let request = asks(net, net.outside, 50_300);
    cases.push(of_stack(
        net,
        "to the outside",
        &request,
        translated(50_300),
    ));
    let answer = answer_from_outside(net, 50_300);
    let inside = answer.clone().to(net.a, 50_300).bytes();
    let verdict = Verdict::StackFlowReturned;
    let expect = Expect::Rewritten(verdict, inside, marked(1));
    cases.push(of_eni(net, "its answer", &answer, expect));
    let seen = request.clone().from(net.snat[1], 50_300);
    let error = |about: &Frame| {
        received(ENI_1, net.outside, net.snat[1], unreachable(net)).quoting(about, 100)
    };
    let inside = error(&request).to(net.a, 0).bytes();
    let expect = Expect::Rewritten(verdict, inside, marked(1));
    cases.push(of_eni(net, "an error about it", &error(&seen), expect));
    cases
}

/// Packets that leave by an ENI after the stack's NAT: the answers take the stack.
fn carried_out(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    let carried = || Expect::Stack(Verdict::Carried, OTHERS);
    let request = asks(net, net.peer, 3300);
    let answer = received(ENI_1, net.peer, net.a, UDP).ports(53, 3300);
    cases.push(of_stack(net, "to the VPC", &request, carried()));
    cases.push(of_eni(net, "its answer", &answer, up(1)));
    // Past its translation, the pod communicates with the server that answers.
    cases.push(of_pod(net, "the flow itself", &request, up(1)));
    let mark = OTHERS | exception();
    let request = asks(net, net.peer, 3301);
    let answer = received(ENI_1, net.peer, net.a, UDP).ports(53, 3301);
    let expect = Expect::Stack(Verdict::Carried, mark);
    let case = of_stack(net, "an exception", &request, expect);
    cases.push(with_mark(case, mark));
    cases.push(of_eni(net, "its answer", &answer, delivered(&answer)));
    cases.extend(carried_and_translated(net));
    let request = asks(net, net.outside, 50_301);
    let frame = request.clone().from(net.snat[1], 50_301).bytes();
    let expect = Expect::Rewritten(Verdict::CarriedTranslated, frame, mark);
    let case = of_stack(net, "an exception to the outside", &request, expect);
    cases.push(with_mark(case, mark));
    cases.push(returns_past_the_stack(net, 50_301));
    // Other packets of the pod to that remote still bypass the stack.
    let direct = asks(net, net.outside, 50_302);
    let leaves = Leaves::Translated(1, 50_302);
    cases.extend(of_a(net, "past the stack", &direct, leaves).drain(..1));
    cases.push(returns_past_the_stack(net, 50_302));
    cases
}

/// The stack answers a packet whose TTL ends, whatever its flow.
fn at_its_end(net: &Net) -> Vec<Case> {
    let question = to_a(net, net.peer, UDP).ports(3500, 8080);
    let leaves = from_a(net, net.peer, UDP).ports(8080, 3500).hop_limit(1);
    let expired = Expect::Stack(Verdict::TtlExpired, marked(1) | exception());
    vec![
        into_a(net, "noted", &question, Verdict::Noted).by(ENI_0, OTHERS),
        of_pod(net, "at its end", &leaves, expired),
    ]
}

/// Capacity for one flow.
fn full(net: &Net) -> Vec<Case> {
    let first = to_a(net, net.peer, UDP).ports(3600, 8080);
    let next = first.clone().ports(3601, 8080);
    let dropped = Expect::Drop(DropReason::StackFull);
    let program = Program::ToEndpoint;
    let too_many = Case::new(
        program,
        name(net, "too many"),
        on(VETH_A, next.bytes()),
        dropped,
    );
    let request = from_a(net, net.peer, UDP).ports(3602, 53);
    let dropped = Expect::Drop(DropReason::StackFull);
    vec![
        into_a(net, "one", &first, Verdict::Noted).by(ENI_0, OTHERS),
        too_many.by(ENI_0, OTHERS),
        of_stack(net, "too many to leave", &request, dropped),
        into_a(net, "the one again", &first, Verdict::Noted).by(ENI_0, OTHERS),
    ]
}

/// Without service NAT no entries are made or looked up.
fn off(net: &Net) -> Vec<Case> {
    let question = to_a(net, net.peer, UDP).ports(3700, 8080);
    let answer = from_a(net, net.peer, UDP).ports(8080, 3700);
    let own = into_a(net, "of the host", &question, Verdict::ToPod)
        .by(ENI_0, OTHERS)
        .of_host();
    let carried = Expect::Stack(Verdict::Carried, OTHERS);
    let request = from_a(net, net.peer, UDP).ports(3701, 53);
    let comes = received(ENI_1, net.peer, net.a, UDP).ports(53, 3701);
    let [_, second] = pieces(&from_a(net, net.peer, Body::Udp(1200)), 301);
    vec![
        into_a(net, "a question", &question, Verdict::ToPod).by(ENI_0, OTHERS),
        own,
        of_pod(net, "its answer", &answer, to_eni(&answer)),
        of_stack(net, "to the VPC", &request, carried),
        of_eni(net, "its answer", &comes, delivered(&comes)),
        of_pod(net, "a piece too early", &second, to_eni(&second)),
    ]
}

pub(crate) fn tables() -> Vec<Table> {
    let table = |settings, of: fn(&Net) -> Vec<Case>, nets: &[Net]| Table {
        settings,
        prepare: |_| {},
        cases: nets.iter().flat_map(of).collect(),
    };
    let on = |of| table(with_service_nat(), of, &[V4, V6]);
    let one = || DatapathSettings {
        stack: 1,
        ..with_service_nat()
    };
    vec![
        on(from_elsewhere),
        on(from_the_host_with_another_source),
        on(on_used_ports),
        on(by_the_primary),
        on(without_a_device),
        on(not_noted),
        on(errors),
        on(fragments),
        on(carried_out),
        on(at_its_end),
        table(one(), full, &[V4]),
        table(one(), full, &[V6]),
        table(settings(), off, &[V4, V6]),
    ]
}

#[test]
fn flows_that_the_stack_carries_take_it_both_ways() {
    for table in tables() {
        table.check();
    }
}

/// Packet of a flow that the pod sends, as it leaves.
fn leaves(programs: &mut Programs, frame: &Frame) -> (i32, Vec<u8>) {
    let unknown = Expect::Stack(Verdict::Translated, 0);
    let case = Case::new(
        Program::FromEndpoint,
        "",
        on(VETH_A, frame.bytes()),
        unknown,
    );
    let output = programs.run(case.program, &case.input).unwrap();
    (output.code, output.frame)
}

#[test]
fn a_translated_flow_stays_one_whatever_its_remote_sends_by_the_stack() {
    for net in [V4, V6] {
        let mut programs = node_with(&with_service_nat());
        // The host has the second flow's first candidate.
        let (own, taken) = (50_400, 50_401);
        let claims = Frame::new(
            Macs::new(ENI_1.mac, STRANGER),
            net.snat[1],
            net.outside,
            UDP,
        );
        let claims = claims.ports(taken, 53).bytes();
        let claimed = Expect::Stack(Verdict::HostClaimed, OTHERS);
        let host = Case::new(Program::ToNetwork, net.family(), on(ENI_1, claims), claimed);
        host.of_host().check(&mut programs);
        for port in [own, taken] {
            let frame = from_a(&net, net.outside, UDP).ports(port, 53);
            let opened = leaves(&mut programs, &frame);
            assert_eq!(opened.0, REDIRECT, "{} {port}", net.family());
            let knock = to_a(&net, net.outside, UDP).ports(53, port);
            into_a(&net, "a knock", &knock, Verdict::Noted)
                .by(ENI_0, OTHERS)
                .check(&mut programs);
            assert_eq!(
                leaves(&mut programs, &frame),
                opened,
                "{} {port}",
                net.family()
            );
        }
    }
}

#[test]
fn an_error_is_of_no_translated_flow_where_there_can_be_none() {
    for path in [DatapathMode::Direct, DatapathMode::ServiceNat] {
        for net in [V4, V6] {
            let settings = DatapathSettings { path, ..settings() };
            let mut programs = node_with(&settings);
            let request = from_a(&net, net.outside, UDP).ports(50_500, 53);
            assert_eq!(leaves(&mut programs, &request).0, REDIRECT);
            let skips = AddressEntry::endpoint(EndpointAddress {
                eni: 1,
                eni_ifindex: ENI_1.ifindex,
                pool: PoolPolicy::Skip,
                via_stack: false,
                ifindex: VETH_A.ifindex,
                mtu: u32::try_from(ENI_MTU).unwrap(),
                pod_mac: POD_A,
                host_mac: VETH_A.mac,
                namespace: None,
            });
            programs.put_address(net.a, skips).unwrap();
            let answer = to_a(&net, net.outside, UDP).ports(53, 50_500);
            let error = from_a(&net, net.outside, unreachable(&net)).quoting(&answer, 128);
            // User space has not announced that there may be such flows.
            of_pod(&net, "an error", &error, to_eni(&error)).check(&mut programs);
        }
    }
}
