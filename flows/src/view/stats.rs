//! Statistics of translation.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::Result;
use api::types::FlowKind;
use api::types::{
    DestinationUse, FlowCount, LastSweep, MapUse, NatFamily, NatStats, NatStatus, Tries,
};
use datapath_common::abi::Addr;
use datapath_common::counter::NatStat;
use ipam::Family;

use super::list::family_name;
use super::protocols;
use crate::census::{Census, phase_name};
use crate::lifetimes::{flow_phase, note_phase};
use crate::sweep::Sweeper;
use crate::tables::{NatCounters, NoteKind, Tables};
use crate::thread::report::Report;

/// Destinations that are shown.
const TOP: usize = 10;

/// ENI, protocol, remote, its port: what a port can be used towards once.
type Destination = (u8, u8, Addr, u16);

/// Statistics by a scan of all flows. Failures by reason are not in the maps of translation, and
/// the caller adds them.
pub(crate) fn stats<T: Tables>(sweeper: &Sweeper<T>, report: &Report) -> Result<NatStats> {
    let tables = &sweeper.tables;
    let mut census = Census::default();
    let mut used: HashMap<Destination, u64> = HashMap::new();
    for family in Family::ALL {
        tables.flows(family, &mut |key, flow| {
            census.count(family, FlowKind::of(flow.endpoint), flow_phase(key, flow));
            let destination = (key.eni, key.protocol, key.remote, key.remote_port);
            *used.entry(destination).or_default() += 1;
        })?;
    }
    for kind in [NoteKind::Inbound, NoteKind::Stack] {
        tables.notes(kind, &mut |tuple, note| {
            let family = Family::of(tuple.pod.into());
            let phase = note_phase(kind, tuple, note);
            census.count(family, kind.flow_kind(), phase);
        })?;
    }
    let counters = tables.counters()?;
    Ok(NatStats {
        families: Family::ALL
            .into_iter()
            .map(|family| (family_name(family).to_owned(), done(&counters, family)))
            .collect(),
        failures: BTreeMap::new(),
        flows: census
            .flows
            .iter()
            .map(|((family, kind, phase), flows)| FlowCount {
                family: family_name(*family).to_owned(),
                kind: *kind,
                phase: phase_name(*phase).to_owned(),
                flows: *flows,
            })
            .collect(),
        destinations: top(used, sweeper.limits.ports),
        sweeper: status(report),
    })
}

fn done(counters: &NatCounters, family: Family) -> NatFamily {
    let of = |stat| counters.of(family, stat);
    let tries = [
        ("1", NatStat::Tries1),
        ("2-5", NatStat::Tries5),
        ("6-16", NatStat::Tries16),
        ("17-32", NatStat::Tries32),
        ("more", NatStat::TriesMore),
    ];
    NatFamily {
        allocated: of(NatStat::Allocated),
        kept: of(NatStat::Kept),
        host: of(NatStat::Host),
        removed: of(NatStat::Removed),
        inbound_noted: of(NatStat::InboundNoted),
        inbound_removed: of(NatStat::InboundRemoved),
        stack_noted: of(NatStat::StackNoted),
        stack_removed: of(NatStat::StackRemoved),
        failed: of(NatStat::Failed),
        tries: tries
            .into_iter()
            .map(|(ports, stat)| Tries {
                ports: ports.to_owned(),
                allocations: of(stat),
            })
            .collect(),
    }
}

/// The destinations with the most used ports, of so many that there are.
fn top(used: HashMap<Destination, u64>, ports: u32) -> Vec<DestinationUse> {
    let mut used: Vec<_> = used.into_iter().collect();
    used.sort_by_key(|(destination, used)| (std::cmp::Reverse(*used), *destination));
    used.truncate(TOP);
    let of = |((eni, protocol, remote, remote_port), used): (Destination, u64)| DestinationUse {
        eni,
        protocol: protocols::name(protocol),
        remote: remote.into(),
        remote_port: u16::from_be(remote_port),
        ports: used,
        percent: percent(used, ports),
    };
    used.into_iter().map(of).collect()
}

/// Used part of the room, in percent with one digit after the point.
#[expect(clippy::cast_precision_loss, reason = "a percentage needs no more")]
fn percent(used: u64, room: u32) -> f64 {
    (used as f64 / f64::from(room.max(1)) * 1000.0).round() / 10.0
}

/// Status of the sweeper.
#[must_use]
pub fn status(report: &Report) -> NatStatus {
    let used = &report.used;
    let maps = report.capacities.map(|room| {
        [
            ("ipv4", used.flows_v4, room.flows_v4),
            ("ipv6", used.flows_v6, room.flows_v6),
            ("inbound", used.inbound, room.inbound),
            ("stack", used.stack, room.stack),
        ]
        .map(|(name, used, room)| MapUse {
            name: name.to_owned(),
            used,
            room,
            percent: percent(used, room),
        })
    });
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    NatStatus {
        maps: maps.into_iter().flatten().collect(),
        reclaimed: report.reaped,
        reclaimed_under_pressure: report.reaped_pressed,
        of_removed_endpoints: report.gone,
        flushed: report.flushed,
        quotas_corrected: report.corrected,
        last_sweep: report.last.as_ref().map(|(ended, sweep)| LastSweep {
            seconds_ago: ended.elapsed().as_secs(),
            took_ms: millis(sweep.took),
            removed: sweep.reaped.idle + sweep.reaped.gone,
            exempt: sweep.outdated.exempt,
            under_pressure: sweep.is_pressed,
        }),
        error: report.error.clone(),
    }
}
