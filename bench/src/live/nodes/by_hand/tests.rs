//! Results of the programs with checks.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

use datapath_common::abi::AddressEntry;
use testkit::packet::{Body, Frame, Macs};
use testkit::testrun::tables::{Given, Made};

use super::checks::{COUNTER, ENDPOINT, SEEN, STATE, mapped};
use super::*;

/// The device that test runs are on by default: `lo`, as the kernel numbers it.
const DEVICE: u32 = 1;
const ACCEPT: i32 = 0;
const DROP: i32 = 2;
const PASS: i32 = -1;
/// A datagram's and a connection's destination.
const REMOTE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const SYN: u8 = 2;
const FIN: u8 = 1;
const RST: u8 = 4;
const ACK: u8 = 16;
const ENDS: Ends = Ends {
    inside: Ipv4Addr::new(10, 0, 1, 10),
    outside: Ipv4Addr::LOCALHOST,
    device: DEVICE,
};

/// The programs of the measurements, with their tables, for the kernel's test run.
struct Floor {
    flows: OwnMap,
    checks: Checks,
    out: OwnProgram,
    back: OwnProgram,
}

impl Floor {
    fn new() -> Self {
        let flows = OwnMap::new(Kind::Hash, EntrySize::new(KEY_SIZE, VALUE_SIZE), 64).unwrap();
        let checks = Checks::new(ENDS).unwrap();
        let load = |code: Vec<u64>| OwnProgram::load(&code).unwrap();
        Self {
            out: load(out(&flows, ENDS, Some(&checks), Action::Accept)),
            back: load(back(&flows, ENDS, Some(&checks), Action::Accept)),
            checks,
            flows,
        }
    }

    fn sends(&self, frame: &Frame) -> Made {
        run(&self.out, frame)
    }

    fn receives(&self, frame: &Frame) -> Made {
        run(&self.back, frame)
    }

    /// Sends a packet of the pod and its answer, and expects that both pass.
    fn exchanges(&self, sent: &Frame) {
        assert_eq!(self.sends(sent).code, ACCEPT);
        assert_eq!(self.receives(&answer(sent)).code, ACCEPT);
    }

    /// Value of the flow of a packet that the pod sends.
    fn flow(&self, sent: &Frame) -> Vec<u8> {
        let mut values = self.flows.get(&key(sent)).unwrap();
        values.pop().expect("a flow")
    }

    /// Changes a part of a flow's value.
    fn set(&self, sent: &Frame, at: i16, part: &[u8]) {
        let mut flow = self.flow(sent);
        flow[place(at, part.len())].copy_from_slice(part);
        self.flows.put(&key(sent), &flow).unwrap();
    }

    /// Packets and bytes that passed, on all CPUs.
    fn counted(&self) -> (u64, u64) {
        let values = self.checks.counters.get(&COUNTER.to_ne_bytes()).unwrap();
        let sum = |at| values.iter().map(|value| word(value, at)).sum();
        (sum(0), sum(8))
    }

    /// Flows of the endpoint.
    fn opened(&self) -> u64 {
        let values = self.checks.quota.get(&ENDPOINT.to_ne_bytes()).unwrap();
        word(values.first().expect("a quota"), 0)
    }
}

/// The key of the flow of a packet that the pod sends.
fn key(sent: &Frame) -> Vec<u8> {
    let protocol = match sent.body {
        Body::Tcp(_) => libc::IPPROTO_TCP,
        _ => libc::IPPROTO_UDP,
    };
    let IpAddr::V4(remote) = sent.destination else {
        panic!("a packet of IPv4");
    };
    let ports = [sent.ports.1, sent.ports.0].map(u16::to_be_bytes);
    let protocol = protocol.to_ne_bytes();
    [&remote.octets()[..], &ports.concat(), &protocol].concat()
}

fn place(at: i16, length: usize) -> std::ops::Range<usize> {
    let at = usize::from(at.unsigned_abs());
    at..at + length
}

