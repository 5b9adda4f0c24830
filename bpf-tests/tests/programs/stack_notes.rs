//! Entries of flows that the stack carries: their contents, changes by packets, and removal.

use std::net::IpAddr;

use datapath_common::abi::{
    PodTuple, ReapFlow, Room, SharedTable, TrackedFlow, TransportAddr, map,
};
use datapath_common::counter::{NatStat, Program};
use datapath_common::headers::protocol;
use datapath_common::outcome::{DropReason, Verdict};
use datapath_common::progress::{DATA, FIN, RST, STREAM, SYN, tcp};
use loader::bpf::DatapathSettings;
use testkit::packet::{Body, Frame, Macs};
use testkit::testrun::Programs;

use crate::case::{Case, Expect, on, to_eni};
use crate::stack_flows::{into_a, of_eni, of_pod, of_stack, unreachable, up, with_service_nat};
use crate::world::*;

const UDP: Body = Body::Udp(100);
const TCP: Body = Body::Tcp(0);
const SERVED: u16 = 8080;
const ASKER: u16 = 3000;

/// A pod that the stack sends a packet to: its device, MAC and address.
type Receiver = (Device, [u8; 6], IpAddr);

/// Pod A's flow with the peer.
fn tuple(net: &Net, protocol: u8) -> PodTuple {
    PodTuple::new(
        protocol,
        TransportAddr::new(net.a.into(), SERVED.to_be()),
        TransportAddr::new(net.peer.into(), ASKER.to_be()),
    )
}

/// The entry of that flow.
fn note(programs: &Programs, net: &Net, protocol: u8) -> Option<TrackedFlow> {
    let notes = programs.table::<PodTuple, TrackedFlow>(map::STACK).unwrap();
    notes.get(&tuple(net, protocol)).unwrap()
}

/// Changes the entry.
fn change(programs: &Programs, net: &Net, protocol: u8, change: impl FnOnce(&mut TrackedFlow)) {
    let notes = programs.table::<PodTuple, TrackedFlow>(map::STACK).unwrap();
    let mut note = note(programs, net, protocol).unwrap();
    change(&mut note);
    notes.put(&tuple(net, protocol), &note).unwrap();
}

/// Progress of the flow, out and in.
fn shown(programs: &Programs, net: &Net, protocol: u8) -> (u8, u8) {
    let note = note(programs, net, protocol).unwrap();
    (note.progress_out, note.progress_in)
}

fn question(net: &Net, body: Body) -> Frame {
    to_a(net, net.peer, body).ports(ASKER, SERVED)
}

fn answer(net: &Net, body: Body) -> Frame {
    from_a(net, net.peer, body).ports(SERVED, ASKER)
}

/// A packet that the stack sends to pod A, and for which an entry is made.
fn asks(net: &Net, frame: &Frame) -> Case {
    into_a(net, "asks", frame, Verdict::Noted).by(ENI_0, OTHERS)
}

#[test]
fn a_note_says_whose_flow_it_is_and_by_which_eni_it_came() {
    for net in [V4, V6] {
        let mut programs = node_with(&with_service_nat());
        asks(&net, &question(&net, UDP)).check(&mut programs);
        let made = note(&programs, &net, protocol::UDP).unwrap();
        assert_eq!((made.eni, made.endpoint), (0, VETH_A.ifindex));
        assert_eq!((made.progress_out, made.progress_in), (0, DATA));
        assert_eq!(
            (made.dead, u64::from(made.made)),
            (0, made.last_seen & 0xffff_ffff)
        );
        // Another sender of the next packet does not change the recorded origin.
        let by_another =
            into_a(&net, "again", &question(&net, UDP), Verdict::Noted).by(ENI_1, OTHERS);
        by_another.check(&mut programs);
        assert_eq!(note(&programs, &net, protocol::UDP).unwrap().eni, 0);
        // Packets that the pod sends to it leave by the owner.
        let carried = Expect::Stack(Verdict::Carried, OTHERS);
        of_stack(&net, "asks itself", &answer(&net, TCP).tcp(2, 1), carried).check(&mut programs);
        let made = note(&programs, &net, protocol::TCP).unwrap();
        assert_eq!((made.eni, made.endpoint), (1, VETH_A.ifindex));
        assert_eq!((made.progress_out, made.progress_in), (SYN, 0));
    }
}

