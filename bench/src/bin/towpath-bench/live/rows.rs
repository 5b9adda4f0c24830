//! Rows of the live figures, their names, and their targets.

use bench::live::nodes::site::Traffic;
use bench::live::operation::Operation;
use bench::live::rounds::Samples;
use bench::live::scene::{Datapath, Growth};
use bench::live::stats::Summary;

use crate::options::Group;
use crate::report::{Row, Unit};

/// Target for the ratio of a live figure to the floor's.
const OVER_FLOOR: f64 = 1.08;
/// Target for the growth of a live figure, in percent.
const GROWTH: f64 = 5.0;

fn ours(service_nat: bool, traffic: Traffic) -> Datapath {
    Datapath::Ours {
        service_nat,
        traffic,
    }
}

fn word(traffic: Traffic) -> &'static str {
    match traffic {
        Traffic::Exempt => "exempt",
        Traffic::Masqueraded => "masqueraded",
    }
}

/// Target for the ratio of masqueraded traffic's cost to its cost with the VPC CNI's rules.
fn over_vpc_cni(operation: Operation, pods: usize) -> Option<f64> {
    match (operation, pods) {
        (Operation::UdpOneWay, 1) => Some(0.70),
        (Operation::UdpOneWay, 250) => Some(0.35),
        (Operation::UdpOneWay, 1000) => Some(0.14),
        (Operation::TcpConnection, 1) => Some(0.78),
        (Operation::TcpConnection, 250) => Some(0.40),
        (Operation::TcpConnection, 1000) => Some(0.20),
        _ => None,
    }
}

/// Collects rows.
struct Rows<'a, K> {
    group: Group,
    samples: &'a Samples<K>,
    list: Vec<Row>,
}

impl<K: Copy + Ord> Rows<'_, K> {
    fn put(&mut self, name: String, unit: Unit, figure: Option<Summary>, target: Option<f64>) {
        self.list.extend(figure.map(|figure| Row {
            group: self.group,
            name,
            value: figure.median,
            unit,
            spread: Some(figure.spread),
            target,
        }));
    }

    fn ratio(&mut self, name: &str, of: (K, K), operation: Operation, target: Option<f64>) {
        let figure = self.samples.ratio(of.0, of.1, operation);
        let name = format!("{name}: {}", operation.name());
        self.put(name, Unit::Ratio, figure, target);
    }
}

/// The rows of the group "live".
pub(super) fn live(samples: &Samples<Datapath>, populations: &[usize]) -> Vec<Row> {
    let mut rows = Rows {
        group: Group::Live,
        samples,
        list: Vec::new(),
    };
    for operation in Operation::ALL {
        let name = format!("floor: {}", operation.name());
        let cost = samples.cost(Datapath::Floor, operation);
        rows.put(name, Unit::Nanoseconds, cost, None);
    }
    for (name, datapath) in [
        ("direct / floor", Datapath::Direct),
        ("masquerading floor / floor", Datapath::MasqueradingFloor),
        ("checking floor / floor", Datapath::CheckingFloor),
    ] {
        for operation in Operation::ALL {
            rows.ratio(name, (datapath, Datapath::Floor), operation, None);
        }
    }
    // The targets are for nodes without service NAT, like everything that they are compared with.
    for (service_nat, suffix, target) in [
        (false, "", Some(OVER_FLOOR)),
        (true, ", service NAT on", None),
    ] {
        for traffic in Traffic::ALL {
            let name = format!("{}{suffix} / floor", word(traffic));
            for operation in Operation::ALL {
                let of = (ours(service_nat, traffic), Datapath::Floor);
                rows.ratio(&name, of, operation, target);
            }
        }
    }
    for &pods in populations {
        over_others(&mut rows, pods);
    }
    rows.list.push(Row {
        group: Group::Live,
        name: "wall time / CPU time, least disturbed measurement".to_owned(),
        value: samples.strain(),
        unit: Unit::Ratio,
        spread: None,
        target: None,
    });
    rows.list
}

