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

fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        help,
        values: Vec::new(),
    }
}

fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric {
        kind: Kind::Counter,
        ..gauge(name, help)
    }
}

impl Metric {
    /// The metric with one value.
    fn of(self, value: u64) -> Self {
        self.with([(Vec::new(), value)])
    }

    /// The metric with values that differ in one label.
    fn by<'a>(self, label: &'static str, values: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        let values = values.into_iter();
        self.with(values.map(|(text, value)| (vec![(label, text.to_owned())], value)))
    }

    fn with(self, values: impl IntoIterator<Item = (Labels, u64)>) -> Self {
        Self {
            values: values.into_iter().collect(),
            ..self
        }
    }
}

fn state(figures: &MetricsSnapshot) -> Vec<Metric> {
    let version = env!("CARGO_PKG_VERSION");
    let states = |(ready, not_ready)| [("ready", ready), ("not-ready", not_ready)];
    vec![
        gauge("towpath_build_info", "Always 1; the agent's version.").by("version", [(version, 1)]),
        gauge("towpath_ready", "1 if a pod without special requests can be added, else 0.").of(figures.is_ready.into()),
        gauge("towpath_uptime_seconds", "Seconds since the agent started.").of(figures.uptime_seconds),
        gauge("towpath_endpoints", "Endpoints (pod attachments), by state.").by("state", states(figures.endpoints)),
        gauge("towpath_enis", "ENIs, by state: ready if pods' packets can use them.").by("state", states(figures.enis)),
        gauge("towpath_interpreted_programs", "Programs of the datapath that the kernel did not compile to machine code.").of(figures.interpreted),
        gauge("towpath_refused_entries", "Ignored entries of documents and objects, by kind.").by("kind", figures
                .refused
                .iter()
                .map(|(kind, count)| (kind.name(), *count))),
        gauge("towpath_agent_addresses", "Addresses of the agent itself that are in use (agent-addresses.ingress).").of(figures.own.in_use),
        counter("towpath_agent_address_failures_total", "Failed calls of a delegated IPAM plugin for the agent's own addresses, and failed steps \
             after them.").of(figures.own.failures),
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
        gauge(
            "towpath_pool_addresses",
            "Addresses that the node has, by pool, family and state.",
        )
        .with(by_state),
        gauge(
            "towpath_pool_waiting_pods",
            "Pods that wait for an address, by pool and family.",
        )
        .with(pools.iter().map(|pool| (labels(pool), pool.waiting))),
        gauge(
            "towpath_pool_wanted_addresses",
            "Addresses that the node wants in all, by pool and family.",
        )
        .with(pools.iter().map(|pool| (labels(pool), pool.requested))),
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
        counter(
            "towpath_packets_total",
            "Packets by program and outcome; a GSO packet counts once.",
        )
        .with(of_programs().map(|counter| (labels(counter), counter.packets))),
        counter(
            "towpath_bytes_total",
            "Bytes by program and outcome, Ethernet headers included.",
        )
        .with(of_programs().map(|counter| (labels(counter), counter.bytes))),
        counter(
            "towpath_flow_events_total",
            "Events of flows, by family: allocated, removed, failed, and ports tried.",
        )
        .with(events),
    ]
}

fn flows(nat: &NatStatus) -> Vec<Metric> {
    let maps = || nat.maps.iter();
    vec![
        gauge("towpath_flow_entries", "Entries of the flow maps.")
            .by("map", maps().map(|map| (map.name.as_str(), map.used))),
        gauge(
            "towpath_flow_capacity_entries",
            "Size of the flow maps, in entries.",
        )
        .by(
            "map",
            maps().map(|map| (map.name.as_str(), map.room.into())),
        ),
        counter(
            "towpath_flows_removed_total",
            "Flows that the agent removed, by reason.",
        )
        .by(
            "reason",
            [
                ("idle", nat.reclaimed),
                ("endpoint-gone", nat.of_removed_endpoints),
                ("flushed", nat.flushed),
            ],
        ),
        gauge(
            "towpath_flow_sweep_failing",
            "1 if the last sweep of flows failed, else 0.",
        )
        .of(nat.error.is_some().into()),
    ]
}

fn work(figures: &MetricsSnapshot) -> Vec<Metric> {
    let MetricsSnapshot {
        work,
        repairs,
        api_server,
        ..
    } = figures;
    let repairs = repairs
        .iter()
        .map(|(kind, count)| (kind_name(*kind), *count));
    let repairs: Vec<(String, u64)> = repairs.collect();
    let repairs = repairs.iter().map(|(kind, count)| (kind.as_str(), *count));
    let requests = api_server
        .requests
        .iter()
        .map(|(method, count)| (*method, *count));
    let responses = api_server
        .responses
        .iter()
        .map(|(class, count)| (*class, *count));
    vec![
        counter(
            "towpath_reconcile_passes_total",
            "Reconcile passes: comparisons of the kernel with the wanted state, and their changes.",
        )
        .of(work.passes),
        counter(
            "towpath_reconcile_steps_total",
            "Changes of the kernel by reconcile passes.",
        )
        .of(work.steps),
        counter(
            "towpath_reconcile_failures_total",
            "Failed changes of the kernel, of maps too.",
        )
        .of(work.failures),
        counter(
            "towpath_repairs_total",
            "Objects that other software changed and the agent repaired, by kind.",
        )
        .by("kind", repairs),
        counter(
            "towpath_kubernetes_requests_total",
            "Requests to the API server, by method.",
        )
        .by("method", requests),
        counter(
            "towpath_kubernetes_responses_total",
            "Answers of the API server, by class of the status code.",
        )
        .by("class", responses),
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
