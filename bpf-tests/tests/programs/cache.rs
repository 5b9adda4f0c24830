//! The flow cache: hits, lifetime of entries, and invalidation. Comparison with the model shows
//! that the cache changes no packet's outcome, while addresses and flows change (`fuzz`, and
//! `faults` for the comparison).
//!
//! To see if an entry served a packet, tests remove its flow without invalidating the cache: a
//! packet without an entry opens the flow again.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use datapath_common::abi::{
    Addr, AddressEntry, EniAddresses, EniEntry, Flow, FlowKey, FlowQuotas, map,
};
use datapath_common::counter::{NatStat, Program};
use datapath_common::progress::{self, tcp};
use loader::bpf::{DatapathMode, DatapathSettings};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use testkit::packet::{Body, Frame};
use testkit::testrun::scene::{IF_B, received};
use testkit::testrun::tables::Table;
use testkit::testrun::{DROP, Input, Output, PASS, Programs, REDIRECT};

use crate::world::*;

/// Progress of one side of an established connection.
const GOES_ON: u8 = progress::SYN | progress::DATA;
/// The last segment of one side.
const END: u8 = tcp::ACK | tcp::FIN;
/// Lower limit of an entry's lifetime.
const LASTS: Duration = Duration::from_millis(400);

/// Pins this test to its CPU, since each has a cache of its own, with real-time priority, since
/// entries last for half a second.
pub(crate) fn pinned<T>(programs: T) -> T {
    let mut here = CpuSet::new();
    here.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &here).unwrap();
    let chrt = Command::new("chrt")
        .args(["--fifo", "--pid", "1", &gettid().to_string()])
        .status()
        .expect("chrt, of the package util-linux");
    assert!(chrt.success(), "{chrt}");
    programs
}

/// Runs a case with a single slot.
///
/// It repeats a case if the machine paused for so long that an entry may have expired, because the
/// slot's owner is then undetermined.
fn in_time<T>(case: impl Fn(&mut Programs) -> T) -> T {
    for _ in 0..10 {
        let mut programs = pinned(node_with(&with_cache(1)));
        let began = Instant::now();
        let shown = case(&mut programs);
        if began.elapsed() < LASTS {
            return shown;
        }
    }
    panic!("no run of ten took less than {LASTS:?}");
}

/// Settings with a number of slots.
fn with_cache(cache: u32) -> DatapathSettings {
    DatapathSettings {
        cache,
        ..settings()
    }
}

/// A segment of a pod's connection to the outside.
fn segment(net: &Net, flags: u8) -> Frame {
    from_a(net, net.outside, Body::Tcp(10))
        .ports(50_000, 80)
        .tcp(flags, 1)
}

/// Result of a program for a frame that a device has received.
pub(crate) fn run(
    programs: &mut Programs,
    program: Program,
    device: Device,
    frame: &Frame,
) -> Output {
    let input = Input {
        frame: frame.bytes(),
        ifindex: device.ifindex,
        ingress_ifindex: device.ifindex,
        mark: 0,
        gso_size: 0,
    };
    programs.run(program, &input).unwrap()
}

/// Sends a packet of the pod, and returns the resulting frame.
fn send(programs: &mut Programs, frame: &Frame) -> Vec<u8> {
    let output = run(programs, Program::FromEndpoint, VETH_A, frame);
    assert_eq!(output.code, REDIRECT);
    output.frame
}

/// Sends an answer of the outside, and returns the resulting frame.
fn receive(programs: &mut Programs, net: &Net, flags: u8) -> Vec<u8> {
    let frame = received(ENI_1, net.outside, net.snat[1], Body::Tcp(10));
    let frame = frame.ports(80, 50_000).tcp(flags, 1);
    let output = run(programs, Program::FromNetwork, ENI_1, &frame);
    assert_eq!(output.code, REDIRECT);
    output.frame
}

/// Progress of both directions of the one flow.
fn shown(programs: &Programs, net: &Net) -> (u8, u8) {
    let (_, flow) = flows(programs, net)[0];
    (flow.progress_out, flow.progress_in)
}