#[test]
fn notes_and_failures_are_counted_by_family() {
    for net in [V4, V6] {
        let one = DatapathSettings {
            stack: 1,
            ..with_service_nat()
        };
        let mut programs = node_with(&one);
        let is_v4 = net.a.is_ipv4();
        let counts = |programs: &Programs| {
            let of = |stat, is_v4| programs.nat_stat(stat, is_v4).unwrap();
            [
                of(NatStat::StackNoted, is_v4),
                of(NatStat::StackFailed, is_v4),
                of(NatStat::StackNoted, !is_v4),
                of(NatStat::StackFailed, !is_v4),
            ]
        };
        let before = counts(&programs);
        let since = |programs: &Programs| {
            let mut now = counts(programs);
            for (now, before) in now.iter_mut().zip(before) {
                *now -= before;
            }
            now
        };
        for _ in 0..2 {
            asks(&net, &question(&net, UDP)).check(&mut programs);
            assert_eq!(since(&programs), [1, 0, 0, 0], "{}", net.family());
        }
        let mut other = asks(&net, &question(&net, TCP));
        other.expect = Expect::Drop(DropReason::StackFull);
        other.check(&mut programs);
        assert_eq!(since(&programs), [1, 1, 0, 0], "{}", net.family());
    }
}

#[test]
fn a_pod_gets_its_share_of_a_crowded_map_and_leaves_those_of_others() {
    const CAPACITY: u32 = 1024;
    for net in [V4, V6] {
        let settings = DatapathSettings {
            stack: CAPACITY,
            ..with_service_nat()
        };
        let mut programs = node_with(&settings);
        let all_but_shares = Room::of(CAPACITY.into(), CAPACITY).open;
        let room = Room::of(all_but_shares.into(), CAPACITY);
        let rooms = programs.table::<u32, Room>(map::ROOM).unwrap();
        rooms.put(&(SharedTable::Stack as u32), &room).unwrap();
        let full = Expect::Drop(DropReason::StackFull);
        let noted = Expect::Stack(Verdict::Noted, OTHERS);
        let ask = |programs: &mut Programs, pod: Receiver, number: u32, expect: &Expect| {
            let (device, mac, address) = pod;
            let port = ASKER + u16::try_from(number).unwrap();
            let frame =
                Frame::new(Macs::new(device.mac, mac), net.peer, address, UDP).ports(port, SERVED);
            let what = format!("{address} from {port}");
            let (program, frame) = (Program::ToEndpoint, frame.bytes());
            let case = Case::new(program, what, on(device, frame), expect.clone());
            case.by(ENI_0, OTHERS).check(programs);
        };
        let (a, b) = ((VETH_A, POD_A, net.a), (VETH_B, POD_B, net.b));
        for number in 0..room.share {
            ask(&mut programs, a, number, &noted);
        }
        for number in room.share..2 * room.share {
            ask(&mut programs, a, number, &full);
        }
        for number in 0..room.share {
            ask(&mut programs, b, number, &noted);
        }
        // An entry that is removed gives its share back.
        let reaper = programs.reaper(VETH_A.ifindex).unwrap();
        let gone = [(tuple(&net, protocol::UDP), ReapFlow::ALWAYS)];
        assert_eq!(reaper.stack(&gone).unwrap(), 1);
        ask(&mut programs, a, room.share, &noted);
        ask(&mut programs, a, room.share + 1, &full);
    }
}

#[test]
fn a_note_follows_its_connection() {
    for net in [V4, V6] {
        let mut programs = node_with(&with_service_nat());
        let request = |flags| asks(&net, &question(&net, TCP).tcp(flags, 1));
        let answered = |flags| of_pod(&net, "answers", &answer(&net, TCP).tcp(flags, 1), up(0));
        let comes = |flags| {
            let frame = question(&net, TCP).macs(STRANGER, ENI_1.mac);
            of_eni(&net, "comes", &frame.tcp(flags, 1), up(1))
        };
        let (ack, syn, fin, rst) = (tcp::ACK, tcp::SYN, tcp::FIN, tcp::RST);
        for (case, expected) in [
            (request(syn), (0, SYN)),
            // The pod's SYN, with or without ACK, begins a new connection.
            (answered(syn | ack), (SYN, 0)),
            (request(ack), (SYN, DATA)),
            (answered(ack), (SYN | DATA, DATA)),
            (comes(fin | ack), (SYN | DATA, DATA | FIN)),
            (comes(rst), (SYN | DATA, DATA | FIN | RST)),
            // The connection continues: its end has ignored the reset.
            (answered(ack), (SYN | DATA, DATA | FIN)),
            (answered(rst), (SYN | DATA | RST, DATA | FIN)),
            (answered(syn), (SYN, 0)),
        ] {
            case.check(&mut programs);
            assert_eq!(
                shown(&programs, &net, protocol::TCP),
                expected,
                "{}",
                case.name
            );
        }
    }
}

