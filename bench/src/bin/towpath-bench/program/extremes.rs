//! Drops for lack of room or permission, with tables and quotas of one flow.

use anyhow::Result;
use datapath_common::abi::FlowQuotas;
use datapath_common::counter::Program;
use datapath_common::masquerade::MetadataPolicy;
use datapath_common::outcome::{DropReason, Verdict};
use loader::bpf;
use loader::bpf::DatapathSettings;
use testkit::testrun::Programs;
use testkit::testrun::scene::{
    self, Device, ENI_0, ENI_1, IF_B, STRANGER, V4, VETH_A, VETH_B, from_a, received, sent, to_a,
};

use super::drops::dropped;
use super::meter::{Expected, Meter, Path, packet};
use super::paths::{UDP, leaves, on, passes};
use super::variant::{Variant, settings};

/// Measures these drops.
pub(super) fn measure(meter: &mut Meter) -> Result<()> {
    let settings = DatapathSettings {
        metadata: MetadataPolicy::Block,
        flows_v4: 1,
        inbound: 1,
        stack: 1,
        quotas: FlowQuotas {
            endpoint: 1,
            inbound: 1,
            ..FlowQuotas::DEFAULT
        },
        ..settings(bpf::DatapathMode::ServiceNat)
    };
    let mut programs = Programs::load_with(&settings)?;
    scene::fill(&mut programs)?;
    scene::know_gateways(&programs)?;
    let mut node = Variant {
        suffix: "",
        notes_stack: true,
        is_cached: true,
        programs,
    };
    for room in [flow(), inbound_flow(), noted_flow()] {
        meter.pass(&room.taken, std::iter::once(&mut node))?;
        for path in room.refused {
            meter.measure(&path, std::iter::once(&mut node), &[])?;
        }
    }
    Ok(())
}

/// The room for one flow.
struct Room {
    /// A packet that takes it.
    taken: Path,
    /// Packets that are dropped since then.
    refused: Vec<Path>,
}

/// A path of one packet.
fn step(name: &str, program: Program, of: (Device, Vec<u8>), expected: Expected) -> Path {
    let (device, frame) = of;
    Path {
        name: name.to_owned(),
        program,
        on: on(device),
        packets: vec![packet(frame, 0)],
        expected,
    }
}

/// Room for a translated flow.
fn flow() -> Room {
    let out = Program::FromEndpoint;
    let of_a = |port| from_a(&V4, V4.outside, UDP.1).ports(port, 53).bytes();
    let of_b = sent(IF_B, V4.b, V4.outside, UDP.1).ports(50_002, 53);
    let to_metadata = from_a(&V4, V4.metadata, UDP.1).bytes();
    let first = (VETH_A, of_a(50_000));
    Room {
        taken: step("one flow", out, first, leaves(Verdict::Translated)),
        refused: vec![
            dropped(out, VETH_A, of_a(50_001), DropReason::QuotaExceeded),
            dropped(out, VETH_B, of_b.bytes(), DropReason::FlowsFull),
            dropped(out, VETH_A, to_metadata, DropReason::MetadataBlocked),
        ],
    }
}

/// Room for an inbound flow.
fn inbound_flow() -> Room {
    let back = Program::FromNetwork;
    let asks_a = |port| {
        received(ENI_1, V4.outside, V4.a, UDP.1)
            .ports(port, 53)
            .bytes()
    };
    let asks_b = received(ENI_0, V4.outside, V4.b, UDP.1).ports(3003, 53);
    let first = (ENI_1, asks_a(3001));
    Room {
        taken: step("one inbound flow", back, first, leaves(Verdict::Local)),
        refused: vec![
            dropped(back, ENI_1, asks_a(3002), DropReason::InboundQuotaExceeded),
            dropped(back, ENI_0, asks_b.bytes(), DropReason::InboundFull),
        ],
    }
}

/// Room for a flow that the stack carries.
fn noted_flow() -> Room {
    let comes = |port| {
        let frame = to_a(&V4, V4.peer, UDP.1).ports(port, 53);
        frame.macs(STRANGER, VETH_A.mac).bytes()
    };
    let by_eni = |mut path: Path| {
        path.on.ingress_ifindex = ENI_0.ifindex;
        path
    };
    let noting = Program::ToEndpoint;
    let first = (VETH_A, comes(3004));
    let taken = step("one noted flow", noting, first, passes(Verdict::Noted));
    let refused = dropped(noting, VETH_A, comes(3005), DropReason::StackFull);
    Room {
        taken: by_eni(taken),
        refused: vec![by_eni(refused)],
    }
}
