//! Metrics, in Prometheus' open text format. They have no label of nodes, which would cause
//! thousands of series.

use std::fmt::Error;

use ec2::Count;
use fleet::{Allowance, NodeView, PlainView, PoolView, ReleaseView, SubnetView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The prefix of every metric.
const PREFIX: &str = "towpath_operator";

/// The operator at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) is_leader: bool,
    pub(crate) calls: Vec<Count>,
    pub(crate) nodes: Vec<NodeView>,
    pub(crate) subnets: Vec<SubnetView>,
    pub(crate) pools: Vec<PoolView>,
    pub(crate) release: ReleaseView,
    pub(crate) budgets: Vec<Allowance>,
    pub(crate) leaks: usize,
    /// Objects whose Node is absent.
    pub(crate) without_node: usize,
}

/// The text of a snapshot.
pub(crate) fn text(snapshot: Snapshot) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(snapshot));
    let mut out = String::new();
    // To write to a text does not fail.
    text::encode(&mut out, &registry).ok();
    out
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut writer = Writer(&mut encoder);
        writer.gauge(
            "leader",
            "1 if this operator leads",
            f64::from(u8::from(self.is_leader)),
        )?;
        self.encode_nodes(&mut writer)?;
        self.encode_calls(&mut writer)?;
        let free = self.subnets.iter().map(|it| {
            let labels = [("subnet", it.id.clone()), ("zone", it.zone.clone())];
            (labels, f64::from(it.room))
        });
        writer.gauges("subnet_free", "Free IPv4 addresses", free)?;
        let lasts = self.subnets.iter().filter_map(|it| {
            let labels = [("subnet", it.id.clone()), ("zone", it.zone.clone())];
            Some((labels, number(it.lasts_seconds?)))
        });
        let help = "Seconds until the subnet has no free address, at the rate of the last hour";
        writer.gauges("subnet_lasts_seconds", help, lasts)?;
        self.encode_pools(&mut writer)?;
        let leaks = u32::try_from(self.leaks).unwrap_or(u32::MAX);
        let help = "Detached ENIs of the cluster that cannot be deleted";
        writer.gauge("leaked_enis", help, f64::from(leaks))
    }
}

impl Snapshot {
    fn encode_nodes(&self, writer: &mut Writer<'_, '_>) -> Result<(), Error> {
        let count = |is: fn(&NodeView) -> bool| {
            let number = self.nodes.iter().filter(|node| is(node)).count();
            f64::from(u32::try_from(number).unwrap_or(u32::MAX))
        };
        let sum = |of: fn(&NodeView) -> u32| {
            let sum = self
                .nodes
                .iter()
                .map(|node| u64::from(of(node)))
                .sum::<u64>();
            f64::from(u32::try_from(sum).unwrap_or(u32::MAX))
        };
        let stuck = count(|node| node.obstacle.is_some());
        let served = count(|node| node.obstacle.is_none());
        let nodes = [("served", served), ("stuck", stuck)];
        let nodes = nodes.map(|(state, number)| ([("state", state.to_owned())], number));
        writer.gauges(
            "nodes",
            "Nodes; stuck ones do not get the addresses that they request",
            nodes,
        )?;
        writer.gauge(
            "addresses",
            "IPv4 addresses for pods",
            sum(|it| it.addresses),
        )?;
        writer.gauge(
            "missing_addresses",
            "IPv4 addresses that nodes request and do not have",
            sum(|it| it.missing),
        )?;
        writer.gauge(
            "waiting_pods",
            "Pods that wait for an address",
            sum(|it| it.waiting_pods),
        )?;
        writer.gauge("enis", "ENIs on network card 0", sum(|it| it.enis))?;
        let without = u32::try_from(self.without_node).unwrap_or(u32::MAX);
        let help = "CiliumNodes whose Node is absent; they keep their ENIs and blocks";
        writer.gauge("nodes_without_node", help, f64::from(without))
    }