fn table(programs: &Programs, net: &Net) -> Table<FlowKey, Flow> {
    let name = if net.a.is_ipv4() {
        map::FLOWS_V4
    } else {
        map::FLOWS_V6
    };
    programs.table(name).unwrap()
}

fn flows(programs: &Programs, net: &Net) -> Vec<(FlowKey, Flow)> {
    table(programs, net).entries().unwrap()
}

fn lose_flows(programs: &Programs, net: &Net) {
    for name in [map::FLOWS_V4, map::FLOWS_V6] {
        let table = programs.table::<FlowKey, Flow>(name).unwrap();
        for (key, _) in table.entries().unwrap() {
            table.lose(&key).unwrap();
        }
    }
    assert_eq!(flows(programs, net), []);
}

/// Opens the connection and caches it; returns the result for a segment.
fn open(programs: &mut Programs, net: &Net) -> Vec<u8> {
    send(programs, &segment(net, tcp::SYN));
    let first = send(programs, &segment(net, tcp::ACK));
    for _ in 0..3 {
        assert_eq!(send(programs, &segment(net, tcp::ACK)), first);
    }
    first
}

#[test]
fn a_flow_is_served_until_something_is_written() {
    for net in [V4, V6] {
        let mut programs = pinned(node());
        let became = open(&mut programs, &net);
        lose_flows(&programs, &net);
        assert_eq!(send(&mut programs, &segment(&net, tcp::ACK)), became);
        assert_eq!(flows(&programs, &net), [], "it was looked at");
        // Every write of the agent invalidates all entries.
        let other = endpoint(0, ENI_0.ifindex, IF_B, POD_B_MTU);
        programs.put_address(net.b, other).unwrap();
        send(&mut programs, &segment(&net, tcp::ACK));
        assert_eq!(flows(&programs, &net).len(), 1, "it was served");
    }
}

#[test]
fn a_connection_is_served_once_its_flow_knows_that_it_goes_on() {
    for net in [V4, V6] {
        let mut programs = pinned(node());
        send(&mut programs, &segment(&net, tcp::SYN));
        receive(&mut programs, &net, tcp::SYN | tcp::ACK);
        let out = send(&mut programs, &segment(&net, tcp::ACK));
        let back = receive(&mut programs, &net, tcp::ACK);
        assert_eq!(shown(&programs, &net), (GOES_ON, GOES_ON));
        lose_flows(&programs, &net);
        assert_eq!(send(&mut programs, &segment(&net, tcp::ACK)), out);
        assert_eq!(receive(&mut programs, &net, tcp::ACK), back);
        assert_eq!(flows(&programs, &net), [], "it was looked at");
    }
}

/// If the entry of the pod's address is missing, a segment that the cache does not serve is
/// dropped.
#[test]
fn all_of_a_connection_but_what_opens_it_is_served() {
    for net in [V4, V6] {
        let mut programs = pinned(node());
        send(&mut programs, &segment(&net, tcp::SYN));
        receive(&mut programs, &net, tcp::SYN | tcp::ACK);
        let addresses = programs.table::<Addr, AddressEntry>(map::ADDRESSES);
        let addresses = addresses.unwrap();
        let entry = addresses.get(&net.a.into()).unwrap().unwrap();
        // Without invalidating the cache.
        addresses.lose(&net.a.into()).unwrap();
        for flags in [tcp::ACK, tcp::ACK, END, tcp::ACK] {
            send(&mut programs, &segment(&net, flags));
            receive(&mut programs, &net, tcp::ACK);
        }
        addresses.put(&net.a.into(), &entry).unwrap();
        let ended = GOES_ON | progress::FIN;
        assert_eq!(shown(&programs, &net), (ended, GOES_ON));
    }
}

#[test]
fn what_a_segment_shows_first_is_looked_at_where_the_flow_cannot_be_told() {
    for (before, flags) in [(vec![tcp::SYN], tcp::ACK), (vec![tcp::SYN, tcp::ACK], END)] {
        let mut programs = pinned(node());
        for flags in before {
            send(&mut programs, &segment(&V4, flags));
        }
        lose_flows(&programs, &V4);
        send(&mut programs, &segment(&V4, flags));
        assert_eq!(flows(&programs, &V4).len(), 1, "{flags:#x}: it was served");
    }
}