fn word(value: &[u8], at: i16) -> u64 {
    u64::from_ne_bytes(value[place(at, 8)].try_into().unwrap())
}

fn run(program: &OwnProgram, frame: &Frame) -> Made {
    let given = Given {
        frame: &frame.bytes(),
        ifindex: DEVICE,
        ingress_ifindex: 0,
        mark: 0,
        gso_size: 0,
        is_summed: false,
    };
    program.runner().run(&given).unwrap()
}

fn frame(from: Ipv4Addr, to: Ipv4Addr, body: Body) -> Frame {
    let macs = Macs::new([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    Frame::new(macs, from.into(), to.into(), body)
}

/// Packets that open a flow, one for each protocol.
fn openings() -> [Frame; 2] {
    [
        frame(ENDS.inside, REMOTE, Body::Tcp(0)).tcp(SYN, 1),
        frame(ENDS.inside, REMOTE, Body::Udp(3)),
    ]
}

/// The answer to a packet of the pod, once that has been translated.
fn answer(sent: &Frame) -> Frame {
    let mut answer = sent.clone();
    (answer.source, answer.destination) = (sent.destination, ENDS.outside.into());
    answer.ports = (sent.ports.1, sent.ports.0);
    answer
}

#[test]
fn a_flow_is_translated_both_ways() {
    let floor = Floor::new();
    for sent in openings() {
        let stray = floor.receives(&answer(&sent));
        assert_eq!((stray.code, stray.frame), (PASS, answer(&sent).bytes()));
        // The first one is new, the other one is known.
        for _ in 0..2 {
            let made = floor.sends(&sent);
            let mut left = sent.clone().hop_limit(63);
            left.source = ENDS.outside.into();
            assert_eq!((made.code, made.frame), (ACCEPT, left.bytes()));
            let made = floor.receives(&answer(&sent));
            let mut delivered = answer(&sent).hop_limit(63);
            delivered.destination = ENDS.inside.into();
            assert_eq!((made.code, made.frame), (ACCEPT, delivered.bytes()));
        }
    }
}

#[test]
fn what_fails_a_check_opens_nothing() {
    for sent in openings() {
        let to = |to: Ipv4Addr| sent.clone().to(to.into(), 80);
        let other_source = sent
            .clone()
            .from(Ipv4Addr::new(10, 0, 1, 11).into(), 40_000);
        let floor = Floor::new();
        for (check, frame) in [
            ("TTL", sent.clone().hop_limit(1)),
            ("an address of nobody's", other_source),
            ("an exempt destination", to(Ipv4Addr::new(10, 0, 9, 9))),
        ] {
            assert_eq!(floor.sends(&frame).code, DROP, "{check}");
        }
        assert_eq!(
            floor.receives(&answer(&sent)).code,
            PASS,
            "a flow was opened"
        );
        assert_eq!(floor.sends(&sent).code, ACCEPT);

        let floor = Floor::new();
        let entry = [0; size_of::<AddressEntry>()];
        floor.checks.addresses.put(&mapped(REMOTE), &entry).unwrap();
        assert_eq!(floor.sends(&sent).code, DROP, "a destination on the node");

        let floor = Floor::new();
        let entry = [77; size_of::<AddressEntry>()];
        let own = mapped(ENDS.inside);
        floor.checks.addresses.put(&own, &entry).unwrap();
        assert_eq!(floor.sends(&sent).code, DROP, "another pod's device");

        let floor = Floor::new();
        let many = u64::from(u32::MAX).to_ne_bytes();
        floor.checks.quota.put(&[0; 4], &many).unwrap();
        assert_eq!(floor.sends(&sent).code, DROP, "too many flows");
    }
}

#[test]
fn a_port_of_the_hosts_is_left_alone() {
    let floor = Floor::new();
    let [tcp, udp] = openings();
    let listener = TcpListener::bind((ENDS.outside, 0)).unwrap();
    let socket = UdpSocket::bind((ENDS.outside, 0)).unwrap();
    let taken = listener.local_addr().unwrap().port();
    assert_eq!(floor.sends(&tcp.clone().ports(taken, 80)).code, DROP);
    let taken = socket.local_addr().unwrap().port();
    assert_eq!(floor.sends(&udp.clone().ports(taken, 53)).code, DROP);
    drop((listener, socket));
    assert_eq!(floor.sends(&udp.ports(taken, 53)).code, ACCEPT);
}

#[test]
fn a_known_flow_is_its_pods_and_as_old_as_the_rules() {
    for sent in openings() {
        let floor = Floor::new();
        assert_eq!(floor.sends(&sent).code, ACCEPT);
        let other = sent
            .clone()
            .from(Ipv4Addr::new(10, 0, 1, 11).into(), 40_000);
        assert_eq!(floor.sends(&other).code, DROP, "another pod's flow");
        assert_eq!(floor.sends(&sent.clone().hop_limit(1)).code, DROP, "TTL");
        assert_eq!(floor.sends(&sent).code, ACCEPT);
        floor.checks.generation.put(&[0; 4], &[1; 4]).unwrap();
        assert_eq!(floor.sends(&sent).code, DROP, "rules changed");
        assert_eq!(floor.receives(&answer(&sent)).code, DROP, "rules changed");
    }
}

#[test]
fn every_packet_that_is_let_through_is_counted_and_no_other() {
    for sent in openings() {
        let floor = Floor::new();
        floor.exchanges(&sent);
        floor.exchanges(&sent);
        let bytes = 2 * (sent.bytes().len() + answer(&sent).bytes().len());
        let counted = (4, u64::try_from(bytes).unwrap());
        assert_eq!(floor.counted(), counted);
        assert_eq!(floor.sends(&sent.clone().hop_limit(1)).code, DROP);
        assert_eq!(floor.counted(), counted);
    }
}

#[test]
fn a_flow_is_counted_once() {
    let floor = Floor::new();
    for (count, sent) in (1..).zip(openings()) {
        floor.exchanges(&sent);
        floor.exchanges(&sent);
        assert_eq!(floor.opened(), count);
    }
}

#[test]
fn a_flows_time_is_written_again_when_it_is_old() {
    for sent in openings() {
        for from_pod in [true, false] {
            let sees = |floor: &Floor| {
                let made = if from_pod {
                    floor.sends(&sent)
                } else {
                    floor.receives(&answer(&sent))
                };
                assert_eq!(made.code, ACCEPT);
            };
            let floor = Floor::new();
            floor.exchanges(&sent);
            let opened = word(&floor.flow(&sent), SEEN);
            assert_ne!(opened, 0);
            floor.set(&sent, SEEN, &0_u64.to_ne_bytes());
            sees(&floor);
            let seen = word(&floor.flow(&sent), SEEN);
            assert!(seen >= opened, "{seen} after {opened}");
            // A time just before, which a new time would differ from.
            let recently = seen - 1;
            floor.set(&sent, SEEN, &recently.to_ne_bytes());
            sees(&floor);
            assert_eq!(word(&floor.flow(&sent), SEEN), recently);
        }
    }
}

#[test]
fn a_flow_knows_which_of_its_segments_end_it() {
    let [opening, _] = openings();
    for from_pod in [true, false] {
        for end in [FIN, RST] {
            let floor = Floor::new();
            floor.exchanges(&opening);
            let state = || floor.flow(&opening)[place(STATE, 1)].to_vec();
            let sees = |flags| {
                let segment = opening.clone().tcp(flags, 2);
                let made = if from_pod {
                    floor.sends(&segment)
                } else {
                    floor.receives(&answer(&segment))
                };
                assert_eq!(made.code, ACCEPT);
            };
            sees(ACK);
            assert_eq!(state(), [0]);
            sees(ACK | end);
            assert_eq!(state(), [end]);
            // A later packet does not revert the state.
            sees(ACK);
            assert_eq!(state(), [end]);
        }
    }
}
