//! New flows without room, without an address or without permission.

use datapath_common::abi::{Addr, EniAddresses, EniEntry, FlowQuotas};
use datapath_common::config::PortSlice;
use datapath_common::counter::Program;
use datapath_common::masquerade::MetadataPolicy;
use datapath_common::outcome::{DropReason, Verdict};
use loader::bpf::{DatapathMode, DatapathSettings, FlowPorts};
use testkit::packet::Body;

use crate::case::{Case, Expect, Table, on};
use crate::leaving::{Leaves, of_a};
use crate::world::*;

const UDP: Body = Body::Udp(10);
const SYN_ACK: u8 = 18;

/// Pod A's flow from a port.
fn flow(net: &Net, port: u16, leaves: Leaves) -> Vec<Case> {
    let frame = from_a(net, net.outside, UDP).ports(port, 53);
    of_a(net, &format!("from {port}"), &frame, leaves)
}

/// A host's packet from a port, and its result.
fn of_host(net: &Net, port: u16, expect: Expect) -> Case {
    let name = format!("{} from the host's {port}", net.family());
    let frame = received(ENI_1, net.snat[1], net.outside, UDP).ports(port, 53);
    let case = Case::new(Program::ToNetwork, name, on(ENI_1, frame.bytes()), expect);
    case.of_host()
}

fn quota() -> Table {
    let claimed = || Expect::Stack(Verdict::HostClaimed, OTHERS);
    let exceeded = Leaves::Drop(DropReason::QuotaExceeded);
    let cases = [
        flow(&V4, 50_000, Leaves::Translated(1, 50_000)),
        flow(&V4, 50_001, exceeded),
        flow(&V6, 50_000, exceeded),
        vec![
            of_host(&V4, 50_002, claimed()),
            of_host(&V6, 50_003, claimed()),
        ],
        // The existing flow continues.
        flow(&V4, 50_000, Leaves::Translated(1, 50_000)),
    ]
    .concat();
    Table {
        settings: DatapathSettings {
            quotas: FlowQuotas {
                endpoint: 1,
                ..FlowQuotas::DEFAULT
            },
            ..settings()
        },
        prepare: |_| {},
        cases,
    }
}

fn full() -> Table {
    let mut cases = Vec::new();
    for net in [V4, V6] {
        cases.extend(flow(&net, 50_000, Leaves::Translated(1, 50_000)));
        cases.extend(flow(&net, 50_001, Leaves::Drop(DropReason::FlowsFull)));
        // The host needs no room for a port that no flow has.
        cases.push(of_host(
            &net,
            50_001,
            Expect::Stack(Verdict::FromHost, OTHERS),
        ));
        let drop = Expect::Drop(DropReason::FlowsFull);
        cases.push(of_host(&net, 50_000, drop));
    }
    let from = |port| {
        let frame = received(ENI_1, V4.outside, V4.a, UDP).ports(port, 53);
        let lowered = frame.clone().hop_limit(63).macs(VETH_A.mac, POD_A);
        let local = Expect::Redirect(Verdict::Local, lowered.bytes(), 0);
        (frame.bytes(), local)
    };
    let program = Program::FromNetwork;
    let (frame, local) = from(1000);
    cases.push(Case::new(program, "one", on(ENI_1, frame), local));
    let (frame, _) = from(1001);
    let drop = Expect::Drop(DropReason::InboundFull);
    cases.push(Case::new(program, "one too many", on(ENI_1, frame), drop));
    let accepts = from_a(&V4, V4.outside, Body::Tcp(0)).tcp(SYN_ACK, 1);
    let drop = Leaves::Drop(DropReason::InboundFull);
    cases.extend(of_a(&V4, "an acceptance", &accepts, drop));
    Table {
        settings: DatapathSettings {
            flows_v4: 1,
            flows_v6: 1,
            inbound: 1,
            ..settings()
        },
        prepare: |_| {},
        cases,
    }
}

