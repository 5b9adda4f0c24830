//! Progress of flows from the outside, by the segments that the outside sends.

use datapath_common::abi::{
    DEFAULT_CACHE, DestinationClass, PodTuple, TrackedFlow, TransportAddr, map,
};
use datapath_common::counter::Program;
use datapath_common::headers::protocol;
use datapath_common::progress::{DATA, DOUBT, tcp};
use ipnet::IpNet;
use loader::bpf::DatapathSettings;
use testkit::packet::{Body, Frame};
use testkit::testrun::scene::received;
use testkit::testrun::{Programs, REDIRECT};

use crate::cache::{pinned, run};
use crate::world::*;

/// Data, and no data.
const DATA_BYTES: usize = 10;
const BARE: usize = 0;

fn pass(programs: &mut Programs, program: Program, device: Device, frame: &Frame) {
    assert_eq!(run(programs, program, device, frame).code, REDIRECT);
}

/// A connection from a port outside, which the pod has accepted.
fn accept(programs: &mut Programs, net: &Net, port: u16) {
    come(programs, net, port, (BARE, tcp::SYN));
    let answer = from_a(net, net.outside, Body::Tcp(BARE)).ports(80, port);
    let answer = answer.tcp(tcp::SYN_ACK, 1);
    pass(programs, Program::FromEndpoint, VETH_A, &answer);
}

/// A segment of the connection from the outside, with this length of data.
fn come(programs: &mut Programs, net: &Net, port: u16, (length, flags): (usize, u8)) {
    let frame = received(ENI_1, net.outside, net.a, Body::Tcp(length)).ports(port, 80);
    pass(programs, Program::FromNetwork, ENI_1, &frame.tcp(flags, 1));
}

/// Progress of the outside in the connection.
fn shown(programs: &Programs, net: &Net, port: u16) -> u8 {
    let notes = programs
        .table::<PodTuple, TrackedFlow>(map::INBOUND)
        .unwrap();
    let (own, remote) = (80_u16.to_be(), port.to_be());
    let tuple = PodTuple::new(
        protocol::TCP,
        TransportAddr::new(net.a.into(), own),
        TransportAddr::new(net.outside.into(), remote),
    );
    let note = notes.get(&tuple).unwrap().expect("a note");
    note.progress_in
}

/// The cache serves segments from such a source without a look-up of their flow.
#[test]
fn those_from_where_masquerade_does_not_go_any_more_show_nothing_cached_or_not() {
    for net in [V4, V6] {
        for cache in [0, DEFAULT_CACHE] {
            let mut programs = pinned(node_with(&DatapathSettings {
                cache,
                ..settings()
            }));
            let (before, after) = (3000, 3001);
            accept(&mut programs, &net, before);
            accept(&mut programs, &net, after);
            come(&mut programs, &net, before, (BARE, tcp::ACK));
            assert_eq!(shown(&programs, &net, before), DATA);

            let outside = IpNet::from(net.outside);
            programs
                .put_destination(outside, DestinationClass::VPC)
                .unwrap();
            for _ in 0..3 {
                come(&mut programs, &net, after, (DATA_BYTES, tcp::ACK));
            }
            for flags in [tcp::ACK, tcp::ACK | tcp::FIN, tcp::ACK] {
                come(&mut programs, &net, after, (BARE, flags));
            }
            assert_eq!(shown(&programs, &net, after), 0, "cache of {cache}");

            programs
                .put_destination(outside, DestinationClass::default())
                .unwrap();
            come(&mut programs, &net, after, (BARE, tcp::ACK | tcp::FIN));
            assert_eq!(shown(&programs, &net, after), DATA | DOUBT);
        }
    }
}
