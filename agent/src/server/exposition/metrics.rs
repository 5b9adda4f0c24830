//! The agent's metrics. `docs/reference/metrics.md` has a row for each; a test holds both together.

use api::types;
use api::types::ObjectKind;
use api::types::{NatStatus, PoolStatus};

use super::text::{Kind, Labels, Metric};
use crate::server::MetricsSnapshot;

/// The program whose counters are of flows, not of packets.
const NAT: &str = "nat";

/// All metrics.
pub(super) fn metrics(figures: &MetricsSnapshot) -> Vec<Metric> {
    let mut all = state(figures);
    all.extend(pools(&figures.pools));
    all.extend(packets(&figures.counters));
    all.extend(flows(&figures.nat));
    all.extend(work(figures));
    all
}

fn one(name: &'static str, kind: Kind, help: &'static str, value: u64) -> Metric {
    Metric {
        name,
        kind,
        help,
        values: vec![(Vec::new(), value)],
    }
}

/// A metric whose values differ in one label.
fn by<'a>(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    label: &'static str,
    values: impl IntoIterator<Item = (&'a str, u64)>,
) -> Metric {
    let values = values.into_iter();
    Metric {
        name,
        kind,
        help,
        values: values
            .map(|(text, value)| (vec![(label, text.to_owned())], value))
            .collect(),
    }
}

fn state(figures: &MetricsSnapshot) -> Vec<Metric> {
    let version = env!("CARGO_PKG_VERSION");
    let states = |(ready, not_ready)| [("ready", ready), ("not-ready", not_ready)];
    vec![
        by(
            "towpath_build_info",
            Kind::Gauge,
            "Always 1; the agent's version.",
            "version",
            [(version, 1)],
        ),
        one(
            "towpath_ready",
            Kind::Gauge,
            "1 if a pod without special requests can be added, else 0.",
            figures.is_ready.into(),
        ),
        one(
            "towpath_uptime_seconds",
            Kind::Gauge,
            "Seconds since the agent started.",
            figures.uptime_seconds,
        ),
        by(
            "towpath_endpoints",
            Kind::Gauge,
            "Endpoints (pod attachments), by state.",
            "state",
            states(figures.endpoints),
        ),
        by(
            "towpath_enis",
            Kind::Gauge,
            "ENIs, by state: ready if pods' packets can use them.",
            "state",
            states(figures.enis),
        ),
        by(
            "towpath_refused_entries",
            Kind::Gauge,
            "Ignored entries of documents and objects, by kind.",
            "kind",
            figures
                .refused
                .iter()
                .map(|(kind, count)| (kind.name(), *count)),
        ),
        one(
            "towpath_agent_addresses",
            Kind::Gauge,
            "Addresses of the agent itself that are in use (agent-addresses.ingress).",
            figures.own_addresses,
        ),
        one(
            "towpath_agent_address_failures_total",
            Kind::Counter,
            "Failed calls of a delegated IPAM plugin for the agent's own addresses, and failed steps \
             after them.",
            figures.own_failures,
        ),
    ]
}

fn pools(pools: &[PoolStatus]) -> Vec<Metric> {
    let labels = |pool: &PoolStatus| -> Labels {
        let name = pool.pool.clone().unwrap_or_default();
        vec![("pool", name), ("family", pool.family.name().to_owned())]
    };
    let by_state = pools.iter().flat_map(|pool| {
        let states = [
            ("claimed", pool.in_use.saturating_sub(pool.unclaimed)),
            ("unclaimed", pool.unclaimed),
            ("cooling", pool.cooling),
            ("free", pool.free),
            ("unavailable", pool.unavailable),
            ("excluded", pool.excluded),
        ];
        states.map(|(state, addresses)| {
            let mut labels = labels(pool);
            labels.push(("state", state.to_owned()));
            (labels, addresses)
        })
    });
    vec![
        Metric {
            name: "towpath_pool_addresses",
            kind: Kind::Gauge,
            help: "Addresses that the node has, by pool, family and state.",
            values: by_state.collect(),
        },
        Metric {
            name: "towpath_pool_waiting_pods",
            kind: Kind::Gauge,
            help: "Pods that wait for an address, by pool and family.",
            values: pools
                .iter()
                .map(|pool| (labels(pool), pool.waiting))
                .collect(),
        },
        Metric {
            name: "towpath_pool_wanted_addresses",
            kind: Kind::Gauge,
            help: "Addresses that the node wants in all, by pool and family.",
            values: pools
                .iter()
                .map(|pool| (labels(pool), pool.requested))
                .collect(),
        },
    ]
}

fn packets(counters: &[types::Metric]) -> Vec<Metric> {
    let of_programs = || counters.iter().filter(|counter| counter.program != NAT);
    let labels = |counter: &types::Metric| -> Labels {
        let verdict = if counter.drop { "drop" } else { "pass" };
        vec![
            ("program", counter.program.clone()),
            ("outcome", counter.outcome.clone()),
            ("verdict", verdict.to_owned()),
        ]
    };
    let of_flows = counters.iter().filter(|counter| counter.program == NAT);
    let events = of_flows.filter_map(|counter| {
        let (family, event) = counter.outcome.split_once('-')?;
        let labels = vec![("family", family.to_owned()), ("event", event.to_owned())];
        Some((labels, counter.packets))
    });
    vec![
        Metric {
            name: "towpath_packets_total",
            kind: Kind::Counter,
            help: "Packets by program and outcome; a GSO packet counts once.",
            values: of_programs()
                .map(|counter| (labels(counter), counter.packets))
                .collect(),
        },
        Metric {
            name: "towpath_bytes_total",
            kind: Kind::Counter,
            help: "Bytes by program and outcome, Ethernet headers included.",
            values: of_programs()
                .map(|counter| (labels(counter), counter.bytes))
                .collect(),
        },
        Metric {
            name: "towpath_flow_events_total",
            kind: Kind::Counter,
            help: "Events of flows, by family: allocated, removed, failed, and ports tried.",
            values: events.collect(),
        },
    ]
}

