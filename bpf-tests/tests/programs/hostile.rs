//! Packets with false headers, for every program. A test run accepts no IP packet that is shorter
//! than its header; `wire` sends those.

use datapath_common::counter::Program;
use datapath_common::outcome::DropReason::{self, MalformedHeader, Truncated};
use datapath_common::outcome::Verdict;
use testkit::packet::{Body, ETHERNET};

use crate::case::{Case, Expect, Table, check_all, on, to_eni, to_pod};
use crate::stack_flows::with_service_nat;
use crate::world::*;

/// Offsets within the IP header.
const V4_TOTAL_LENGTH: usize = 2;
const V6_PAYLOAD_LENGTH: usize = 4;

/// A valid frame for each program.
fn good(program: Program, net: &Net, body: Body) -> (Device, Vec<u8>) {
    match program {
        Program::FromEndpoint => (VETH_A, from_a(net, net.peer, body).bytes()),
        Program::FromNetwork | Program::ToNetwork => {
            (ENI_1, received(ENI_1, net.outside, net.a, body).bytes())
        }
        Program::ToEndpoint => (VETH_A, to_a(net, net.outside, body).bytes()),
    }
}

/// A frame with one byte of its IP header changed.
fn with(frame: &[u8], offset: usize, byte: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[ETHERNET + offset] = byte;
    frame
}

/// A frame with a length field of its IP header changed.
fn with_length(frame: &[u8], offset: usize, length: usize) -> Vec<u8> {
    let [high, low] = u16::try_from(length).unwrap().to_be_bytes();
    with(&with(frame, offset, high), offset + 1, low)
}

fn v4(frame: &[u8]) -> Vec<(&'static str, Vec<u8>, DropReason)> {
    let room = frame.len() - ETHERNET;
    let length = |length| with_length(frame, V4_TOTAL_LENGTH, length);
    vec![
        ("version 5", with(frame, 0, 0x55), MalformedHeader),
        (
            "version 6 in an IPv4 frame",
            with(frame, 0, 0x65),
            MalformedHeader,
        ),
        ("header of 0 bytes", with(frame, 0, 0x40), MalformedHeader),
        ("header of 16 bytes", with(frame, 0, 0x44), MalformedHeader),
        ("length 0", length(0), MalformedHeader),
        ("length 19", length(19), MalformedHeader),
        ("length one too many", length(room + 1), Truncated),
        ("length 65535", length(65_535), Truncated),
        (
            "header longer than the packet",
            with(&length(56), 0, 0x4f),
            MalformedHeader,
        ),
        ("a header alone", frame[..ETHERNET + 20].to_vec(), Truncated),
    ]
}

fn v6(frame: &[u8]) -> Vec<(&'static str, Vec<u8>, DropReason)> {
    let room = frame.len() - ETHERNET;
    let length = |length| with_length(frame, V6_PAYLOAD_LENGTH, length);
    vec![
        (
            "version 4 in an IPv6 frame",
            with(frame, 0, 0x45),
            MalformedHeader,
        ),
        ("version 0", with(frame, 0, 0), MalformedHeader),
        ("length one too many", length(room - 40 + 1), Truncated),
        ("length 65535", length(65_535), Truncated),
        ("a header alone", frame[..ETHERNET + 40].to_vec(), Truncated),
    ]
}

/// Packets that the stack sends to a pod pass, even with false headers, and no entry is made.
fn to_endpoint() -> Vec<Case> {
    let mut cases = Vec::new();
    for (net, lies) in [(V4, v4 as fn(&[u8]) -> _), (V6, v6)] {
        for body in [Body::Udp(100), Body::Tcp(0)] {
            let (device, frame) = good(Program::ToEndpoint, &net, body);
            for (what, frame, _reason) in lies(&frame) {
                let name = format!("{} {what}", net.family());
                let expect = Expect::Stack(Verdict::ToPod, OTHERS);
                let case = Case::new(Program::ToEndpoint, name, on(device, frame), expect);
                cases.push(case.by(ENI_1, OTHERS));
            }
        }
    }
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for program in [Program::FromEndpoint, Program::FromNetwork] {
        for (net, lies) in [(V4, v4 as fn(&[u8]) -> _), (V6, v6)] {
            let (device, frame) = good(program, &net, Body::Udp(100));
            for (what, frame, reason) in lies(&frame) {
                let name = format!("{} {what}", net.family());
                cases.push(Case::new(
                    program,
                    name,
                    on(device, frame),
                    Expect::Drop(reason),
                ));
            }
            // A packet that claims to aggregate TCP segments, but has no whole TCP header.
            let (device, mut frame) = good(program, &net, Body::Tcp(0));
            frame.truncate(ETHERNET + net.header() + 12);
            let frame = if net.header() == 20 {
                with_length(&frame, V4_TOTAL_LENGTH, 32)
            } else {
                with_length(&frame, V6_PAYLOAD_LENGTH, 12)
            };
            let name = format!("{} segments without a TCP header", net.family());
            let expect = Expect::Drop(Truncated);
            cases.push(Case::new(program, name, on(device, frame), expect).gso(1000));
        }
    }
    cases.extend(padded());
    cases
}

/// Ethernet pads short frames: bytes after the packet are valid.
fn padded() -> Vec<Case> {
    let mut cases = Vec::new();
    for net in [V4, V6] {
        let pad = |bytes: &[u8]| [bytes, &[0; 18]].concat();
        let sent = from_a(&net, net.peer, Body::Udp(0));
        let received = received(ENI_1, net.outside, net.a, Body::Udp(0));
        for (program, device, frame, expect) in [
            (Program::FromEndpoint, VETH_A, sent.bytes(), to_eni(&sent)),
            (
                Program::FromNetwork,
                ENI_1,
                received.bytes(),
                to_pod(&received, VETH_A, POD_A),
            ),
        ] {
            let Expect::Redirect(verdict, bytes, mark) = expect else {
                panic!("a good packet is redirected")
            };
            let expect = Expect::Redirect(verdict, pad(&bytes), mark);
            let name = format!("{} padded", net.family());
            cases.push(Case::new(program, name, on(device, pad(&frame)), expect));
        }
    }
    cases
}

#[test]
fn lying_headers_are_dropped_with_their_reason() {
    check_all(&cases());
}

#[test]
fn the_stacks_lying_headers_leave_no_note() {
    let table = Table {
        settings: with_service_nat(),
        prepare: |_| {},
        cases: to_endpoint(),
    };
    table.check();
}
