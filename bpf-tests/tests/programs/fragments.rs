//! Floods of fragments, and datagrams of other pods that are on their way at the same time.

use std::ops::Range;

use datapath_common::abi::{Datagram, DatagramKey, FragmentRing, MAX_FRAGMENTS, map};
use datapath_common::counter::Program;
use loader::bpf::DatapathSettings;
use testkit::packet::{Body, Frame, Macs, Piece};
use testkit::testrun::pool::Lease;
use testkit::testrun::{DROP, Input, Programs, REDIRECT};

use crate::stack_flows::{unreachable, with_service_nat};
use crate::world::*;

const DATAGRAM: Body = Body::Udp(120);
/// Datagrams of a flood: more than the map has room for.
const FLOOD: u16 = 10_000;
/// Datagrams of an endpoint in one direction that have a record.
#[expect(clippy::cast_possible_truncation, reason = "a ring has few slots")]
const SLOTS: u16 = FragmentRing::SLOTS as u16;

const _: () = assert!(FLOOD as u32 > MAX_FRAGMENTS);

/// Datagrams that take one way, each in two fragments.
struct Stream {
    name: &'static str,
    program: Program,
    device: Device,
    frame: Frame,
    /// Length of a fragment in bytes.
    half: usize,
}

impl Stream {
    fn new(name: &'static str, program: Program, device: Device, frame: Frame) -> Self {
        let half = match frame.body {
            Body::Protocol(_) => 16,
            _ => 64,
        };
        Self {
            name,
            program,
            device,
            frame,
            half,
        }
    }

    /// Runs the first or the later fragment of a datagram; returns the program's code.
    fn run(&self, programs: &mut Programs, id: u16, is_first: bool) -> i32 {
        let piece = Piece {
            offset: if is_first { 0 } else { self.half },
            length: self.half,
            more: is_first,
            id,
        };
        let input = Input {
            frame: self.frame.clone().piece(piece).bytes(),
            ifindex: self.device.ifindex,
            ingress_ifindex: self.device.ifindex,
            mark: MARK_IN,
            gso_size: 0,
        };
        programs.run(self.program, &input).unwrap().code
    }

    /// Passes the first fragment of a datagram.
    #[track_caller]
    fn begin(&self, programs: &mut Programs, id: u16) {
        let code = self.run(programs, id, true);
        assert_eq!(code, REDIRECT, "{}: first fragment of {id}", self.name);
    }

    /// Passes the later fragment of a datagram.
    #[track_caller]
    fn end(&self, programs: &mut Programs, id: u16, after: &str) {
        let code = self.run(programs, id, false);
        assert_eq!(code, REDIRECT, "{}: rest of {id} after {after}", self.name);
    }

    /// Passes first fragments, and no others.
    fn flood(&self, programs: &mut Programs, ids: Range<u16>) {
        for id in ids {
            self.begin(programs, id);
        }
    }
}

/// The node, with pods A and C on ENI 1.
fn two_pods(settings: &DatapathSettings) -> Lease<Programs> {
    let mut programs = node_with(settings);
    let c = endpoint(1, ENI_1.ifindex, IF_C, ENI_MTU);
    for net in [V4, V6] {
        programs.put_address(net.c, c).unwrap();
    }
    programs
}

/// Streams of a pod's flow to the outside: its questions, answers to them, and ICMP errors.
fn of_flow(net: &Net, pod: Interface, port: u16) -> [Stream; 3] {
    let address = if pod.mac == POD_A { net.a } else { net.c };
    let question = sent(pod, address, net.outside, DATAGRAM).ports(port, 53);
    let answer = received(ENI_1, net.outside, net.snat[1], DATAGRAM).ports(53, port);
    let left = Frame::new(
        Macs::new(ENI_1.mac, STRANGER),
        net.snat[1],
        net.outside,
        DATAGRAM,
    );
    let error = received(ENI_1, net.peer, net.snat[1], unreachable(net));
    let error = error.quoting(&left.ports(port, 53), 120);
    [
        Stream::new("questions", Program::FromEndpoint, pod.device, question),
        Stream::new("answers", Program::FromNetwork, ENI_1, answer),
        Stream::new("ICMP errors", Program::FromNetwork, ENI_1, error),
    ]
}

/// The node with a flow of each pod to the outside, and the streams of A's flow and of C's.
fn flows(net: &Net) -> (Lease<Programs>, [[Stream; 3]; 2]) {
    let mut programs = two_pods(&settings());
    let pods = [(IF_A, 50_000), (IF_C, 50_001)];
    let flows = pods.map(|(pod, port)| {
        let streams = of_flow(net, pod, port);
        streams[0].begin(&mut programs, u16::MAX);
        streams
    });
    (programs, flows)
}

