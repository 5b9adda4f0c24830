//! The tables must produce every outcome that a program has.

use std::collections::BTreeSet;

use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Outcome, Verdict};

use crate::{
    from_endpoint, from_network, hostile, limits, nat, neighbour_discovery, path, stack_flows,
};

/// Outcomes that only a pod's packets to an end on this node have.
const OF_POD: [Verdict; 13] = [
    Verdict::Local,
    Verdict::Host,
    Verdict::Service,
    Verdict::TtlExpired,
    Verdict::TooBig,
    Verdict::IpOptions,
    Verdict::Multicast,
    Verdict::NeighbourDiscovery,
    Verdict::LinkLocal,
    Verdict::Arp,
    Verdict::Stack,
    Verdict::StackFlow,
    Verdict::Reordered,
];
/// Drops of a pod's packets, by frame and addresses.
const DROPS_OF_POD: [DropReason; 7] = [
    DropReason::SpoofedSource,
    DropReason::VlanTagged,
    DropReason::NotIp,
    DropReason::NoEndpoint,
    DropReason::UnroutableDestination,
    DropReason::RouterSolicitation,
    DropReason::LinkLocalLimit,
];
/// Verdicts of a pod's packet that leaves the node, whichever program sends it.
const LEAVING: [Verdict; 3] = [Verdict::Eni, Verdict::Translated, Verdict::Inbound];
/// Drops of packets that leave the node.
const DROPS_LEAVING: [DropReason; 14] = [
    DropReason::Truncated,
    DropReason::MalformedHeader,
    DropReason::EniNotReady,
    DropReason::NoPort,
    DropReason::FlowsFull,
    DropReason::QuotaExceeded,
    DropReason::NoTranslationAddress,
    DropReason::NoPorts,
    DropReason::FragmentUnknown,
    DropReason::InboundFull,
    DropReason::InboundQuotaExceeded,
    DropReason::NoFlow,
    DropReason::MetadataBlocked,
    DropReason::SctpPortTaken,
];

/// Verdicts of packets that an ENI receives.
const OF_NETWORK: [Verdict; 14] = [
    Verdict::Local,
    Verdict::TtlExpired,
    Verdict::TooBig,
    Verdict::IpOptions,
    Verdict::Multicast,
    Verdict::NotForPod,
    Verdict::ForeignFrame,
    Verdict::Returned,
    Verdict::HostReturned,
    Verdict::Stack,
    Verdict::StackReturned,
    Verdict::StackFlow,
    Verdict::StackFlowReturned,
    Verdict::Reordered,
];
/// Drops of packets that an ENI receives.
const DROPS_OF_NETWORK: [DropReason; 8] = [
    DropReason::Truncated,
    DropReason::MalformedHeader,
    DropReason::NoEndpoint,
    DropReason::EniNotReady,
    DropReason::WrongEni,
    DropReason::UnroutableSource,
    DropReason::InboundFull,
    DropReason::InboundQuotaExceeded,
];
/// Verdicts that only packets of the stack have.
const OF_STACK: [Verdict; 6] = [
    Verdict::FromHost,
    Verdict::HostClaimed,
    Verdict::HostTranslated,
    Verdict::Carried,
    Verdict::CarriedTranslated,
    Verdict::HostMoved,
];
/// Drops that only packets of the stack have.
const DROPS_OF_STACK: [DropReason; 3] = [
    DropReason::ServiceNotTranslated,
    DropReason::StackFull,
    DropReason::ForeignSource,
];

/// The outcomes of a program. `HelperFailed` is not among them: it needs a kernel that is out of
/// memory.
fn outcomes(program: Program) -> BTreeSet<Outcome> {
    let (passed, dropped): (Vec<Verdict>, Vec<DropReason>) = match program {
        Program::FromEndpoint => (
            [&OF_POD[..], &LEAVING].concat(),
            [&DROPS_OF_POD[..], &DROPS_LEAVING].concat(),
        ),
        Program::FromNetwork => (OF_NETWORK.to_vec(), DROPS_OF_NETWORK.to_vec()),
        Program::ToNetwork => (
            [&LEAVING[..], &OF_STACK].concat(),
            [&DROPS_LEAVING[..], &DROPS_OF_STACK].concat(),
        ),
        Program::ToEndpoint => (
            vec![Verdict::FromHost, Verdict::Noted, Verdict::ToPod],
            vec![DropReason::StackFull],
        ),
    };
    let passed = passed.into_iter().map(Outcome::Passed);
    passed
        .chain(dropped.into_iter().map(Outcome::Dropped))
        .collect()
}

#[test]
fn the_tables_produce_every_outcome() {
    let mut tables = vec![
        from_endpoint::cases(),
        neighbour_discovery::cases(),
        from_network::cases(),
        hostile::cases(),
        nat::cases(),
    ];
    let others = [limits::tables(), path::tables(), stack_flows::tables()];
    tables.extend(others.into_iter().flatten().map(|table| table.cases));
    for program in Program::ALL {
        let produced: BTreeSet<Outcome> = tables
            .iter()
            .flatten()
            .filter(|case| case.program == program)
            .map(|case| case.expect.outcome())
            .collect();
        assert_eq!(produced, outcomes(program), "{}", program.name());
    }
}

#[test]
fn every_outcome_is_some_programs() {
    let all: BTreeSet<Outcome> = Verdict::ALL
        .iter()
        .copied()
        .map(Outcome::Passed)
        .chain(DropReason::ALL.iter().copied().map(Outcome::Dropped))
        .collect();
    let mut known: BTreeSet<Outcome> = Program::ALL.into_iter().flat_map(outcomes).collect();
    known.insert(Outcome::Dropped(DropReason::HelperFailed));
    assert_eq!(known, all);
}