/// Flows of pod A from the outside, and of pod B with the same address.
fn inbound_quota() -> Table {
    let mut cases = Vec::new();
    let drop = || Expect::Drop(DropReason::InboundQuotaExceeded);
    for net in [V4, V6] {
        let request = |pod, (veth, mac): (Device, _), port| {
            let frame = received(ENI_1, net.outside, pod, UDP).ports(port, 53);
            let lowered = frame.clone().hop_limit(63).macs(veth.mac, mac);
            (
                frame.bytes(),
                Expect::Redirect(Verdict::Local, lowered.bytes(), 0),
            )
        };
        let mut receives = |name: &str, (frame, expect): (Vec<u8>, _)| {
            let name = format!("{} {name}", net.family());
            cases.push(Case::new(
                Program::FromNetwork,
                name,
                on(ENI_1, frame),
                expect,
            ));
        };
        // The first family has the one flow that pod A may have.
        let first = request(net.a, (VETH_A, POD_A), 1000);
        if net.family() == V4.family() {
            receives("one", first.clone());
            receives("the same", first);
        } else {
            receives("one of the other family", (first.0, drop()));
        }
        let (frame, _) = request(net.a, (VETH_A, POD_A), 1001);
        receives("one too many", (frame, drop()));
        let accepts = from_a(&net, net.outside, Body::Tcp(0)).tcp(SYN_ACK, 1);
        let exceeded = Leaves::Drop(DropReason::InboundQuotaExceeded);
        cases.extend(of_a(&net, "an acceptance", &accepts, exceeded));
        // Flows that the pod opens are not affected.
        cases.extend(flow(&net, 50_000, Leaves::Translated(1, 50_000)));
    }
    Table {
        settings: DatapathSettings {
            quotas: FlowQuotas {
                inbound: 1,
                ..FlowQuotas::DEFAULT
            },
            ..settings()
        },
        prepare: |_| {},
        cases,
    }
}

/// Ports that the host claims: up to its quota, and then none where no other flow has the port.
fn host_quota() -> Table {
    let claimed = || Expect::Stack(Verdict::HostClaimed, OTHERS);
    let left = || Expect::Stack(Verdict::FromHost, OTHERS);
    let mut cases = vec![
        of_host(&V4, 50_002, claimed()),
        of_host(&V4, 50_003, left()),
    ];
    cases.extend(flow(&V4, 50_003, Leaves::Translated(1, 50_003)));
    let drop = Expect::Drop(DropReason::QuotaExceeded);
    cases.push(of_host(&V4, 50_003, drop));
    cases.push(of_host(&V4, 50_002, claimed()));
    Table {
        settings: DatapathSettings {
            quotas: FlowQuotas {
                host: 1,
                ..FlowQuotas::DEFAULT
            },
            ..settings()
        },
        prepare: |_| {},
        cases,
    }
}

/// One destination, one block of ports.
fn exhausted() -> Table {
    let mut cases = Vec::new();
    for port in 1024..1536 {
        cases.extend(flow(&V4, port, Leaves::Translated(1, port)).drain(..1));
    }
    for port in [1536, 40_000] {
        cases.extend(flow(&V4, port, Leaves::Drop(DropReason::NoPort)));
    }
    let drop = Expect::Drop(DropReason::NoPort);
    cases.push(of_host(&V4, 1024, drop));
    // Another destination has all of its ports.
    let frame = from_a(&V4, V4.outside, UDP).ports(1024, 54);
    cases.extend(of_a(&V4, "to another", &frame, Leaves::Translated(1, 1024)));
    let none = PortSlice::NONE;
    let one = PortSlice::new(1024, 1535).unwrap();
    Table {
        settings: DatapathSettings {
            ports: FlowPorts::only([one, none, none, none]),
            ..settings()
        },
        prepare: |_| {},
        cases,
    }
}