#[test]
fn a_connections_end_is_told_and_what_comes_behind_it_is_served() {
    for net in [V4, V6] {
        let mut programs = pinned(node());
        let out = open(&mut programs, &net);
        receive(&mut programs, &net, tcp::SYN | tcp::ACK);
        let back = receive(&mut programs, &net, tcp::ACK);
        let ended = GOES_ON | progress::FIN;
        send(&mut programs, &segment(&net, END));
        assert_eq!(shown(&programs, &net), (ended, GOES_ON));
        // No socket of the pod says that it is one.
        receive(&mut programs, &net, END);
        assert_eq!(shown(&programs, &net), (ended, GOES_ON | progress::DOUBT));
        for _ in 0..2 {
            send(&mut programs, &segment(&net, tcp::ACK));
            receive(&mut programs, &net, tcp::ACK);
        }
        assert_eq!(shown(&programs, &net), (ended, GOES_ON));
        lose_flows(&programs, &net);
        assert_eq!(send(&mut programs, &segment(&net, tcp::ACK)), out);
        assert_eq!(receive(&mut programs, &net, tcp::ACK), back);
        assert_eq!(flows(&programs, &net), [], "it was looked at");
    }
}

#[test]
fn a_slot_whose_connection_has_ended_goes_to_the_next_one_with_its_syn() {
    for (end, is_served) in [(tcp::ACK, false), (END, true)] {
        let shown = in_time(|programs| {
            open(programs, &V4);
            send(programs, &segment(&V4, end));
            let next = |flags| segment(&V4, flags).ports(50_001, 80);
            send(programs, &next(tcp::SYN));
            let became = send(programs, &next(tcp::ACK));
            lose_flows(programs, &V4);
            let again = send(programs, &next(tcp::ACK));
            (again == became, flows(programs, &V4).is_empty())
        });
        assert_eq!(shown, (true, is_served), "{end:#x}");
    }
}

/// Marks the end of the only flow's connection as confirmed, as the pod's socket would.
fn believe(programs: &Programs, net: &Net) {
    let (key, mut flow) = flows(programs, net)[0];
    flow.progress_in = progress::DATA | progress::FIN;
    table(programs, net).put(&key, &flow).unwrap();
}

#[test]
fn the_end_of_the_next_connection_on_the_same_ports_is_told_too() {
    let mut programs = pinned(node());
    for _ in 0..2 {
        open(&mut programs, &V4);
        // No segment from the outside, as reverting its progress would itself drop the entries.
        receive(&mut programs, &V4, tcp::ACK);
        send(&mut programs, &segment(&V4, END));
        receive(&mut programs, &V4, END);
        let (out, inward) = shown(&programs, &V4);
        assert_eq!(out, GOES_ON | progress::FIN);
        assert_eq!(inward, progress::DATA | progress::DOUBT);
        believe(&programs, &V4);
    }
}

#[test]
fn a_slot_that_is_anothers_goes_to_no_single_segment() {
    let mut programs = pinned(node_with(&with_cache(1)));
    let became = open(&mut programs, &V4);
    let other = segment(&V4, tcp::ACK).ports(50_001, 80);
    send(&mut programs, &segment(&V4, tcp::SYN).ports(50_001, 80));
    send(&mut programs, &other);
    lose_flows(&programs, &V4);
    assert_eq!(send(&mut programs, &segment(&V4, tcp::ACK)), became);
    assert_eq!(flows(&programs, &V4), [], "it was driven out");
}

#[test]
fn a_packet_from_before_another_took_the_slot_is_not_the_first_of_two() {
    let shown = in_time(|programs| {
        open(programs, &V4);
        let other = segment(&V4, tcp::ACK).ports(50_001, 80);
        send(programs, &segment(&V4, tcp::SYN).ports(50_001, 80));
        send(programs, &other);
        // A write frees the slot, and the connection takes it again with its opening segment.
        let neighbour = endpoint(0, ENI_0.ifindex, IF_B, POD_B_MTU);
        programs.put_address(V4.b, neighbour).unwrap();
        let became = open(programs, &V4);
        send(programs, &other);
        lose_flows(programs, &V4);
        let again = send(programs, &segment(&V4, tcp::ACK));
        (again == became, flows(programs, &V4).is_empty())
    });
    assert_eq!(shown, (true, true), "it was driven out");
}

