//! Dropped packets: each reason that a frame can cause on this node.

use anyhow::Result;
use datapath_common::abi::{Addr, EniAddresses, EniEntry};
use datapath_common::counter::Program;
use datapath_common::mark::MarkLayout;
use datapath_common::outcome::{DropReason, Outcome};
use testkit::packet::{Body, Frame, Macs, Piece, other};
use testkit::testrun::DROP;
use testkit::testrun::scene::{
    Device, ENI_1, IF_C, Net, POD_A, V4, V6, VETH_A, VETH_C, fill, from_a, gateways, know_gateways,
    received, sent, unroutable,
};

use super::meter::{Expected, Meter, Path, packet};
use super::paths::{TCP, UDP, on};
use super::variant::Variants;

const RST: u8 = 4;
/// Ether type of a VLAN tag, and one that the programs do not handle.
const VLAN: u16 = 0x8100;
const LLDP: u16 = 0x88cc;

/// A packet that is dropped.
pub(super) fn dropped(
    program: Program,
    device: Device,
    frame: Vec<u8>,
    reason: DropReason,
) -> Path {
    Path {
        name: format!("drop: {}, {}", reason.name(), program.name()),
        program,
        on: on(device),
        packets: vec![packet(frame, 0)],
        expected: Expected {
            code: DROP,
            outcome: Some(Outcome::Dropped(reason)),
        },
    }
}

/// A path of one family.
fn of_family(mut path: Path, net: &Net) -> Path {
    path.name = format!("{}, {}", path.name, net.family());
    path
}

/// A packet of a pod's device that the stack forwarded to an ENI.
fn carried(mut path: Path, by: Device) -> Path {
    path.on.ingress_ifindex = by.ifindex;
    path
}

/// The paths of one family.
fn paths(net: &Net) -> Vec<Path> {
    let mut paths = Vec::from(of_pods(net));
    paths.extend(of_network(net));
    paths.extend(to_network(net));
    paths.extend(malformed(net));
    paths.extend(nowhere(net));
    paths.into_iter().map(|path| of_family(path, net)).collect()
}

/// Packets that pods send.
fn of_pods(net: &Net) -> [Path; 7] {
    let sends = |device, frame: &Frame, reason| {
        dropped(Program::FromEndpoint, device, frame.bytes(), reason)
    };
    let to_outside = |body| from_a(net, net.outside, body);
    let later = Piece {
        offset: 800,
        length: 400,
        more: false,
        id: 4711,
    };
    let spoofed = to_outside(UDP.1).from(net.b, 40_000);
    let to_nobody = from_a(net, net.free, UDP.1);
    let of_c = sent(IF_C, net.c, net.outside, UDP.1);
    let portless = to_outside(Body::Protocol(47));
    let fragment = to_outside(Body::Udp(1200)).piece(later);
    let reset = to_outside(TCP.1).tcp(RST, 5);
    let sctp = to_outside(Body::Sctp(100)).ports(30_000, 80);
    [
        sends(VETH_A, &spoofed, DropReason::SpoofedSource),
        sends(VETH_A, &to_nobody, DropReason::NoEndpoint),
        sends(VETH_C, &of_c, DropReason::EniNotReady),
        sends(VETH_A, &portless, DropReason::NoPorts),
        sends(VETH_A, &fragment, DropReason::FragmentUnknown),
        sends(VETH_A, &reset, DropReason::NoFlow),
        sends(VETH_A, &sctp, DropReason::SctpPortTaken),
    ]
}

/// Packets that an ENI receives.
fn of_network(net: &Net) -> [Path; 3] {
    let comes = |to, reason| {
        let frame = received(ENI_1, net.peer, to, UDP.1);
        dropped(Program::FromNetwork, ENI_1, frame.bytes(), reason)
    };
    [
        comes(net.b, DropReason::WrongEni),
        comes(net.free, DropReason::NoEndpoint),
        comes(net.c, DropReason::EniNotReady),
    ]
}