fn metadata(policy: MetadataPolicy, leaves: Leaves) -> Table {
    let mut cases = Vec::new();
    for net in [V4, V6] {
        let frame = from_a(&net, net.metadata, Body::Tcp(0)).ports(50_000, 80);
        cases.extend(of_a(&net, "to the metadata service", &frame, leaves));
    }
    Table {
        settings: DatapathSettings {
            metadata: policy,
            ..settings()
        },
        prepare: |_| {},
        cases,
    }
}

/// Packets to the metadata service by the stack, which then take the primary ENI.
fn metadata_by_the_stack() -> Table {
    let mut cases = Vec::new();
    for net in [V4, V6] {
        for body in [Body::Tcp(0), Body::Udp(100)] {
            let frame = from_a(&net, net.metadata, body).ports(50_000, 80);
            let name = format!("{} {body:?} to the metadata service", net.family());
            let up = Expect::Stack(Verdict::Stack, marked(1));
            for _again in 0..3 {
                let name = name.clone();
                let bytes = frame.bytes();
                cases.push(Case::new(
                    Program::FromEndpoint,
                    name,
                    on(VETH_A, bytes),
                    up.clone(),
                ));
            }
        }
    }
    Table {
        settings: DatapathSettings {
            metadata: MetadataPolicy::Stack,
            path: DatapathMode::ServiceNat,
            ..settings()
        },
        prepare: |_| {},
        cases,
    }
}

/// An ENI without translation addresses, and packets of a pod whose ENI is not ready.
fn no_address() -> Table {
    let mut cases = Vec::new();
    for net in [V4, V6] {
        let drop = Leaves::Drop(DropReason::NoTranslationAddress);
        cases.extend(flow(&net, 50_000, drop));
        let frame = sent(IF_C, net.c, net.outside, UDP);
        let drop = || Expect::Drop(DropReason::EniNotReady);
        let name = format!("{} of an ENI that is not ready", net.family());
        let case = Case::new(Program::ToNetwork, name, on(ENI_1, frame.bytes()), drop());
        cases.push(case.of_pod(VETH_C));
    }
    Table {
        settings: settings(),
        prepare: |programs| {
            let of = |gateway: Addr| EniAddresses::new(gateway, Addr::UNSPECIFIED, 1);
            let (v4, v6) = gateways(1);
            let (v4, v6) = (of(v4.into()), of(v6.into()));
            let mtu = u32::try_from(ENI_MTU).unwrap();
            let entry = EniEntry::new(ENI_1.ifindex, mtu, v4, v6);
            programs.put_eni(1, entry).unwrap();
        },
        cases,
    }
}

/// A family that is not masqueraded.
fn off() -> Table {
    let mut cases = Vec::new();
    for body in [
        UDP,
        Body::Tcp(0),
        Body::Protocol(47),
        Body::Echo { asks: false },
    ] {
        let frame = from_a(&V6, V6.outside, body);
        cases.extend(of_a(&V6, "off", &frame, Leaves::As(Verdict::Eni)));
    }
    let frame = from_a(&V6, V6.metadata, Body::Tcp(0)).ports(50_000, 80);
    let leaves = Leaves::Translated(0, 50_000);
    cases.extend(of_a(&V6, "to the metadata service", &frame, leaves));
    Table {
        settings: DatapathSettings::default(),
        prepare: |_| {},
        cases,
    }
}

pub(crate) fn tables() -> Vec<Table> {
    let blocked = Leaves::Drop(DropReason::MetadataBlocked);
    vec![
        quota(),
        inbound_quota(),
        host_quota(),
        full(),
        exhausted(),
        metadata(MetadataPolicy::Primary, Leaves::Translated(0, 50_000)),
        metadata(MetadataPolicy::Own, Leaves::As(Verdict::Eni)),
        metadata(MetadataPolicy::Block, blocked),
        metadata_by_the_stack(),
        no_address(),
        off(),
    ]
}

#[test]
fn where_there_is_no_room_packets_are_dropped_with_their_reason() {
    for table in tables() {
        table.check();
    }
}