#[test]
fn what_the_other_side_says_drops_nothing_but_what_ends_the_connection_does() {
    for net in [V4, V6] {
        for (flags, is_served) in [(tcp::ACK, true), (END, false), (tcp::RST, false)] {
            let mut programs = pinned(node());
            open(&mut programs, &net);
            receive(&mut programs, &net, flags);
            assert_ne!(shown(&programs, &net).1, 0);
            lose_flows(&programs, &net);
            send(&mut programs, &segment(&net, tcp::ACK));
            assert_eq!(flows(&programs, &net).is_empty(), is_served, "{flags:#x}");
        }
    }
}

#[test]
fn what_is_too_big_for_the_owner_is_so_whichever_eni_the_flow_leaves_by() {
    const OWNER_MTU: u32 = 1400;
    for net in [V4, V6] {
        let mut programs = pinned(node());
        let (v4, v6) = gateways(1);
        let by_primary =
            |gateway, net: &Net| EniAddresses::new(gateway, Addr::from(net.snat[1]), 0);
        let owner = EniEntry::new(
            ENI_1.ifindex,
            OWNER_MTU,
            by_primary(Addr::from(v4), &V4),
            by_primary(Addr::from(v6), &V6),
        );
        programs.put_eni(1, owner).unwrap();
        open(&mut programs, &net);
        let large = |ip: usize| {
            let headers = segment(&net, tcp::ACK).bytes().len() - 10;
            let body = Body::Tcp(ip + 14 - headers);
            let frame = from_a(&net, net.outside, body).ports(50_000, 80);
            frame.tcp(tcp::ACK, 1)
        };
        send(&mut programs, &large(OWNER_MTU as usize));
        let larger = large(OWNER_MTU as usize + 1);
        let output = run(&mut programs, Program::FromEndpoint, VETH_A, &larger);
        assert_eq!(output.code, PASS, "it was served");
    }
}

#[test]
fn what_is_too_big_for_another_pod_is_so_from_its_first_packet_on() {
    for net in [V4, V6] {
        let mut programs = pinned(node());
        let segment = |payload| {
            let body = Body::Tcp(payload);
            from_a(&net, net.b, body).ports(50_000, 80).tcp(tcp::ACK, 1)
        };
        let headers = segment(0).bytes().len() - 14;
        let largest = POD_B_MTU - headers;
        let mut sent = |port, payload| {
            let frame = segment(payload).ports(port, 80);
            run(&mut programs, Program::FromEndpoint, VETH_A, &frame).code
        };
        assert_eq!(sent(50_000, largest), REDIRECT);
        assert_eq!(sent(50_001, largest + 1), PASS);
    }
}

#[test]
fn what_opens_or_ends_a_connection_is_looked_at() {
    for flags in [tcp::SYN, END, tcp::ACK | tcp::SYN] {
        let mut programs = pinned(node());
        open(&mut programs, &V4);
        lose_flows(&programs, &V4);
        let input = segment(&V4, flags);
        // Without a flow, a SYN with ACK is an answer to the outside.
        send(&mut programs, &input);
        let is_opened = flows(&programs, &V4).len() == 1;
        assert_eq!(
            is_opened,
            flags & (tcp::SYN | tcp::ACK) != tcp::SYN | tcp::ACK
        );
    }
}

/// The flow of a SYN that is not cached is opened without a look-up first: it is most likely a new
/// one.
#[test]
fn a_connection_that_is_opened_again_keeps_its_flow_whatever_keeps_new_ones_away() {
    // The pod's quota is used up, and a socket of the host now has the port.
    for endpoint in [1, 2] {
        for net in [V4, V6] {
            let mut programs = pinned(node_with(&DatapathSettings {
                quotas: FlowQuotas {
                    endpoint,
                    ..FlowQuotas::DEFAULT
                },
                ..with_cache(1)
            }));
            let (became, opened) = opened(&mut programs, &net);
            let any = if net.a.is_ipv4() { "0.0.0.0" } else { "::" };
            let listener = TcpListener::bind((any, 50_000)).unwrap();
            for is_forgotten in [false, true, false] {
                if is_forgotten {
                    give_slot_away(&mut programs, &net);
                }
                assert_eq!(send(&mut programs, &segment(&net, tcp::SYN)), became);
            }
            drop(listener);
            assert_eq!(counted(&programs, &net), opened);
        }
    }
}