fn flows(nat: &NatStatus) -> Vec<Metric> {
    let maps = || nat.maps.iter();
    vec![
        by(
            "towpath_flow_entries",
            Kind::Gauge,
            "Entries of the flow maps.",
            "map",
            maps().map(|map| (map.name.as_str(), map.used)),
        ),
        by(
            "towpath_flow_capacity_entries",
            Kind::Gauge,
            "Size of the flow maps, in entries.",
            "map",
            maps().map(|map| (map.name.as_str(), map.room.into())),
        ),
        by(
            "towpath_flows_removed_total",
            Kind::Counter,
            "Flows that the agent removed, by reason.",
            "reason",
            [
                ("idle", nat.reclaimed),
                ("endpoint-gone", nat.of_removed_endpoints),
                ("flushed", nat.flushed),
            ],
        ),
        one(
            "towpath_flow_sweep_failing",
            Kind::Gauge,
            "1 if the last sweep of flows failed, else 0.",
            nat.error.is_some().into(),
        ),
    ]
}

fn work(figures: &MetricsSnapshot) -> Vec<Metric> {
    let MetricsSnapshot {
        work,
        repairs,
        requests,
        responses,
        ..
    } = figures;
    let repairs = repairs
        .iter()
        .map(|(kind, count)| (kind_name(*kind), *count));
    let repairs: Vec<(String, u64)> = repairs.collect();
    let repairs = repairs.iter().map(|(kind, count)| (kind.as_str(), *count));
    let requests = requests.iter().map(|(method, count)| (*method, *count));
    let responses = responses.iter().map(|(class, count)| (*class, *count));
    vec![
        one(
            "towpath_reconcile_passes_total",
            Kind::Counter,
            "Reconcile passes: comparisons of the kernel with the wanted state, and their changes.",
            work.passes,
        ),
        one(
            "towpath_reconcile_steps_total",
            Kind::Counter,
            "Changes of the kernel by reconcile passes.",
            work.steps,
        ),
        one(
            "towpath_reconcile_failures_total",
            Kind::Counter,
            "Failed changes of the kernel, of maps too.",
            work.failures,
        ),
        by(
            "towpath_repairs_total",
            Kind::Counter,
            "Objects that other software changed and the agent repaired, by kind.",
            "kind",
            repairs,
        ),
        by(
            "towpath_kubernetes_requests_total",
            Kind::Counter,
            "Requests to the API server, by method.",
            "method",
            requests,
        ),
        by(
            "towpath_kubernetes_responses_total",
            Kind::Counter,
            "Answers of the API server, by class of the status code.",
            "class",
            responses,
        ),
    ]
}

/// The name of a kind of object, as the status has it.
fn kind_name(kind: ObjectKind) -> String {
    let name = serde_json::to_value(kind);
    // Each is a text.
    let name = name.ok().and_then(|name| name.as_str().map(str::to_owned));
    name.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::text::DURATIONS;
    use super::*;

    const DOCUMENTED: &str = include_str!("../../../../docs/reference/metrics.md");

    #[test]
    fn every_metric_is_documented_as_it_is_and_every_documented_one_is_there() {
        let mut expected: Vec<String> = Vec::new();
        for metric in metrics(&MetricsSnapshot::default()) {
            let Metric { name, kind, .. } = metric;
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(metric.help.ends_with('.'), "{name}");
            expected.push(format!("| `{name}` | {kind} |"));
        }
        expected.push(format!("| `{DURATIONS}` | histogram |"));
        let rows = DOCUMENTED
            .lines()
            .filter(|line| line.starts_with("| `towpath_"))
            .filter(|line| !line.starts_with("| `towpath_operator_"));
        let rows: Vec<&str> = rows.collect();
        assert_eq!(rows.len(), expected.len(), "{rows:?}");
        for (row, expected) in rows.iter().zip(&expected) {
            assert!(row.starts_with(expected.as_str()), "{row}: {expected}");
        }
    }

    #[test]
    fn counters_of_flows_are_none_of_packets() {
        let counter = |program: &str, outcome: &str, drop| types::Metric {
            program: program.to_owned(),
            outcome: outcome.to_owned(),
            drop,
            packets: 3,
            bytes: 300,
            meaning: String::new(),
        };
        let metrics = packets(&[
            counter("from-endpoint", "spoofed-source", true),
            counter("nat", "ipv4-tries-1", false),
        ]);
        let [packets, bytes, flows] = metrics.as_slice() else {
            panic!("{}", metrics.len())
        };
        assert_eq!((packets.values[0].1, bytes.values[0].1), (3, 300));
        assert_eq!(packets.values[0].0[2], ("verdict", "drop".to_owned()));
        assert_eq!((packets.values.len(), flows.values.len()), (1, 1));
        let labels = [
            ("family", "ipv4".to_owned()),
            ("event", "tries-1".to_owned()),
        ];
        assert_eq!(flows.values[0].0, labels);
    }
}
