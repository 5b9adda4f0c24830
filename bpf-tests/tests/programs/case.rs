//! One packet, one program, and all expected results.

use std::collections::BTreeMap;

use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::{DropReason, Outcome, Verdict};
use loader::bpf::DatapathSettings;
use testkit::packet::{ETHERNET, Frame};
use testkit::testrun::{DROP, Input, Output, PASS, Programs, REDIRECT};

use crate::world::{Device, MARK_IN, OTHERS, done, node, node_with};

/// Nonzero counters, by their slot.
type Counters = BTreeMap<u32, Counter>;

/// Expected result for the packet.
#[derive(Clone)]
pub(crate) enum Expect {
    /// It goes to the stack with this mark; no byte changes.
    Stack(Verdict, u32),
    /// It is redirected with these bytes and this mark.
    Redirect(Verdict, Vec<u8>, u32),
    /// It goes to the stack with these bytes and this mark.
    Rewritten(Verdict, Vec<u8>, u32),
    /// It goes to the stack with another port for translation as its source, and an unchanged mark.
    OtherPort(Verdict, Box<Frame>),
    /// It is dropped.
    Drop(DropReason),
}

impl Expect {
    /// The outcome that is counted.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Stack(verdict, _)
            | Self::Redirect(verdict, _, _)
            | Self::Rewritten(verdict, _, _)
            | Self::OtherPort(verdict, _) => Outcome::Passed(*verdict),
            Self::Drop(reason) => Outcome::Dropped(*reason),
        }
    }
}

/// A packet on a device.
pub(crate) fn on(device: Device, frame: Vec<u8>) -> Input {
    Input {
        frame,
        ifindex: device.ifindex,
        ingress_ifindex: device.ifindex,
        mark: MARK_IN,
        gso_size: 0,
    }
}

/// A packet for a program.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) input: Input,
    pub(crate) expect: Expect,
}

impl Case {
    pub(crate) fn new(
        program: Program,
        name: impl Into<String>,
        input: Input,
        expect: Expect,
    ) -> Self {
        Self {
            name: name.into(),
            program,
            input,
            expect,
        }
    }

    /// As a GSO packet with segments of this payload in bytes.
    pub(crate) fn gso(mut self, gso_size: usize) -> Self {
        self.input.gso_size = u32::try_from(gso_size).unwrap();
        self
    }

    /// As a packet of the host's own.
    pub(crate) fn of_host(mut self) -> Self {
        self.input.ingress_ifindex = 0;
        self.input.mark = OTHERS;
        self
    }

    /// As a packet that a pod's device received.
    pub(crate) fn of_pod(self, device: Device) -> Self {
        // In packets that the stack sends, our bits are the owner ENI's.
        self.by(device, OTHERS)
    }

    /// As a packet that a device received, and that has this mark.
    pub(crate) fn by(mut self, device: Device, mark: u32) -> Self {
        self.input.ingress_ifindex = device.ifindex;
        self.input.mark = mark;
        self
    }

    /// True if it is a packet that the stack sends on. On Linux 5.10 a test run cannot have another
    /// device as the receiver.
    pub(crate) fn is_carried(&self) -> bool {
        let is_sent = matches!(self.program, Program::ToNetwork | Program::ToEndpoint);
        is_sent && self.input.ingress_ifindex != 0
    }

    /// Runs the case and compares its result.
    pub(crate) fn check(&self, programs: &mut Programs) {
        let before = programs.counters().unwrap();
        self.check_after(programs, &before);
    }

