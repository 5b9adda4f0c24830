//! Counts of a flow whose first candidate port another flow has.

use datapath_common::abi::{Flow, FlowKey, Quota, TransportAddr, map};
use datapath_common::counter::{NatStat, Program};
use datapath_common::headers::protocol;
use datapath_common::progress::tcp;
use testkit::packet::Body;
use testkit::testrun::{Input, REDIRECT};

use crate::cache::pinned;
use crate::case::on;
use crate::world::*;

/// An endpoint that the node does not have.
const ANOTHER: u32 = 1 << 30;

/// By the cache, which claims the port of a new connection without a look-up (TCP), and by the slow
/// path (UDP).
#[test]
fn it_needs_one_port_more_and_has_one_part_in_the_quota() {
    for net in [V4, V6] {
        for (body, protocol) in [
            (Body::Tcp(10), protocol::TCP),
            (Body::Udp(10), protocol::UDP),
        ] {
            let mut programs = pinned(node());
            let name = if net.a.is_ipv4() {
                map::FLOWS_V4
            } else {
                map::FLOWS_V6
            };
            let (port, remote_port) = (50_000_u16, 80_u16);
            let (own, remote) = (port.to_be(), remote_port.to_be());
            let key = FlowKey::new(
                1,
                protocol,
                TransportAddr::new(net.outside.into(), remote),
                own,
            );
            let flow = Flow::new(&key, TransportAddr::new(net.b.into(), own), ANOTHER, 0);
            let flows = programs.table::<FlowKey, Flow>(name).unwrap();
            flows.put(&key, &flow).unwrap();

            let counted = [
                NatStat::Allocated,
                NatStat::Tries1,
                NatStat::Tries5,
                NatStat::Failed,
            ]
            .map(|stat| (stat, programs.nat_stat(stat, net.a.is_ipv4()).unwrap()));
            let frame = from_a(&net, net.outside, body).ports(port, remote_port);
            let frame = frame.tcp(tcp::SYN, 1);
            let input = Input {
                mark: 0,
                ..on(VETH_A, frame.bytes())
            };
            let output = programs.run(Program::FromEndpoint, &input).unwrap();
            assert_eq!(output.code, REDIRECT, "{body:?}");

            let more = counted
                .map(|(stat, before)| programs.nat_stat(stat, net.a.is_ipv4()).unwrap() - before);
            assert_eq!(more, [1, 0, 1, 0], "{body:?}");
            let quotas = programs.table::<u32, Quota>(map::QUOTA).unwrap();
            let parts: Vec<u32> = quotas
                .entries()
                .unwrap()
                .iter()
                .map(|(_, of)| of.flows)
                .collect();
            assert_eq!(parts, [1], "{body:?}");
        }
    }
}
