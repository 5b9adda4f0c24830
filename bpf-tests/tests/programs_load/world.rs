//! Runs packets of several pods and one ENI as test runs, as fast as possible.

use std::time::Duration;

use datapath_common::counter::Program;
use testkit::testrun::tables::{Given, Made, Runner};
use testkit::testrun::{self, Programs, REDIRECT};

use crate::frames::{Family, Kind, destination, frame, source, unreachable};

/// Pods of the node.
pub(crate) const PODS: usize = 4;

pub(crate) const ENI: u32 = 21;
pub(crate) const MTU: u32 = 1500;
pub(crate) const POD_MAC: [u8; 6] = [0x0a, 0, 0, 0, 0, 0xaa];
const ROUTER_MAC: [u8; 6] = [0x0a, 7, 7, 7, 7, 0];

/// The host-side device of a pod.
pub(crate) fn veth(pod: usize) -> u32 {
    // The ENI and its pair have the indices between.
    let behind = if pod < 10 { 0 } else { 2 };
    11 + behind + u32::try_from(pod).unwrap()
}

/// The MAC of a device.
pub(crate) fn mac(ifindex: u32) -> [u8; 6] {
    [0x0a, 0, 0, 0, 0, u8::try_from(ifindex).unwrap()]
}

/// One flow as a pod sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tuple {
    pub(crate) pod: usize,
    pub(crate) port: u16,
    pub(crate) remote: u16,
    pub(crate) remote_port: u16,
}

/// The outcome of a packet of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It left with this port.
    Translated(u16),
    /// It was dropped.
    Dropped,
}

/// Runner of packets; threads can share it.
#[derive(Clone, Copy)]
pub(crate) struct Driver {
    family: Family,
    from_endpoint: Runner,
    from_network: Runner,
}

impl Driver {
    pub(crate) fn new(programs: &mut Programs, family: Family) -> Self {
        Self {
            family,
            from_endpoint: programs.runner(Program::FromEndpoint).unwrap(),
            from_network: programs.runner(Program::FromNetwork).unwrap(),
        }
    }

    /// A packet of a pod.
    pub(crate) fn send(&self, tuple: Tuple, kind: Kind) -> Sent {
        self.timed(tuple, kind).0
    }

    /// A packet of a pod, and the program's run time.
    pub(crate) fn timed(&self, tuple: Tuple, kind: Kind) -> (Sent, Duration) {
        let (made, took) = self.leave(tuple, tuple.port, kind);
        let sent = match made.code {
            REDIRECT => {
                let (source, port) = source(&made.frame);
                assert_eq!(source, self.family.node(), "{tuple:?} leaves untranslated");
                Sent::Translated(port)
            }
            testrun::DROP => Sent::Dropped,
            code => panic!("{tuple:?} {kind:?}: code {code}"),
        };
        (sent, took)
    }

    fn leave(&self, tuple: Tuple, port: u16, kind: Kind) -> (Made, Duration) {
        let ends = [self.family.pod(tuple.pod), self.family.remote(tuple.remote)];
        let device = veth(tuple.pod);
        let frame = frame(
            [POD_MAC, mac(device)],
            ends,
            [port, tuple.remote_port],
            kind,
        );
        run(self.from_endpoint, &frame, device)
    }

    /// A packet of a pod that must leave; returns the port with which it does.
    #[track_caller]
    pub(crate) fn must_send(&self, tuple: Tuple, kind: Kind) -> u16 {
        match self.send(tuple, kind) {
            Sent::Translated(port) => port,
            Sent::Dropped => panic!("{tuple:?} {kind:?} was dropped"),
        }
    }

    /// A packet of a remote to a port for translation; returns true if it was delivered to that
    /// pod's port.
    pub(crate) fn answer(&self, tuple: Tuple, port: u16, kind: Kind) -> bool {
        let ends = [self.family.remote(tuple.remote), self.family.node()];
        let ports = [tuple.remote_port, port];
        let frame = frame([ROUTER_MAC, mac(ENI)], ends, ports, kind);
        let (made, _) = run(self.from_network, &frame, ENI);
        made.code == REDIRECT
            && destination(&made.frame) == (self.family.pod(tuple.pod), tuple.port)
    }

    /// A packet of a remote to a pod's own address; returns true if it was delivered.
    pub(crate) fn call(&self, tuple: Tuple, kind: Kind) -> bool {
        let pod = self.family.pod(tuple.pod);
        let ends = [self.family.remote(tuple.remote), pod];
        // The id of an echo is that of the caller.
        let port = if kind == Kind::Echo { 0 } else { tuple.port };
        let ports = [tuple.remote_port, port];
        let frame = frame([ROUTER_MAC, mac(ENI)], ends, ports, kind);
        let (made, _) = run(self.from_network, &frame, ENI);
        made.code == REDIRECT && destination(&made.frame).0 == pod
    }

    /// A packet of a pod to a remote that called it; returns true if it left with the pod's own
    /// address.
    pub(crate) fn reply(&self, tuple: Tuple, kind: Kind) -> bool {
        let port = if kind == Kind::Echo { 0 } else { tuple.port };
        self.is_untranslated(tuple, &self.leave(tuple, port, kind).0)
    }

    /// The program's run time for a packet to a remote that called the pod.
    #[track_caller]
    pub(crate) fn timed_reply(&self, tuple: Tuple, kind: Kind) -> Duration {
        let (made, took) = self.leave(tuple, tuple.port, kind);
        assert!(self.is_untranslated(tuple, &made), "{tuple:?}");
        took
    }

    fn is_untranslated(&self, tuple: Tuple, made: &Made) -> bool {
        made.code == REDIRECT && source(&made.frame).0 == self.family.pod(tuple.pod)
    }

    /// An ICMP error of a router about a packet of a flow; returns true if it was delivered to that
    /// pod.
    pub(crate) fn error(&self, tuple: Tuple, port: u16, kind: Kind) -> bool {
        let ends = [self.family.node(), self.family.remote(tuple.remote)];
        let ports = [port, tuple.remote_port];
        let quoted = frame([ROUTER_MAC, mac(ENI)], ends, ports, kind);
        let router = self.family.remote(u16::MAX);
        let ends = [router, self.family.node()];
        let frame = unreachable([ROUTER_MAC, mac(ENI)], ends, &quoted[14..]);
        let (made, _) = run(self.from_network, &frame, ENI);
        made.code == REDIRECT && destination(&made.frame).0 == self.family.pod(tuple.pod)
    }

    /// Opens a TCP connection, and returns its port.
    #[track_caller]
    pub(crate) fn connect(&self, tuple: Tuple) -> u16 {
        let port = self.must_send(tuple, Kind::Syn);
        assert!(self.answer(tuple, port, Kind::SynAck), "{tuple:?}");
        assert_eq!(self.must_send(tuple, Kind::Ack), port, "{tuple:?}");
        port
    }
}

fn run(program: Runner, frame: &[u8], ifindex: u32) -> (Made, Duration) {
    let given = Given {
        frame,
        ifindex,
        // Linux 5.10 accepts none; these programs do not read it.
        ingress_ifindex: 0,
        mark: 0,
        gso_size: 0,
        is_summed: false,
    };
    program.timed(&given).unwrap()
}