/// Gives the one slot to another flow, which needs it no longer.
fn give_slot_away(programs: &mut Programs, net: &Net) {
    for _ in 0..2 {
        let local = from_a(net, net.b, Body::Tcp(10)).ports(50_000, 80);
        send(programs, &local.tcp(tcp::SYN, 1));
        // This invalidates all entries.
        let other = endpoint(0, ENI_0.ifindex, IF_B, POD_B_MTU);
        programs.put_address(net.b, other).unwrap();
    }
}

#[test]
fn a_connection_for_which_there_is_no_room_is_counted_once() {
    for net in [V4, V6] {
        let mut programs = pinned(node_with(&DatapathSettings {
            quotas: FlowQuotas {
                endpoint: 1,
                ..FlowQuotas::DEFAULT
            },
            ..settings()
        }));
        let (_, (keys, allocated, failed)) = opened(&mut programs, &net);
        let other = segment(&net, tcp::SYN).ports(50_001, 80);
        let output = run(&mut programs, Program::FromEndpoint, VETH_A, &other);
        assert_eq!(output.code, DROP);
        assert_eq!(counted(&programs, &net), (keys, allocated, failed + 1));
    }
}

/// Opens the connection from the pod; returns the result for its SYN, and the counts after it.
fn opened(programs: &mut Programs, net: &Net) -> (Vec<u8>, (Vec<FlowKey>, u64, u64)) {
    let became = send(programs, &segment(net, tcp::SYN));
    (became, counted(programs, net))
}

/// The flows, and the numbers of flows that were opened and that could not be opened so far.
fn counted(programs: &Programs, net: &Net) -> (Vec<FlowKey>, u64, u64) {
    let keys = flows(programs, net).into_iter().map(|(key, _)| key);
    let count = |stat| programs.nat_stat(stat, net.a.is_ipv4()).unwrap();
    let (allocated, failed) = (count(NatStat::Allocated), count(NatStat::Failed));
    (keys.collect(), allocated, failed)
}

#[test]
fn a_connection_that_the_stack_carries_is_opened_again_through_the_stack() {
    for net in [V4, V6] {
        let mut programs = pinned(node_with(&DatapathSettings {
            path: DatapathMode::ServiceNat,
            ..with_cache(1)
        }));
        send(&mut programs, &segment(&net, tcp::SYN));
        let [(key, mut flow)] = flows(&programs, &net)[..] else {
            panic!("one flow");
        };
        flow.stack = 1;
        table(&programs, &net).put(&key, &flow).unwrap();
        let again = segment(&net, tcp::SYN);
        for is_forgotten in [false, true] {
            if is_forgotten {
                give_slot_away(&mut programs, &net);
            }
            let output = run(&mut programs, Program::FromEndpoint, VETH_A, &again);
            assert_eq!(output.code, PASS, "it went past the stack");
        }
    }
}

#[test]
fn what_is_cached_does_not_keep_a_flow_from_being_refreshed() {
    let mut programs = pinned(node());
    open(&mut programs, &V4);
    let seen = |programs: &Programs| flows(programs, &V4)[0].1.last_seen;
    for _ in 0..2 {
        let (before, since) = (seen(&programs), Instant::now());
        while seen(&programs) == before {
            send(&mut programs, &segment(&V4, tcp::ACK));
            // A closed flow may be removed once its last packet is two seconds old.
            assert!(since.elapsed() < Duration::from_secs(2), "it looks idle");
        }
    }
}

#[test]
fn without_a_cache_every_packet_is_looked_at() {
    let mut programs = node_with(&with_cache(0));
    open(&mut programs, &V4);
    lose_flows(&programs, &V4);
    send(&mut programs, &segment(&V4, tcp::ACK));
    assert_eq!(flows(&programs, &V4).len(), 1);
}
