//! Paths: the packet that is measured, the packets before it, and the expected outcome.

use datapath_common::counter::Program;
use datapath_common::mark::MarkLayout;
use datapath_common::outcome::{DropReason, Outcome, Verdict};
use testkit::packet::{Body, Frame, Macs, other};
use testkit::testrun::Input;

use super::node::{Device, ENI_0, ENI_1, NETS, Net, POD_A, ROUTER, VETH_A};

/// A port of ours, which a flow keeps.
const PORT: u16 = 50_000;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const UDP: Body = Body::Udp(100);
const TCP: Body = Body::Tcp(100);
const ASKS: Body = Body::Echo { asks: true };

/// Input of a program.
#[derive(Clone, Debug)]
pub(super) enum Sent {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A packet.
    Packet(Box<Frame>),
    /// A packet to the port that the last packet before it got, answers not counted.
    Answer(Box<Frame>),
}

/// A packet for a program.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) program: Program,
    pub(super) sent: Sent,
    device: Device,
    /// The device that received it, or 0.
    received_by: u32,
    mark: u32,
    /// True if the packet is the first one of its flow for a second.
    pub(super) is_late: bool,
}

impl Step {
    fn new(program: Program, device: Device, frame: Frame) -> Self {
        Self {
            program,
            sent: Sent::Packet(Box::new(frame)),
            device,
            received_by: device.0,
            mark: 0,
            is_late: false,
        }
    }

    /// Packet that pod A sends.
    fn of_pod(frame: &Frame) -> Self {
        Self::new(Program::FromEndpoint, VETH_A, frame.clone())
    }

    /// Packet that ENI 1 receives.
    fn of_network(frame: &Frame) -> Self {
        Self::new(Program::FromNetwork, ENI_1, frame.clone())
    }

    /// Packet that the stack sends by ENI 1, and that this device has received.
    fn of_stack(frame: &Frame, received_by: u32) -> Self {
        Self {
            received_by,
            ..Self::new(Program::ToNetwork, ENI_1, frame.clone())
        }
    }

    /// Packet that the stack sends to pod A, and that this device has received.
    fn to_pod(frame: &Frame, received_by: u32) -> Self {
        Self {
            received_by,
            ..Self::new(Program::ToEndpoint, VETH_A, frame.clone())
        }
    }

    fn answering(mut self) -> Self {
        if let Sent::Packet(frame) = self.sent {
            self.sent = Sent::Answer(frame);
        }
        self
    }

    /// Input of the program; `port` is for answers.
    pub(super) fn input(&self, port: Option<u16>) -> Input {
        let frame = match &self.sent {
            Sent::Bytes(bytes) => bytes.clone(),
            Sent::Packet(frame) => frame.bytes(),
            Sent::Answer(frame) => {
                let port = port.unwrap_or(frame.ports.1);
                (**frame).clone().to(frame.destination, port).bytes()
            }
        };
        Input {
            frame,
            ifindex: self.device.0,
            ingress_ifindex: self.received_by,
            mark: self.mark,
            gso_size: 0,
        }
    }

    /// The port that translation gave to the packet: of an echo, its identifier.
    pub(super) fn port(&self, made: &[u8]) -> Option<u16> {
        let (Sent::Packet(frame) | Sent::Answer(frame)) = &self.sent else {
            return None;
        };
        let header = if frame.source.is_ipv4() { 20 } else { 40 };
        let place = match frame.body {
            Body::Echo { .. } => 4,
            _ => 0,
        };
        let port = made.get(testkit::packet::ETHERNET + header + place..)?;
        port.first_chunk().copied().map(u16::from_be_bytes)
    }
}

/// A path.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) name: String,
    pub(super) before: Vec<Step>,
    pub(super) step: Step,
    /// Expected outcome; `None` if an earlier program has already handled the packet.
    pub(super) outcome: Option<Outcome>,
    /// True if the path exists only with service NAT.
    pub(super) needs_service_nat: bool,
}

/// Makes paths of one family.
struct Paths<'a> {
    net: &'a Net,
    paths: Vec<Path>,
}