    fn encode_pools(&self, writer: &mut Writer<'_, '_>) -> Result<(), Error> {
        let of = |it: &PoolView| [("pool", it.name.clone())];
        let all = || self.pools.iter();
        let addresses = all().map(|it| (of(it), f64::from(it.addresses)));
        writer.gauges(
            "pool_addresses",
            "IPv4 addresses of a pool's ENIs",
            addresses,
        )?;
        let wanted = all().map(|it| (of(it), number(it.wanted)));
        let help = "IPv4 addresses of a pool that nodes request, their spare ones included";
        writer.gauges("pool_wanted_addresses", help, wanted)?;
        let enis = all().map(|it| (of(it), f64::from(it.enis)));
        writer.gauges("pool_enis", "ENIs that serve a pool", enis)?;
        let help = "Faults of a pool: annotations that cannot be read, CIDRs that are refused";
        let faults = all().map(|it| (of(it), number(it.faults.len())));
        writer.gauges("pool_faults", help, faults)?;
        self.encode_plain_pools(writer)?;
        let leaving = number(self.release.leaving);
        writer.gauge(
            "leaving_blocks",
            "Blocks that are being released to EC2",
            leaving,
        )?;
        let unanswered = number(self.release.never_claimed);
        let help =
            "Blocks that no agent has claimed since this operator leads; they are not released";
        writer.gauge("never_claimed_blocks", help, unanswered)
    }

    fn encode_plain_pools(&self, writer: &mut Writer<'_, '_>) -> Result<(), Error> {
        let plain = || {
            let all = self.pools.iter();
            all.filter_map(|pool| Some((&pool.name, pool.plain.as_ref()?)))
        };
        let spaces = plain().flat_map(|(name, pool)| {
            let families = [("ipv4", pool.ipv4), ("ipv6", pool.ipv6)];
            let there = families
                .into_iter()
                .filter_map(|(family, it)| Some((family, it?)));
            there.flat_map(move |(family, space)| {
                let free = space.blocks.saturating_sub(space.taken);
                [("taken", space.taken), ("free", free)].map(|(state, blocks)| {
                    let labels = [
                        ("pool", name.clone()),
                        ("family", family.to_owned()),
                        ("state", state.to_owned()),
                    ];
                    (labels, number(blocks))
                })
            })
        });
        writer.gauges("pool_blocks", "Blocks of plain pools", spaces)?;
        let of_pool = |count: fn(&PlainView) -> usize| {
            plain().map(move |(name, pool)| ([("pool", name.clone())], number(count(pool))))
        };
        let help = "Blocks of nodes that are in no CIDR of their plain pools";
        writer.gauges("pool_orphans", help, of_pool(|it| it.orphans.len()))?;
        let help = "Nodes that lack blocks of a plain pool";
        let short = of_pool(|it| usize::try_from(it.short_nodes).unwrap_or(usize::MAX));
        writer.gauges("pool_short_nodes", help, short)
    }

    fn encode_calls(&self, writer: &mut Writer<'_, '_>) -> Result<(), Error> {
        let labels = |it: &Count| {
            [
                ("call", it.call.to_owned()),
                ("outcome", it.outcome.clone()),
            ]
        };
        let calls = self.calls.iter().map(|it| (labels(it), it.calls));
        writer.counters("ec2_requests", "Calls of EC2", calls)?;
        let took = self
            .calls
            .iter()
            .map(|it| (labels(it), it.took.as_secs_f64()));
        writer.counters("ec2_request_seconds", "Time of calls of EC2", took)?;
        let action = |it: &Allowance| [("action", it.action.clone())];
        let budgets = self.budgets.iter();
        let rate = budgets
            .clone()
            .map(|it| (action(it), it.per_second * it.factor));
        writer.gauges(
            "ec2_rate",
            "Calls a second that the budget allows now",
            rate,
        )?;
        let throttled = budgets.clone().map(|it| (action(it), it.throttled));
        writer.counters("ec2_throttled", "Throttled answers", throttled)?;
        let waiting = budgets.map(|it| {
            let waiting = u32::try_from(it.waiting).unwrap_or(u32::MAX);
            (action(it), f64::from(waiting))
        });
        writer.gauges("queue", "Calls that wait for their budget", waiting)
    }
}

