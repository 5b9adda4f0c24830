//! Requests to the sweeper of translated flows, and its state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use api::types::{Metric, NatStats, NatStatus};
use datapath_common::abi::HOST;
use datapath_common::counter::{Counter, NatStat, Program};
use datapath_common::outcome::{DropReason, Outcome};
use flows::NatCounters;
use ipam::Family;
use loader::intent::Endpoint;
use loader::kernel::{MapEntry, MapKey};

use crate::actor::Actor;
use crate::actor::commands::sweeper;
use crate::host::kernel::Host;
use crate::server::Reply;
use flows as nat;

/// Why a packet was not translated that should have been.
const FAILURES: [DropReason; 11] = [
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

/// Packets of all programs by the reasons that are of translation.
fn failures(counters: &BTreeMap<(Program, Outcome), Counter>) -> BTreeMap<String, u64> {
    FAILURES
        .into_iter()
        .map(|reason| {
            let of = |program| counters.get(&(program, Outcome::Dropped(reason)));
            let counts = Program::ALL.into_iter().filter_map(of);
            let packets = counts.map(|counter| counter.packets).sum();
            (reason.name().to_owned(), packets)
        })
        .collect()
}

impl<K: Host> Actor<K> {
    /// Reports the result of a pass to the garbage collection.
    pub(crate) fn tell_sweeper(&self) {
        let endpoints = self.intent.endpoints.values();
        let addresses: BTreeSet<_> = endpoints.flat_map(|e| &e.addresses).copied().collect();
        self.observers
            .nat
            .passed(addresses, self.passes.last.is_clean());
    }

    /// Makes the sweeper answer with its statistics, and adds the datapath's counters.
    pub(crate) fn nat_stats(&self, reply: Reply<Box<NatStats>>) {
        let counters = self.reconciler.kernel().counters();
        self.observers.nat.stats(Box::new(move |stats| {
            let whole = stats.and_then(|stats| {
                let failures = failures(&counters?);
                Ok(Box::new(NatStats { failures, ..stats }))
            });
            sweeper::answer(reply)(whole);
        }));
    }

    /// Where room for flows is short, or was refused lately.
    pub(crate) fn short_of_room(&self) -> Vec<String> {
        nat::pressure(&self.observers.nat.report(), Instant::now(), |identity| {
            if identity == HOST {
                return "the host".to_owned();
            }
            let entries = self.reconciler.kernel().map_entries().unwrap_or_default();
            let is_its = |address: &IpAddr| {
                matches!(
                    entries.get(&MapKey::Address(*address)),
                    Some(MapEntry::Address(_, entry))
                        if entry.is_endpoint() && entry.identity() == identity
                )
            };
            let mut endpoints = self.intent.endpoints.values();
            let found = endpoints.find(|endpoint| endpoint.addresses.iter().any(is_its));
            found.map_or_else(|| "an endpoint that is gone".to_owned(), named)
        })
    }

    /// The state of the sweeper.
    pub(crate) fn nat_status(&self) -> NatStatus {
        nat::status(&self.observers.nat.report())
    }
}

/// An endpoint by its pod, where that is known.
pub(super) fn named(endpoint: &Endpoint) -> String {
    match &endpoint.about.pod {
        Some(pod) => format!("pod {pod}"),
        None => format!("endpoint {}", endpoint.owner),
    }
}

/// The name and meaning of each count.
fn meaning(stat: NatStat) -> (&'static str, &'static str) {
    match stat {
        NatStat::Allocated => ("allocated", "Flows that got a port."),
        NatStat::Kept => ("kept", "Of these, those that kept their source port."),
        NatStat::Host => ("host", "Of these, those of the host."),
        NatStat::Removed => ("removed", "Flows that were removed."),
        NatStat::InboundNoted => ("inbound-noted", "Flows from the outside that were noted."),
        NatStat::InboundRemoved => ("inbound-removed", "Notes of them that were removed."),
        NatStat::Tries1 => ("tries-1", "Flows that got the first port that was tried."),
        NatStat::Tries5 => ("tries-5", "Flows that got one of ports 2 to 5."),
        NatStat::Tries16 => ("tries-16", "Flows that got one of ports 6 to 16."),
        NatStat::Tries32 => ("tries-32", "Flows that got one of ports 17 to 32."),
        NatStat::TriesMore => ("tries-more", "Flows that got a later port."),
        NatStat::Failed => ("failed", "Flows that got no port, for whatever reason."),
        NatStat::InboundFailed => (
            "inbound-failed",
            "Flows from the outside that could not be noted.",
        ),
        NatStat::StackNoted => ("stack-noted", "Flows of the host's stack noted."),
        NatStat::StackRemoved => ("stack-removed", "Flows of the host's stack removed."),
        NatStat::StackFailed => (
            "stack-failed",
            "Flows of the host's stack that could not be noted.",
        ),
    }
}

/// The counters of translation, shown as the datapath's other counters. They count flows.
pub(crate) fn metrics(counters: &NatCounters) -> Vec<Metric> {
    let of = |(family, name): (Family, &'static str)| {
        NatStat::ALL.map(|stat| {
            let (outcome, meaning) = meaning(stat);
            Metric {
                program: "nat".to_owned(),
                outcome: format!("{name}-{outcome}"),
                drop: false,
                packets: counters.of(family, stat),
                bytes: 0,
                meaning: meaning.to_owned(),
            }
        })
    };
    let families = [(Family::V4, "ipv4"), (Family::V6, "ipv6")];
    families.into_iter().flat_map(of).collect()
}