#[test]
fn what_goes_both_ways_for_more_than_two_seconds_is_a_stream() {
    let second = loader::bpf::jiffies_per_second().unwrap();
    for net in [V4, V6] {
        let mut programs = node_with(&with_service_nat());
        let ask = asks(&net, &question(&net, UDP));
        let reply = of_pod(&net, "answers", &answer(&net, UDP), up(0));
        let age = |programs: &Programs, protocol, seconds: u32| {
            change(programs, &net, protocol, |note| {
                note.made = note.made.wrapping_sub(seconds * second);
            });
        };
        ask.check(&mut programs);
        age(&programs, protocol::UDP, 10);
        ask.check(&mut programs);
        reply.check(&mut programs);
        // Only now have both sides sent.
        assert_eq!(shown(&programs, &net, protocol::UDP), (DATA, DATA));
        reply.check(&mut programs);
        assert_eq!(shown(&programs, &net, protocol::UDP), (DATA | STREAM, DATA));
        ask.check(&mut programs);
        let both = (DATA | STREAM, DATA | STREAM);
        assert_eq!(shown(&programs, &net, protocol::UDP), both);
        // TCP has flags of its own for that.
        let segment = asks(&net, &question(&net, TCP).tcp(tcp::ACK, 1));
        segment.check(&mut programs);
        age(&programs, protocol::TCP, 10);
        let reply = of_pod(&net, "answers", &answer(&net, TCP).tcp(tcp::ACK, 1), up(0));
        reply.check(&mut programs);
        reply.check(&mut programs);
        assert_eq!(shown(&programs, &net, protocol::TCP), (DATA, DATA));
    }
}

#[test]
fn packets_keep_a_note_alive_and_errors_do_not() {
    for net in [V4, V6] {
        let mut programs = node_with(&with_service_nat());
        let ask = asks(&net, &question(&net, UDP));
        ask.check(&mut programs);
        let first = note(&programs, &net, protocol::UDP).unwrap().last_seen;
        let again = question(&net, UDP).macs(STRANGER, ENI_1.mac);
        let kind = unreachable(&net);
        let of_a = from_a(&net, net.peer, kind).quoting(&question(&net, UDP), 128);
        let to_a = received(ENI_1, net.peer, net.a, kind).quoting(&answer(&net, UDP), 128);
        for (case, is_packet) in [
            (ask, true),
            (of_pod(&net, "answers", &answer(&net, UDP), up(0)), true),
            (of_eni(&net, "comes", &again, up(1)), true),
            (of_pod(&net, "an error of A", &of_a, up(0)), false),
            (of_eni(&net, "an error for A", &to_a, up(1)), false),
        ] {
            change(&programs, &net, protocol::UDP, |note| note.last_seen = 1);
            case.check(&mut programs);
            let last_seen = note(&programs, &net, protocol::UDP).unwrap().last_seen;
            assert_eq!(last_seen >= first, is_packet, "{}", case.name);
        }
    }
}

#[test]
fn a_note_that_is_being_removed_is_none() {
    for net in [V4, V6] {
        let mut programs = node_with(&with_service_nat());
        let ask = asks(&net, &question(&net, UDP));
        ask.check(&mut programs);
        change(&programs, &net, protocol::UDP, |note| {
            note.dead = 1;
            note.last_seen = 1;
        });
        let frame = answer(&net, UDP);
        of_pod(&net, "past the stack", &frame, to_eni(&frame)).check(&mut programs);
        // The next packet finds no live entry.
        ask.check(&mut programs);
        assert_eq!(note(&programs, &net, protocol::UDP).unwrap().dead, 1);
    }
}

#[test]
fn the_reaper_removes_notes_that_have_stayed_idle() {
    for net in [V4, V6] {
        let mut programs = node_with(&with_service_nat());
        let is_v4 = net.a.is_ipv4();
        for body in [UDP, TCP] {
            asks(&net, &question(&net, body)).check(&mut programs);
        }
        let removed = programs.nat_stat(NatStat::StackRemoved, is_v4).unwrap();
        let reaper = programs.reaper(VETH_A.ifindex).unwrap();
        let (udp, tcp) = (tuple(&net, protocol::UDP), tuple(&net, protocol::TCP));
        let last_seen = note(&programs, &net, protocol::UDP).unwrap().last_seen;
        // A flow that was seen since, or of the other kind, is not removed.
        assert_eq!(reaper.stack(&[(udp, last_seen - 1)]).unwrap(), 0);
        assert_eq!(reaper.inbound(&[(udp, ReapFlow::ALWAYS)]).unwrap(), 0);
        assert!(note(&programs, &net, protocol::UDP).is_some());
        assert_eq!(reaper.stack(&[(udp, last_seen)]).unwrap(), 1);
        assert_eq!(
            reaper.stack(&[(tcp, ReapFlow::ALWAYS), (udp, 1)]).unwrap(),
            1
        );
        for protocol in [protocol::UDP, protocol::TCP] {
            assert!(note(&programs, &net, protocol).is_none());
        }
        let now = programs.nat_stat(NatStat::StackRemoved, is_v4).unwrap();
        assert_eq!(now - removed, 2, "{}", net.family());
        let frame = answer(&net, UDP);
        of_pod(&net, "past the stack", &frame, to_eni(&frame)).check(&mut programs);
    }
}