/// A count as a metric. One that is larger is as good as the largest.
fn number(count: impl TryInto<u32>) -> f64 {
    count.try_into().unwrap_or(u32::MAX).into()
}

/// Writes metrics of one kind each.
struct Writer<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Writer<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        let encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, String); N], f64)>,
    ) -> Result<(), Error> {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counters<const N: usize, V>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, String); N], V)>,
    ) -> Result<(), Error>
    where
        V: prometheus_client::encoding::EncodeCounterValue,
    {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fleet::SpaceView;

    use super::*;

    fn node(addresses: u32) -> NodeView {
        NodeView {
            name: "node-7".to_owned(),
            instance: None,
            instance_type: None,
            addresses,
            missing: 2,
            waiting_pods: 0,
            enis: 1,
            enis_most: Some(3),
            step: None,
            obstacle: None,
        }
    }

    #[test]
    fn the_text_has_types_labels_and_no_nodes() {
        let text = text(Snapshot {
            is_leader: true,
            calls: vec![Count {
                call: "CreateNetworkInterface",
                outcome: "ok".to_owned(),
                calls: 3,
                took: Duration::from_millis(1500),
            }],
            nodes: vec![node(8), node(10)],
            subnets: vec![SubnetView {
                id: "subnet-1".to_owned(),
                zone: "a".to_owned(),
                room: 250,
                lasts_seconds: Some(4200),
                refused: std::collections::BTreeMap::new(),
            }],
            pools: vec![PoolView {
                name: "green".to_owned(),
                nodes: 3,
                enis: 0,
                addresses: 0,
                wanted: 40,
                plain: Some(PlainView {
                    ipv4: Some(SpaceView {
                        blocks: 256,
                        taken: 6,
                    }),
                    ipv6: None,
                    short_nodes: 1,
                    orphans: [("10.0.0.0/28".to_owned(), vec!["node-7".to_owned()])].into(),
                    is_deleted: false,
                }),
                faults: Vec::new(),
            }],
            release: ReleaseView::default(),
            budgets: Vec::new(),
            leaks: 0,
            without_node: 1,
        });
        for line in [
            "# TYPE towpath_operator_leader gauge",
            "towpath_operator_leader 1.0",
            "towpath_operator_nodes{state=\"served\"} 2.0",
            "towpath_operator_addresses 18.0",
            "towpath_operator_subnet_free{subnet=\"subnet-1\",zone=\"a\"} 250.0",
            "towpath_operator_ec2_requests_total{call=\"CreateNetworkInterface\",outcome=\"ok\"} 3",
            "towpath_operator_pool_blocks{pool=\"green\",family=\"ipv4\",state=\"free\"} 250.0",
            "towpath_operator_subnet_lasts_seconds{subnet=\"subnet-1\",zone=\"a\"} 4200.0",
            "towpath_operator_pool_orphans{pool=\"green\"} 1.0",
            "towpath_operator_leaked_enis 0.0",
            "towpath_operator_nodes_without_node 1.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(!text.contains("node-7"), "{text}");
        assert_documented(&text);
    }

    /// Every metric has a row in the documentation, with its type.
    fn assert_documented(text: &str) {
        let documented = include_str!("../../docs/reference/metrics.md");
        let mut expected: Vec<String> = Vec::new();
        for words in text.lines().filter_map(|it| it.strip_prefix("# TYPE ")) {
            let (name, kind) = words.split_once(' ').unwrap();
            let total = if kind == "counter" { "_total" } else { "" };
            expected.push(format!("| `{name}{total}` | {kind} |"));
        }
        let rows = documented.lines();
        let rows: Vec<&str> = rows
            .filter(|it| it.starts_with("| `towpath_operator_"))
            .collect();
        for row in &expected {
            assert!(
                rows.iter().any(|it| it.starts_with(row)),
                "{row}: {rows:#?}"
            );
        }
        assert_eq!(rows.len(), expected.len(), "{expected:#?}");
    }
}
