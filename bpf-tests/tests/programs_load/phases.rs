//! Flows in every phase, and their idle timeouts.

use datapath_common::abi::{FlowKey, PodTuple};

use crate::frames::Kind::{self, Ack, Echo, Fin, Rst, Sctp, Syn, SynAck, Udp};
use crate::node::Node;
use crate::world::{Driver, Tuple};

/// A packet of a pod or one of its remote.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Out(Kind),
    In(Kind),
}
use Way::{In, Out};

/// The packets of a flow, and its lifetime.
#[derive(Debug)]
pub(crate) struct Case {
    packets: &'static [Way],
    remote_port: u16,
    /// Idle timeout of the flow, in seconds.
    pub(crate) lifetime: u64,
    /// True if it is removed early when capacity is short.
    pub(crate) is_closed: bool,
}

const fn case(lifetime: u64, remote_port: u16, packets: &'static [Way]) -> Case {
    Case {
        packets,
        remote_port,
        lifetime,
        is_closed: false,
    }
}

const fn closed(remote_port: u16, packets: &'static [Way]) -> Case {
    Case {
        is_closed: true,
        ..case(240, remote_port, packets)
    }
}

/// Flows that pods open: the design's lifetimes, which are those of RFC 5382 REQ-5, RFC 4787 REQ-5
/// and RFC 5508 REQ-2. No pod has a socket by which the outside has really ended a connection.
pub(crate) const OUTBOUND: &[Case] = &[
    case(240, 443, &[Out(Syn)]),
    case(240, 443, &[Out(Syn), In(SynAck)]),
    case(7440, 443, &[Out(Syn), In(SynAck), Out(Ack)]),
    case(240, 443, &[Out(Syn), In(SynAck), Out(Ack), Out(Fin)]),
    case(240, 443, &[Out(Syn), In(SynAck), Out(Ack), In(Fin)]),
    case(
        240,
        443,
        &[Out(Syn), In(SynAck), Out(Ack), Out(Fin), In(Fin)],
    ),
    case(240, 443, &[Out(Syn), In(SynAck), Out(Ack), In(Rst)]),
    case(
        7440,
        443,
        &[Out(Syn), In(SynAck), Out(Ack), In(Rst), In(Ack)],
    ),
    case(
        7440,
        443,
        &[Out(Syn), In(SynAck), Out(Ack), In(Fin), Out(Ack)],
    ),
    closed(443, &[Out(Syn), In(SynAck), Out(Ack), Out(Rst)]),
    // A new connection on the same ports.
    case(
        240,
        443,
        &[Out(Syn), In(SynAck), Out(Ack), Out(Rst), Out(Syn)],
    ),
    case(30, 53, &[Out(Udp)]),
    case(30, 8080, &[Out(Udp), Out(Udp)]),
    case(60, 53, &[Out(Udp), In(Udp)]),
    case(300, 8080, &[Out(Udp), In(Udp)]),
    case(60, 0, &[Out(Echo)]),
    case(60, 0, &[Out(Echo), In(Echo)]),
    case(300, 3868, &[Out(Sctp)]),
    case(300, 3868, &[Out(Sctp), In(Sctp)]),
];

/// Flows from the outside. The end of a connection by the outside is not recorded.
pub(crate) const INBOUND: &[Case] = &[
    case(240, 50_443, &[In(Syn), Out(SynAck)]),
    case(7440, 50_443, &[In(Syn), Out(SynAck), In(Ack), Out(Ack)]),
    case(
        240,
        50_443,
        &[In(Syn), Out(SynAck), In(Ack), Out(Ack), Out(Fin)],
    ),
    closed(50_443, &[In(Syn), Out(SynAck), In(Ack), Out(Ack), Out(Rst)]),
    case(30, 50_443, &[In(Udp)]),
    case(300, 50_443, &[In(Udp), Out(Udp)]),
    case(60, 50_443, &[In(Echo)]),
];

/// The flow of a case, with a remote of its own.
fn tuple(number: usize, case: &Case) -> Tuple {
    Tuple {
        pod: 0,
        port: 50_000,
        remote: u16::try_from(1 + number).unwrap(),
        remote_port: case.remote_port,
    }
}

/// Opens every flow from the pod.
pub(crate) fn open(node: &Node) -> Vec<(FlowKey, &'static Case)> {
    let driver = node.driver;
    let opened = OUTBOUND.iter().enumerate().map(|(number, case)| {
        let tuple = tuple(number, case);
        let port = play(driver, tuple, case);
        (node.key(tuple, port, protocol(node, case)), case)
    });
    opened.collect()
}

fn play(driver: Driver, tuple: Tuple, case: &Case) -> u16 {
    let mut port = tuple.port;
    for packet in case.packets {
        match packet {
            Out(kind) => port = driver.must_send(tuple, *kind),
            In(kind) => assert!(driver.answer(tuple, port, *kind), "{case:?}"),
        }
    }
    port
}

/// Opens every flow from the outside.
pub(crate) fn call(node: &Node) -> Vec<(PodTuple, &'static Case)> {
    let driver = node.driver;
    let called = INBOUND.iter().enumerate().map(|(number, case)| {
        let mut tuple = tuple(number, case);
        for packet in case.packets {
            let passed = match packet {
                In(kind) => driver.call(tuple, *kind),
                Out(kind) => driver.reply(tuple, *kind),
            };
            assert!(passed, "{case:?}: {packet:?}");
        }
        let protocol = protocol(node, case);
        if protocol == Echo.protocol(node.family) {
            tuple.port = 0;
        }
        (node.inbound_key(tuple, protocol), case)
    });
    called.collect()
}

fn protocol(node: &Node, case: &Case) -> u8 {
    let (Out(kind) | In(kind)) = case.packets[0];
    kind.protocol(node.family)
}