impl Paths<'_> {
    fn add(&mut self, name: &str, before: &[Step], step: Step, outcome: Outcome) -> &mut Path {
        let name = format!("{name}, {}", self.net.family);
        self.paths.push(Path {
            name,
            before: before.to_vec(),
            step,
            outcome: Some(outcome),
            needs_service_nat: false,
        });
        let last = self.paths.len() - 1;
        &mut self.paths[last]
    }

    fn passes(&mut self, name: &str, before: &[Step], step: Step, verdict: Verdict) -> &mut Path {
        self.add(name, before, step, Outcome::Passed(verdict))
    }

    /// Paths of a packet that is cached after the packets `before` it: the packet itself, and its
    /// repetition.
    ///
    /// Of a connection, the first packet is cached; of other flows, the second one in a row.
    fn repeats(&mut self, name: &str, before: &[Step], step: &Step, verdict: Verdict) {
        self.passes(
            &format!("{name}, not cached"),
            before,
            step.clone(),
            verdict,
        );
        let before = [before, std::slice::from_ref(step)].concat();
        self.passes(&format!("{name}, cached"), &before, step.clone(), verdict);
    }

    /// Paths of a flow's first packet, and of its repetitions.
    fn begins(&mut self, name: &str, step: &Step, verdict: Verdict) {
        self.passes(&format!("{name}, first packet"), &[], step.clone(), verdict);
        self.repeats(name, std::slice::from_ref(step), step, verdict);
    }

    /// Paths within the VPC and on the node.
    fn untranslated(&mut self) {
        let net = self.net;
        for (body, name) in [(UDP, "UDP"), (TCP, "TCP")] {
            let from_a = |to| {
                Frame::new(Macs::new(POD_A, VETH_A.1), net.a, to, body)
                    .ports(PORT, 80)
                    .tcp(ACK, 1)
            };
            let to_a = Frame::new(Macs::new(ROUTER, ENI_1.1), net.peer, net.a, body).tcp(ACK, 1);
            let exempt = Step::of_pod(&from_a(net.peer));
            let local = Step::of_pod(&from_a(net.b));
            let delivered = Step::of_network(&to_a);
            for (what, step, verdict) in [
                ("exempt out", exempt, Verdict::Eni),
                ("local delivery", local, Verdict::Local),
                ("ENI to pod", delivered, Verdict::Local),
            ] {
                let name = format!("{what}, {name}");
                if matches!(body, Body::Tcp(_)) {
                    self.repeats(&name, &[], &step, verdict);
                } else {
                    self.begins(&name, &step, verdict);
                }
            }
        }
        let from_a = |to| Frame::new(Macs::new(POD_A, VETH_A.1), net.a, to, UDP);
        for (name, to, verdict) in [
            ("to the host", net.host, Verdict::Host),
            ("to a service", net.service, Verdict::Service),
        ] {
            self.passes(name, &[], Step::of_pod(&from_a(to)), verdict);
        }
    }

    /// Flows that the pod opens to the outside.
    fn translated(&mut self) {
        let net = self.net;
        for (asks, answers, name) in [
            (TCP, TCP, "TCP"),
            (UDP, UDP, "UDP"),
            (ASKS, Body::Echo { asks: false }, "ICMP"),
        ] {
            let remote = if matches!(asks, Body::Echo { .. }) {
                0
            } else {
                80
            };
            let sends = |source| {
                let frame = Frame::new(Macs::new(POD_A, VETH_A.1), source, net.outside, asks);
                frame.ports(PORT, remote)
            };
            let sent = |flags| Step::of_pod(&sends(net.a).tcp(flags, 2));
            let first = Step::of_pod(&sends(net.a).tcp(SYN, 1));
            // The host has the port: it sends from the address that pods are translated to.
            let taken = Step::of_stack(&sends(net.snat).tcp(SYN, 1), 0);
            let next = sent(ACK);
            let answered = |flags| {
                let frame = Frame::new(Macs::new(ROUTER, ENI_1.1), net.outside, net.snat, answers);
                Step::of_network(&frame.ports(remote, PORT).tcp(flags, 1)).answering()
            };
            let answer = answered(ACK);
            for (before, how) in [(vec![], "port kept"), (vec![taken], "port changed")] {
                let translated = Verdict::Translated;
                let text = |what: &str| format!("{what}, {name}, {how}");
                self.passes(&text("new flow"), &before, first.clone(), translated);
                let opened = [before, vec![first.clone()]].concat();
                let late = Step {
                    is_late: true,
                    ..next.clone()
                };
                let what = text("masqueraded out after a second");
                self.passes(&what, &opened, late, translated);
                let (out, back) = (text("masqueraded out"), text("masqueraded back"));
                let returned = Verdict::Returned;
                match asks {
                    Body::Tcp(_) => {
                        let spoken = [opened.clone(), vec![next.clone()]].concat();
                        self.repeats(&back, &spoken, &answer, returned);
                        self.goes_on(&out, &opened, &sent, translated);
                        let accepted = [opened, vec![answered(SYN | ACK)]].concat();
                        self.goes_on(&back, &accepted, &answered, returned);
                    }
                    Body::Udp(_) => {
                        self.repeats(&out, &opened, &next, translated);
                        let spoken = [opened, vec![answer.clone()]].concat();
                        self.repeats(&back, &spoken, &answer, returned);
                    }
                    _ => {
                        self.passes(&out, &opened, next.clone(), translated);
                        self.passes(&back, &opened, answer.clone(), returned);
                    }
                }
            }
        }
    }

    /// One side of a connection that is cached from its SYN on.
    fn goes_on(
        &mut self,
        name: &str,
        opened: &[Step],
        with: &impl Fn(u8) -> Step,
        verdict: Verdict,
    ) {
        let text = |what: &str| format!("{name}, cached, {what}");
        let next = with(ACK);
        self.passes(&text("behind its SYN"), opened, next.clone(), verdict);
        let known = [opened, std::slice::from_ref(&next)].concat();
        self.passes(&text("next"), &known, next, verdict);
        self.passes(&text("FIN"), &known, with(FIN | ACK), verdict);
    }

    /// Flows from the outside to the pod's own address.
    fn inbound(&mut self) {
        let net = self.net;
        for (body, name) in [(UDP, "UDP"), (TCP, "TCP")] {
            let asks =
                Frame::new(Macs::new(ROUTER, ENI_1.1), net.outside, net.a, body).ports(1000, 80);
            let first = Step::of_network(&asks.clone().tcp(SYN, 1));
            let next = Step::of_network(&asks.tcp(ACK, 2));
            let answers =
                Frame::new(Macs::new(POD_A, VETH_A.1), net.a, net.outside, body).ports(80, 1000);
            let accepts = Step::of_pod(&answers.clone().tcp(SYN | ACK, 1));
            let answers = Step::of_pod(&answers.tcp(ACK, 2));
            let text = |what: &str| format!("inbound flow, {name}, {what}");
            let opened = [first.clone(), accepts.clone()];
            let (local, inbound) = (Verdict::Local, Verdict::Inbound);
            self.passes(&text("first packet"), &[], first.clone(), local);
            self.passes(&text("first answer"), &[first], accepts, inbound);
            self.passes(&text("next packet"), &opened, next, local);
            self.passes(&text("next answer"), &opened, answers, inbound);
        }
    }

    /// Paths through the stack.
    fn stack(&mut self) {
        let net = self.net;
        let of_host = Frame::new(Macs::new(ENI_1.1, ROUTER), net.host, net.peer, UDP);
        let own = Step::of_stack(&of_host, 0);
        self.passes("host packet out", &[], own.clone(), Verdict::FromHost);
        let to_host = Frame::new(Macs::new(ROUTER, ENI_0.1), net.peer, net.host, UDP);
        let to_host = Step::new(Program::FromNetwork, ENI_0, to_host);
        self.passes("host packet in", &[], to_host, Verdict::NotForPod);
        let done = Step {
            mark: MarkLayout::DEFAULT.done(),
            ..own
        };
        let done = self.passes("done-marked packet", &[], done, Verdict::FromHost);
        done.outcome = None;
        let from_a = |to| Frame::new(Macs::new(ENI_1.1, ROUTER), net.a, to, UDP).ports(PORT, 53);
        let carried = Step::of_stack(&from_a(net.peer), VETH_A.0);
        self.passes(
            "carried by the stack, exempt",
            &[],
            carried,
            Verdict::Carried,
        );
        let carried = Step::of_stack(&from_a(net.outside), VETH_A.0);
        let verdict = Verdict::CarriedTranslated;
        let name = "carried by the stack, masqueraded";
        let before = [carried.clone()];
        self.passes(name, &before, carried, verdict);
        let to_a = Frame::new(Macs::new(VETH_A.1, POD_A), net.peer, net.a, UDP).ports(3000, 8080);
        let of_host =
            Frame::new(Macs::new(VETH_A.1, POD_A), net.host, net.a, UDP).ports(3000, 8080);
        let own = Step::to_pod(&of_host, 0);
        self.passes("host packet to a pod", &[], own, Verdict::FromHost)
            .needs_service_nat = true;

        let first = Step::to_pod(&to_a, ENI_1.0);
        let question = Step::of_network(&to_a.macs(ROUTER, ENI_1.1));
        let answer = Frame::new(Macs::new(POD_A, VETH_A.1), net.a, net.peer, UDP).ports(8080, 3000);
        let answer = Step::of_pod(&answer);
        let noted = [first.clone()];
        for (name, before, step, verdict) in [
            (
                "first packet to the pod",
                &[][..],
                first.clone(),
                Verdict::Noted,
            ),
            ("next packet to the pod", &noted, first, Verdict::Noted),
            (
                "next packet from the ENI",
                &noted,
                question,
                Verdict::StackFlow,
            ),
            ("answer of the pod", &noted, answer, Verdict::StackFlow),
        ] {
            let name = format!("stack flow, {name}");
            self.passes(&name, before, step, verdict).needs_service_nat = true;
        }
    }

    /// Paths that end in a drop.
    fn drops(&mut self) {
        let net = self.net;
        let from = |source, to, body| Frame::new(Macs::new(POD_A, VETH_A.1), source, to, body);
        let mut drops = vec![
            (from(net.peer, net.outside, UDP), DropReason::SpoofedSource),
            (from(net.a, net.free, UDP), DropReason::NoEndpoint),
            (
                from(net.a, net.outside, TCP).tcp(RST, 1),
                DropReason::NoFlow,
            ),
            (
                from(net.a, net.outside, Body::Protocol(47)),
                DropReason::NoPorts,
            ),
        ]
        .into_iter()
        .map(|(frame, reason)| (Step::of_pod(&frame), reason))
        .collect::<Vec<_>>();
        let mut cut = Step::of_pod(&from(net.a, net.peer, UDP));
        let mut bytes = cut.input(None).frame;
        bytes.truncate(bytes.len() - 1);
        cut.sent = Sent::Bytes(bytes);
        drops.push((cut, DropReason::Truncated));
        let by_other = Frame::new(Macs::new(ROUTER, ENI_0.1), net.peer, net.a, UDP);
        let by_other = Step::new(Program::FromNetwork, ENI_0, by_other);
        drops.push((by_other, DropReason::WrongEni));
        let to_free = Frame::new(Macs::new(ROUTER, ENI_1.1), net.peer, net.free, UDP);
        drops.push((Step::of_network(&to_free), DropReason::NoEndpoint));
        for (step, reason) in drops {
            let name = format!("drop, {}", reason.name());
            self.add(&name, &[], step, Outcome::Dropped(reason));
        }
    }
}

/// All paths, first those of one family, then those of the other.
pub(super) fn all() -> Vec<Path> {
    let mut all = Vec::new();
    for net in &NETS {
        let mut paths = Paths {
            net,
            paths: Vec::new(),
        };
        paths.untranslated();
        paths.translated();
        paths.inbound();
        paths.stack();
        paths.drops();
        all.extend(paths.paths);
    }
    let mut step = all[0].step.clone();
    step.sent = Sent::Bytes(other(Macs::new(POD_A, VETH_A.1), 0x1234));
    all.push(Path {
        name: "drop, not-ip".to_owned(),
        before: Vec::new(),
        step,
        outcome: Some(Outcome::Dropped(DropReason::NotIp)),
        needs_service_nat: false,
    });
    all
}