/// Number of datagrams with a record.
fn records(programs: &Programs) -> usize {
    let records = programs.table::<DatagramKey, Datagram>(map::FRAGMENTS);
    records.unwrap().entries().unwrap().len()
}

#[test]
fn a_flood_leaves_the_datagrams_of_other_pods() {
    for net in [V4, V6] {
        let (mut programs, [of_a, of_c]) = flows(&net);
        for (id, flood) in (FLOOD..).zip(&of_a) {
            for stream in &of_c {
                stream.begin(&mut programs, id);
            }
            flood.flood(&mut programs, 0..FLOOD);
            for stream in &of_c {
                stream.end(&mut programs, id, flood.name);
            }
        }
    }
}

#[test]
fn a_flood_in_one_direction_leaves_the_other() {
    for net in [V4, V6] {
        let (mut programs, [[questions, answers, errors], _]) = flows(&net);
        for (kept, flood) in [
            (&questions, &answers),
            (&questions, &errors),
            (&answers, &questions),
        ] {
            kept.begin(&mut programs, FLOOD);
            flood.flood(&mut programs, 0..FLOOD);
            kept.end(&mut programs, FLOOD, flood.name);
        }
    }
}

#[test]
fn an_endpoint_has_records_of_its_latest_datagrams() {
    for net in [V4, V6] {
        let (mut programs, [of_a, _]) = flows(&net);
        for stream in &of_a {
            programs.forget_fragments().unwrap();
            stream.flood(&mut programs, 0..FLOOD);
            assert_eq!(records(&programs), usize::from(SLOTS), "{}", stream.name);
            for id in FLOOD - SLOTS..FLOOD {
                stream.end(&mut programs, id, "its own flood");
            }
            let earlier = stream.run(&mut programs, FLOOD - SLOTS - 1, false);
            assert_ne!(earlier, REDIRECT, "{}", stream.name);
        }
    }
}

/// A datagram whose identification was used before has two slots. The next datagram of its first
/// slot leaves its record.
#[test]
fn the_latest_slot_of_a_datagram_decides() {
    for net in [V4, V6] {
        let (mut programs, [[questions, ..], _]) = flows(&net);
        questions.flood(&mut programs, 0..10);
        questions.begin(&mut programs, 0);
        questions.flood(&mut programs, 10..9 + SLOTS);
        questions.end(&mut programs, 0, "all but one of a round");
        questions.begin(&mut programs, FLOOD);
        let late = questions.run(&mut programs, 0, false);
        assert_eq!(late, DROP, "{} after a round", net.family());
    }
}

/// With service NAT, datagrams to a pod's own address have records too, also those without ports
/// and those whose later fragment comes first.
#[test]
fn a_flood_to_a_pods_own_address_leaves_the_datagrams_of_other_pods() {
    for net in [V4, V6] {
        let mut programs = two_pods(&with_service_nat());
        let to = |pod, body| {
            let frame = received(ENI_1, net.peer, pod, body).ports(9000, 9001);
            Stream::new("datagrams", Program::FromNetwork, ENI_1, frame)
        };
        let (kept, flood) = (to(net.c, DATAGRAM), to(net.a, DATAGRAM));
        let portless = to(net.a, Body::Protocol(47));
        kept.begin(&mut programs, 1);
        flood.flood(&mut programs, 0..FLOOD);
        kept.end(&mut programs, 1, "first fragments");
        kept.begin(&mut programs, 2);
        portless.flood(&mut programs, 0..FLOOD);
        kept.end(&mut programs, 2, "first fragments without ports");
        kept.begin(&mut programs, 3);
        for id in FLOOD..2 * FLOOD {
            flood.run(&mut programs, id, false);
        }
        kept.end(&mut programs, 3, "later fragments");
        // Each later fragment of a datagram finds the record that the first of them has made.
        programs.forget_fragments().unwrap();
        for _ in 0..SLOTS {
            flood.run(&mut programs, 1, false);
        }
        flood.run(&mut programs, 2, false);
        let rings = programs.table::<u32, FragmentRing>(map::FRAGMENT_RINGS);
        let rings = rings.unwrap().entries().unwrap();
        let counts: Vec<u32> = rings.into_iter().map(|(_, ring)| ring.count).collect();
        assert_eq!(counts, [2], "{}", net.family());
    }
}