/// Packets that the stack sends by an ENI.
fn to_network(net: &Net) -> [Path; 2] {
    let leaves = |frame: &Frame, reason| dropped(Program::ToNetwork, ENI_1, frame.bytes(), reason);
    let service = from_a(net, net.service, UDP.1);
    let service = leaves(&service, DropReason::ServiceNotTranslated);
    let sent_back = received(ENI_1, net.outside, net.free, UDP.1);
    let mut sent_back = leaves(&sent_back, DropReason::ForeignSource);
    for packet in &mut sent_back.packets {
        packet.mark = MarkLayout::DEFAULT.eni(1).unwrap_or_default();
    }
    [carried(service, VETH_A), carried(sent_back, ENI_1)]
}

/// Packets whose header has too large a length, or is invalid.
fn malformed(net: &Net) -> Vec<Path> {
    let sent = from_a(net, net.outside, UDP.1);
    let received = received(ENI_1, net.peer, net.a, UDP.1);
    let mut paths = Vec::new();
    for (program, device, frame) in [
        (Program::FromEndpoint, VETH_A, sent),
        (Program::FromNetwork, ENI_1, received),
    ] {
        let mut longer = frame.bytes();
        let length = if net.a.is_ipv4() { 16 } else { 18 };
        longer[length] = 0x40;
        let reason = DropReason::Truncated;
        paths.push(dropped(program, device, longer, reason));
        let mut broken = frame.bytes();
        broken[14] = 0x10;
        let reason = DropReason::MalformedHeader;
        paths.push(dropped(program, device, broken, reason));
    }
    paths
}

/// Packets to and from an address that no network routes.
fn nowhere(net: &Net) -> [Path; 2] {
    let [_, address, _] = unroutable(net);
    [
        dropped(
            Program::FromEndpoint,
            VETH_A,
            from_a(net, address, UDP.1).bytes(),
            DropReason::UnroutableDestination,
        ),
        dropped(
            Program::FromNetwork,
            ENI_1,
            received(ENI_1, address, net.a, UDP.1).bytes(),
            DropReason::UnroutableSource,
        ),
    ]
}

/// Frames that are no IP packets.
fn frames() -> Vec<Path> {
    let program = Program::FromEndpoint;
    let macs = Macs::new(POD_A, VETH_A.mac);
    [(VLAN, DropReason::VlanTagged), (LLDP, DropReason::NotIp)]
        .map(|(ether_type, reason)| dropped(program, VETH_A, other(macs, ether_type), reason))
        .into()
}

/// Measures all drops.
pub(super) fn measure(meter: &mut Meter, variants: &mut Variants) -> Result<()> {
    let all = [paths(&V4), paths(&V6), frames()];
    let unknown = Some(Outcome::Dropped(DropReason::FragmentUnknown));
    for path in all.into_iter().flatten() {
        // Where the stack puts fragments in order, none is dropped for being unknown.
        let is_elsewhere = |notes_stack| notes_stack && path.expected.outcome == unknown;
        let here = variants.usual();
        let here = here.filter(|variant| !is_elsewhere(variant.notes_stack));
        meter.measure(&path, here, &[])?;
    }
    without_address(meter, variants)
}

/// An ENI without an address to translate to.
fn without_address(meter: &mut Meter, variants: &mut Variants) -> Result<()> {
    let (v4, v6) = gateways(1);
    let of = |gateway| EniAddresses::new(gateway, Addr::UNSPECIFIED, 1);
    let entry = EniEntry::new(ENI_1.ifindex, 1500, of(v4.into()), of(v6.into()));
    for variant in &mut variants.0 {
        variant.programs.put_eni(1, entry)?;
    }
    for net in [V4, V6] {
        let path = dropped(
            Program::FromEndpoint,
            VETH_A,
            from_a(&net, net.outside, UDP.1).bytes(),
            DropReason::NoTranslationAddress,
        );
        meter.measure(&of_family(path, &net), variants.usual(), &[])?;
    }
    for variant in &mut variants.0 {
        fill(&mut variant.programs)?;
        know_gateways(&variant.programs)?;
    }
    Ok(())
}
