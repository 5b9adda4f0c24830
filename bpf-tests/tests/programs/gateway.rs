//! Gateways with a known MAC: packets to one begin with it, without a neighbour look-up of the
//! kernel.
//!
//! If the kernel does the look-up, a test run shows the MACs that the pod's packet had.

use datapath_common::abi::GatewayEntry;
use datapath_common::counter::Program;
use datapath_common::progress::tcp;
use testkit::packet::{Body, Frame};
use testkit::testrun::{Input, Programs, REDIRECT};

use crate::cache::pinned;
use crate::case::on;
use crate::world::*;

/// The gateway's MAC.
const GATEWAY: Mac = [0x0a, 7, 7, 7, 7, 1];
/// Entry of pod A's gateway.
const KNOWN: GatewayEntry = GatewayEntry {
    until: u64::MAX,
    ifindex: ENI_1.ifindex,
    macs: [GATEWAY, ENI_1.mac],
};

fn know(programs: &Programs, net: &Net, entry: GatewayEntry) {
    know_gateway(programs, 1, net.a.is_ipv4(), &entry).unwrap();
}

/// Sends a packet of pod A, and returns the resulting frame.
fn send(programs: &mut Programs, frame: &Frame) -> Vec<u8> {
    let input = Input {
        mark: 0,
        ..on(VETH_A, frame.bytes())
    };
    let output = programs.run(Program::FromEndpoint, &input).unwrap();
    assert_eq!(output.code, REDIRECT);
    output.frame
}

/// Packets that pod A sends by ENI 1, translated and not, each with the frame that leaves, except
/// for its MACs. There are two of each: the first one makes the cache's entry, the next one finds
/// it.
fn leaving(net: &Net) -> Vec<(Frame, Frame)> {
    let mut frames = Vec::new();
    for (destination, source) in [(net.outside, net.snat[1]), (net.peer, net.a)] {
        for flags in [tcp::SYN, tcp::ACK] {
            let sent = from_a(net, destination, Body::Tcp(10)).ports(50_000, 80);
            let sent = sent.tcp(flags, 1);
            let hop_limit = sent.hop_limit - 1;
            let left = sent.clone().from(source, 50_000).hop_limit(hop_limit);
            frames.push((sent, left));
        }
    }
    frames
}

#[test]
fn a_packet_begins_with_the_macs_that_are_known() {
    for net in [V4, V6] {
        let mut programs = pinned(node());
        know(&programs, &net, KNOWN);
        for (sent, left) in leaving(&net) {
            let left = left.macs(ENI_1.mac, GATEWAY).bytes();
            assert_eq!(send(&mut programs, &sent), left, "{sent:?}");
        }
        // The first packet without a connection has no cache entry; the second one gets it.
        let sent = from_a(&net, net.outside, Body::Udp(10)).ports(50_000, 53);
        let left = sent.clone().from(net.snat[1], 50_000).hop_limit(63);
        assert_eq!(send(&mut programs, &sent), left.clone().bytes());
        let left = left.macs(ENI_1.mac, GATEWAY).bytes();
        assert_eq!(send(&mut programs, &sent), left);
        assert_eq!(send(&mut programs, &sent), left);
    }
}

#[test]
fn the_kernel_is_asked_where_nothing_is_known_for_sure() {
    for net in [V4, V6] {
        for (why, entry) in [
            ("nothing is known", GatewayEntry::UNKNOWN),
            ("it is too old", GatewayEntry { until: 1, ..KNOWN }),
            (
                "it is of a device that the ENI had",
                GatewayEntry {
                    ifindex: ENI_0.ifindex,
                    ..KNOWN
                },
            ),
        ] {
            let mut programs = pinned(node());
            know(&programs, &net, entry);
            for (sent, left) in leaving(&net) {
                let became = send(&mut programs, &sent);
                assert_eq!(became, left.bytes(), "{why}: {sent:?}");
            }
        }
    }
}

#[test]
fn each_eni_and_family_has_a_gateway_of_its_own() {
    for (net, other) in [(V4, V6), (V6, V4)] {
        let mut programs = pinned(node());
        know(&programs, &other, KNOWN);
        know_gateway(&programs, 0, net.a.is_ipv4(), &KNOWN).unwrap();
        for (sent, left) in leaving(&net) {
            assert_eq!(send(&mut programs, &sent), left.bytes(), "{sent:?}");
        }
    }
}
