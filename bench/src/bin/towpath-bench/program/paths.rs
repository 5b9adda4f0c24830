//! Paths without translation.

use std::net::IpAddr;

use anyhow::Result;
use datapath_common::counter::Program;
use datapath_common::mark::MarkLayout;
use datapath_common::outcome::{Outcome, Verdict};
use testkit::packet::{Body, Frame, Macs};
use testkit::testrun::repeat::On;
use testkit::testrun::scene::{
    Device, ENI_0, ENI_1, Net, STRANGER, V4, V6, VETH_A, from_a, received, to_a,
};
use testkit::testrun::{PASS, REDIRECT};

use super::floor::Floor;
use super::meter::{Expected, Meter, Path, packet};
use super::variant::Variants;

/// Suffix for names of rows with many flows.
pub(super) const MANY: &str = ", 100,000 flows";

/// A datagram, and a segment in the middle of a connection.
pub(super) const UDP: (&str, Body) = ("udp", Body::Udp(100));
pub(super) const TCP: (&str, Body) = ("tcp", Body::Tcp(64));

pub(super) const SYN: u8 = 2;
pub(super) const ACK: u8 = 16;

/// Packets of the host on a device.
pub(super) fn on(device: Device) -> On {
    On {
        ifindex: device.ifindex,
        ingress_ifindex: 0,
    }
}

/// Result of a packet that passes with a verdict.
pub(super) fn passes(verdict: Verdict) -> Expected {
    Expected {
        code: PASS,
        outcome: Some(Outcome::Passed(verdict)),
    }
}

/// Result of a packet that is redirected with a verdict.
pub(super) fn leaves(verdict: Verdict) -> Expected {
    Expected {
        code: REDIRECT,
        outcome: Some(Outcome::Passed(verdict)),
    }
}

/// An address like this one, with a number in its last 16 bits; number 0 gives the address itself.
pub(super) fn numbered(address: IpAddr, number: usize) -> IpAddr {
    let number = u16::try_from(number).unwrap_or(u16::MAX);
    match address {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) ^ u32::from(number)).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) ^ u128::from(number)).into()),
    }
}

/// Flows of one remote.
const PORTS: usize = 100;

/// Remote and port of a flow with a number.
fn flow(remote: IpAddr, number: usize) -> (IpAddr, u16) {
    let port = 20_000 + number % PORTS;
    (
        numbered(remote, number / PORTS),
        u16::try_from(port).unwrap_or_default(),
    )
}

/// A path, and the frame for each remote and port.
struct Shape<'a> {
    name: String,
    program: Program,
    device: Device,
    remote: IpAddr,
    frame: &'a dyn Fn(IpAddr, u16) -> Frame,
    expected: Expected,
}

impl Shape<'_> {
    /// The path with a number of flows.
    fn path(&self, flows: usize) -> Path {
        let frames = (0..flows).map(|number| {
            let (remote, port) = flow(self.remote, number);
            packet((self.frame)(remote, port).bytes(), 0)
        });
        let many = if flows > 1 { MANY } else { "" };
        Path {
            name: format!("{}{many}", self.name),
            program: self.program,
            on: on(self.device),
            packets: frames.collect(),
            expected: self.expected,
        }
    }
}

/// Measures all paths without translation.
pub(super) fn measure(meter: &mut Meter, variants: &mut Variants) -> Result<()> {
    for net in [V4, V6] {
        for body in [TCP, UDP] {
            stateless(meter, variants, &net, body)?;
        }
        inbound(meter, variants, &net)?;
        stack(meter, variants, &net)?;
        host(meter, variants, &net)?;
    }
    Ok(())
}

/// Paths that need no flow.
fn stateless(
    meter: &mut Meter,
    variants: &mut Variants,
    net: &Net,
    (protocol, body): (&str, Body),
) -> Result<()> {
    let name = |what: &str| format!("{what}, {protocol} {}", net.family());
    let out = |remote, port| from_a(net, remote, body).ports(port, 80).tcp(ACK, 1);
    let comes = |remote, port| {
        received(ENI_1, remote, net.a, body)
            .ports(port, 80)
            .tcp(ACK, 1)
    };
    let to_pod = |_remote, port| out(net.b, port);
    let exempt = Shape {
        name: name("exempt out"),
        program: Program::FromEndpoint,
        device: VETH_A,
        remote: net.peer,
        frame: &out,
        expected: leaves(Verdict::Eni),
    };
    let from_eni = Shape {
        name: name("from ENI to pod"),
        program: Program::FromNetwork,
        device: ENI_1,
        remote: net.peer,
        frame: &comes,
        expected: leaves(Verdict::Local),
    };
    let local = Shape {
        name: name("pod to pod"),
        program: Program::FromEndpoint,
        device: VETH_A,
        remote: net.b,
        frame: &to_pod,
        expected: leaves(Verdict::Local),
    };
    let has_floor = net.a.is_ipv4() && protocol == TCP.0;
    let floors: [&[Floor]; 3] = [&Floor::EXEMPT, &Floor::FROM_ENI, &Floor::LOCAL];
    for (shape, floors) in [exempt, from_eni, local].iter().zip(floors) {
        let path = shape.path(1);
        let floors = if has_floor { floors } else { &[] };
        let built = Floor::build_all(floors, &path.packets)?;
        let beside: Vec<_> = built.iter().map(|floor| floor.beside("")).collect();
        meter.measure(&path, variants.0.iter_mut(), &beside)?;
        let path = shape.path(meter.plan.flows);
        meter.measure(&path, variants.0.iter_mut(), &[])?;
    }
    variants.forget_flows()
}