    /// Runs the case after these counts, and returns the new ones. Reading the counters takes
    /// longer than all the rest.
    fn check_after(&self, programs: &mut Programs, before: &Counters) -> Counters {
        let name = format!("{}: {}", self.program.name(), self.name);
        let output = programs
            .run(self.program, &self.input)
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let counted = programs.counters().unwrap();
        let moved: Vec<_> = counted
            .iter()
            .filter_map(|(slot, after)| {
                let before = before.get(slot).copied().unwrap_or_default();
                (*after != before).then(|| {
                    let (packets, bytes) =
                        (after.packets - before.packets, after.bytes - before.bytes);
                    (self.describe(*slot), Counter { packets, bytes })
                })
            })
            .collect();
        let outcome = self.expect.outcome();
        let once = Counter {
            packets: 1,
            bytes: self.input.frame.len() as u64,
        };
        assert_eq!(
            moved,
            [(outcome.name().to_owned(), once)],
            "{name}: counters"
        );
        self.judge(&output);
        counted
    }

    /// Compares the result.
    pub(crate) fn judge(&self, output: &Output) {
        let name = format!("{}: {}", self.program.name(), self.name);
        let chosen;
        let (code, frame, mark) = match &self.expect {
            Expect::Stack(_, mark) => (PASS, &self.input.frame, *mark),
            Expect::Redirect(_, frame, mark) => (REDIRECT, frame, *mark),
            Expect::Rewritten(_, frame, mark) => (PASS, frame, *mark),
            Expect::OtherPort(_, frame) => {
                chosen = with_port(frame, &output.frame);
                (PASS, &chosen, self.input.mark)
            }
            // The contents of a dropped packet do not matter.
            Expect::Drop(_) => {
                assert_eq!(output.code, DROP, "{name}: code");
                return;
            }
        };
        assert_eq!(output.code, code, "{name}: code");
        assert_eq!(
            output.mark, mark,
            "{name}: mark {:#x}, not {mark:#x}",
            output.mark
        );
        assert_eq!(hex(&output.frame), hex(frame), "{name}: bytes");
    }

    /// The outcome of a counter's slot, or a description of another slot.
    fn describe(&self, slot: u32) -> String {
        slot.checked_sub(self.program.slot(Outcome::Passed(Verdict::Local)))
            .and_then(|code| u8::try_from(code).ok())
            .and_then(Outcome::from_code)
            .map_or(format!("slot {slot}"), |outcome| outcome.name().to_owned())
    }
}

/// A node with settings of its own, and its cases.
pub(crate) struct Table {
    pub(crate) settings: DatapathSettings,
    pub(crate) prepare: fn(&mut Programs),
    pub(crate) cases: Vec<Case>,
}

impl Table {
    /// Checks all cases, one after the other.
    pub(crate) fn check(&self) {
        let mut programs = node_with(&self.settings);
        (self.prepare)(&mut programs);
        for case in &self.cases {
            case.check(&mut programs);
        }
    }
}

/// The frame with the port that a program chose, which must be one for translation and not the
/// frame's.
fn with_port(frame: &Frame, made: &[u8]) -> Vec<u8> {
    let at = ETHERNET + if frame.source.is_ipv4() { 20 } else { 40 };
    let port = u16::from_be_bytes([made[at], made[at + 1]]);
    assert!(port >= 40_960 && port != frame.ports.0, "port {port}");
    frame.clone().from(frame.source, port).bytes()
}

/// Runs every case on one node.
pub(crate) fn check_all(cases: &[Case]) {
    let mut programs = node();
    let mut counted = programs.counters().unwrap();
    for case in cases {
        counted = case.check_after(&mut programs, &counted);
    }
}

/// A packet that leaves with its hop limit lowered by one, and its MACs unchanged.
pub(crate) fn to_eni(frame: &Frame) -> Expect {
    let frame = frame.clone().hop_limit(frame.hop_limit - 1);
    Expect::Redirect(Verdict::Eni, frame.bytes(), done())
}

/// A packet that is delivered to a pod: hop limit lowered, MACs of that pod's veth, no mark.
pub(crate) fn to_pod(frame: &Frame, device: Device, pod_mac: [u8; 6]) -> Expect {
    let frame = frame
        .clone()
        .hop_limit(frame.hop_limit - 1)
        .macs(device.mac, pod_mac);
    Expect::Redirect(Verdict::Local, frame.bytes(), 0)
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .concat()
}