/// Comparisons with kernel routing and the VPC CNI on a node with so many pods.
fn over_others(rows: &mut Rows<'_, Datapath>, pods: usize) {
    let with = of_pods(pods);
    for operation in Operation::ALL {
        let name = format!("exempt / kernel routing with {with}");
        let of = (ours(false, Traffic::Exempt), Datapath::Kernel(pods));
        rows.ratio(&name, of, operation, None);
    }
    for traffic in Traffic::ALL {
        let name = format!("{} / VPC CNI with {with}", word(traffic));
        for operation in Operation::ALL {
            let target = match traffic {
                Traffic::Exempt => None,
                Traffic::Masqueraded => over_vpc_cni(operation, pods),
            };
            let of = (ours(false, traffic), Datapath::VpcCni(pods, traffic));
            rows.ratio(&name, of, operation, target);
        }
    }
    // Comparisons with the VPC CNI, for operations with a target. They are service NAT, the
    // floors that do less than a real datapath, and a process on the node without a pod's
    // network.
    for (name, datapath) in [
        (
            "masqueraded, service NAT on",
            ours(true, Traffic::Masqueraded),
        ),
        ("direct", Datapath::Direct),
        ("floor", Datapath::Floor),
        ("masquerading floor", Datapath::MasqueradingFloor),
        ("checking floor", Datapath::CheckingFloor),
    ] {
        let name = format!("{name} / VPC CNI's masqueraded with {with}");
        for operation in [Operation::UdpOneWay, Operation::TcpConnection] {
            let of = (datapath, Datapath::VpcCni(pods, Traffic::Masqueraded));
            rows.ratio(&name, of, operation, None);
        }
    }
}

fn of_pods(pods: usize) -> String {
    match pods {
        1 => "1 pod".to_owned(),
        pods => format!("{pods} pods"),
    }
}

/// Name of a growth for rows, and the target of the rows, if any.
fn grown(growth: Growth, largest: usize) -> Option<(String, Option<f64>)> {
    match growth {
        Growth::None => None,
        Growth::Again => Some(("no growth, another node of the same size".to_owned(), None)),
        Growth::Endpoints(endpoints) => Some((
            format!("growth from 10 to {endpoints} endpoints"),
            (endpoints == largest).then_some(GROWTH),
        )),
        Growth::Enis(enis) => Some((format!("growth from 2 to {enis} ENIs"), None)),
        Growth::Cidrs(cidrs) => Some((format!("growth from 10 to {cidrs} exempt CIDRs"), None)),
        Growth::Flows(flows) => Some((format!("growth from 1000 to {flows} live flows"), None)),
    }
}

/// The rows of the group "growth".
pub(super) fn growth(
    samples: &Samples<(Growth, Traffic)>,
    growths: &[Growth],
    largest: usize,
) -> Vec<Row> {
    let mut rows = Rows {
        group: Group::Growth,
        samples,
        list: Vec::new(),
    };
    let named = growths.iter().filter_map(|growth| {
        let (name, target) = grown(*growth, largest)?;
        Some((*growth, name, target))
    });
    for (growth, name, target) in named {
        for traffic in Traffic::ALL {
            for operation in Operation::ALL {
                let ratio = samples.ratio((growth, traffic), (Growth::None, traffic), operation);
                let percent = ratio.map(|Summary { median, spread }| Summary {
                    median: (median - 1.0) * 100.0,
                    spread: spread * 100.0,
                });
                let name = format!("{name}, {}: {}", word(traffic), operation.name());
                rows.put(name, Unit::Percent, percent, target);
            }
        }
    }
    rows.list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_largest_node_has_a_target() {
        let target = |growth| grown(growth, 1_000).map(|(_, target)| target);
        assert_eq!(target(Growth::Endpoints(1_000)), Some(Some(GROWTH)));
        assert_eq!(target(Growth::Endpoints(250)), Some(None));
        assert_eq!(target(Growth::Flows(250_000)), Some(None));
        assert_eq!(target(Growth::None), None);
    }

    #[test]
    fn what_was_not_measured_has_no_row() {
        let samples = Samples::none();
        let names: Vec<_> = live(&samples, &[1, 250])
            .into_iter()
            .map(|row| row.name)
            .collect();
        assert_eq!(names, ["wall time / CPU time, least disturbed measurement"]);
        let samples = Samples::none();
        assert!(growth(&samples, &[Growth::Enis(15)], 1_000).is_empty());
    }
}