/// Flows from the outside.
fn inbound(meter: &mut Meter, variants: &mut Variants, net: &Net) -> Result<()> {
    let name = |what: &str| format!("{what}, udp {}", net.family());
    let comes = |remote, port| received(ENI_1, remote, net.a, UDP.1).ports(port, 53);
    let answers = |remote, port| from_a(net, remote, UDP.1).ports(53, port);
    let comes = Shape {
        name: name("inbound flow, from outside"),
        program: Program::FromNetwork,
        device: ENI_1,
        remote: net.outside,
        frame: &comes,
        expected: leaves(Verdict::Local),
    };
    let answers = Shape {
        name: name("inbound flow, from the pod"),
        program: Program::FromEndpoint,
        device: VETH_A,
        remote: net.outside,
        frame: &answers,
        expected: leaves(Verdict::Inbound),
    };
    for flows in [1, meter.plan.flows] {
        // The first round of the one opens the flows of the other.
        for shape in [&comes, &answers] {
            meter.measure(&shape.path(flows), variants.0.iter_mut(), &[])?;
        }
        variants.forget_flows()?;
    }
    Ok(())
}

/// Flows that the stack carries; only the variants that store them have any.
fn stack(meter: &mut Meter, variants: &mut Variants, net: &Net) -> Result<()> {
    let name = |what: &str| format!("{what}, udp {}", net.family());
    let comes = |remote, port| to_a(net, remote, UDP.1).ports(port, 8080);
    let answers = |remote, port| from_a(net, remote, UDP.1).ports(8080, port);
    let again = |remote, port| received(ENI_1, remote, net.a, UDP.1).ports(port, 8080);
    let noted = Shape {
        name: name("stack flow, to the pod"),
        program: Program::ToEndpoint,
        device: VETH_A,
        remote: net.peer,
        frame: &comes,
        expected: passes(Verdict::Noted),
    };
    let answers = Shape {
        name: name("stack flow, from the pod"),
        program: Program::FromEndpoint,
        frame: &answers,
        expected: passes(Verdict::StackFlow),
        ..noted
    };
    let again = Shape {
        name: name("stack flow, from ENI"),
        program: Program::FromNetwork,
        device: ENI_1,
        frame: &again,
        expected: passes(Verdict::StackFlow),
        ..noted
    };
    for flows in [1, meter.plan.flows] {
        for shape in [&noted, &answers, &again] {
            let mut path = shape.path(flows);
            if path.program == Program::ToEndpoint {
                path.on.ingress_ifindex = ENI_0.ifindex;
            }
            let noting = variants.0.iter_mut().filter(|variant| variant.notes_stack);
            meter.measure(&path, noting, &[])?;
        }
        variants.forget_flows()?;
    }
    Ok(())
}

/// A packet that the host sends from an ENI's translation address.
fn of_host(net: &Net, eni: Device, number: usize) -> Frame {
    let macs = Macs::new(eni.mac, STRANGER);
    Frame::new(macs, net.snat[number], net.outside, UDP.1).ports(30_000, 53)
}

/// Packets of the host.
fn host(meter: &mut Meter, variants: &mut Variants, net: &Net) -> Result<()> {
    let name = |what: &str| format!("{what}, udp {}", net.family());
    let comes = received(ENI_0, net.outside, net.snat[0], UDP.1).ports(53, 30_000);
    let of_pod = from_a(net, net.outside, UDP.1).macs(ENI_1.mac, STRANGER);
    let done = Expected {
        code: PASS,
        outcome: None,
    };
    let out = Program::ToNetwork;
    let back = Program::FromNetwork;
    let from_host = passes(Verdict::FromHost);
    for (what, program, device, frame, mark, expected) in [
        (
            "host's packet out by the primary",
            out,
            ENI_0,
            of_host(net, ENI_0, 0),
            0,
            from_host,
        ),
        (
            "host's packet out by another ENI",
            out,
            ENI_1,
            of_host(net, ENI_1, 1),
            0,
            from_host,
        ),
        (
            "host's packet in",
            back,
            ENI_0,
            comes,
            0,
            passes(Verdict::NotForPod),
        ),
        (
            "pod's packet that is done, out",
            out,
            ENI_1,
            of_pod,
            MarkLayout::DEFAULT.done(),
            done,
        ),
    ] {
        let path = Path {
            name: name(what),
            program,
            on: on(device),
            packets: vec![packet(frame.bytes(), mark)],
            expected,
        };
        meter.measure(&path, variants.0.iter_mut(), &[])?;
    }
    Ok(())
}
