//! Metrics, in Prometheus' open text format. They have no label by node: thousands of series would come of it.

use std::fmt::Error;

use ec2::Count;
use fleet::{Allowance, NodeView, PoolView, ReleaseView, SubnetView};
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
        self.encode_pools(&mut writer)?;
        let leaks = u32::try_from(self.leaks).unwrap_or(u32::MAX);
        let help = "ENIs of the cluster that nothing holds and that cannot be deleted";
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
            "Nodes; stuck ones do not get what they want",
            nodes,
        )?;
        writer.gauge(
            "addresses",
            "IPv4 addresses for pods",
            sum(|it| it.addresses),
        )?;
        writer.gauge(
            "missing_addresses",
            "IPv4 addresses that nodes lack",
            sum(|it| it.missing),
        )?;
        writer.gauge(
            "waiting_pods",
            "Pods that wait for an address",
            sum(|it| it.waiting_pods),
        )?;
        writer.gauge("enis", "ENIs on network card 0", sum(|it| it.enis))
    }

    fn encode_pools(&self, writer: &mut Writer<'_, '_>) -> Result<(), Error> {
        let of = |it: &PoolView| [("pool", it.name.clone())];
        let addresses = self
            .pools
            .iter()
            .map(|it| (of(it), f64::from(it.addresses)));
        writer.gauges(
            "pool_addresses",
            "IPv4 addresses of a pool's ENIs",
            addresses,
        )?;
        let wanted = self.pools.iter().map(|it| {
            let wanted = u32::try_from(it.wanted).unwrap_or(u32::MAX);
            (of(it), f64::from(wanted))
        });
        let help = "IPv4 addresses of a pool that nodes ask for, their spare ones included";
        writer.gauges("pool_wanted_addresses", help, wanted)?;
        let blocks = self.pools.iter().map(|it| (of(it), f64::from(it.enis)));
        writer.gauges("pool_enis", "ENIs that serve a pool", blocks)?;
        let leaving = u32::try_from(self.release.leaving).unwrap_or(u32::MAX);
        let help = "Blocks on their way back to EC2";
        writer.gauge("leaving_blocks", help, f64::from(leaving))?;
        let unanswered = u32::try_from(self.release.never_claimed).unwrap_or(u32::MAX);
        let help =
            "Blocks that no agent has claimed since this operator leads; they are not taken back";
        writer.gauge("never_claimed_blocks", help, f64::from(unanswered))
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
        writer.gauges("ec2_rate", "Calls a second that the budget has now", rate)?;
        let throttled = budgets.clone().map(|it| (action(it), it.throttled));
        writer.counters("ec2_throttled", "Throttled answers", throttled)?;
        let waiting = budgets.map(|it| {
            let waiting = u32::try_from(it.waiting).unwrap_or(u32::MAX);
            (action(it), f64::from(waiting))
        });
        writer.gauges("queue", "Calls that wait for their budget", waiting)
    }
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
                refused: std::collections::BTreeMap::new(),
            }],
            pools: Vec::new(),
            release: ReleaseView::default(),
            budgets: Vec::new(),
            leaks: 0,
        });
        for line in [
            "# TYPE towpath_operator_leader gauge",
            "towpath_operator_leader 1.0",
            "towpath_operator_nodes{state=\"served\"} 2.0",
            "towpath_operator_addresses 18.0",
            "towpath_operator_subnet_free{subnet=\"subnet-1\",zone=\"a\"} 250.0",
            "towpath_operator_ec2_requests_total{call=\"CreateNetworkInterface\",outcome=\"ok\"} 3",
            "towpath_operator_leaked_enis 0.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(!text.contains("node-7"), "{text}");
    }
}
