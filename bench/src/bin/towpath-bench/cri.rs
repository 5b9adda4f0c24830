//! Pods that a container runtime runs and stops: what the library measures, as rows of the report.

use anyhow::Result;
use testkit::cri::cost::{Costs, Provider, Verb, measure as run};
use testkit::interrupt;

use crate::agent::figures::{median_row, millis, quantile, row};
use crate::options::{Group, Options};
use crate::report::{Row, Unit, progress};

/// Numbers of other pods, and number of timed pods.
const QUICK: (&[usize], usize) = (&[4], 8);
const FULL: (&[usize], usize) = (&[10, 250], 100);

/// Pods by containerd, by turns with our network and with none, and endpoints at the agent's socket.
pub(crate) fn measure(options: &Options) -> Result<Vec<Row>> {
    interrupt::watch()?;
    let (present, samples) = if options.quick { QUICK } else { FULL };
    progress("pods by containerd");
    let all = run(present, samples)?;
    let rows = present.iter().zip(&all);
    Ok(rows
        .flat_map(|(count, costs)| rows_of(*count, costs))
        .collect())
}

fn name(provider: Provider, verb: Verb) -> &'static str {
    match (provider, verb) {
        (Provider::Runtime, Verb::Add) => "RunPodSandbox",
        (Provider::Runtime, Verb::Del) => "StopPodSandbox",
        (Provider::Floor, Verb::Add) => "RunPodSandbox, idle plugin",
        (Provider::Floor, Verb::Del) => "StopPodSandbox, idle plugin",
        (Provider::Socket, Verb::Add) => "endpoint add at the socket",
        (Provider::Socket, Verb::Del) => "endpoint delete at the socket",
    }
}

/// The rows for one number of pods that are there.
fn rows_of(present: usize, costs: &Costs) -> Vec<Row> {
    let samples = |provider, verb| -> Vec<f64> {
        let times = costs.get(&(provider, verb)).into_iter().flatten();
        times.map(|time| millis(*time)).collect()
    };
    let mut rows = Vec::new();
    for verb in Verb::ALL {
        for provider in Provider::ALL {
            let (name, samples) = (name(provider, verb), samples(provider, verb));
            let p50 = format!("{name} p50, {present} pods");
            let p99 = format!("{name} p99, {present} pods");
            rows.push(median_row(p50, &samples, Unit::Milliseconds));
            rows.push(row(p99, quantile(&samples, 0.99), Unit::Milliseconds));
        }
        // Neighbours in time are compared with each other.
        let whole = samples(Provider::Runtime, verb);
        let own: Vec<_> = whole
            .iter()
            .zip(samples(Provider::Floor, verb))
            .map(|(whole, floor)| whole - floor)
            .collect();
        let name = format!(
            "of {} our part p50, {present} pods",
            name(Provider::Runtime, verb)
        );
        rows.push(median_row(name, &own, Unit::Milliseconds));
    }
    let group = Group::Cri;
    rows.into_iter().map(|row| Row { group, ..row }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn our_part_is_what_the_idle_plugin_does_not_take() {
        let times = |millis: [u64; 3]| millis.map(Duration::from_millis).to_vec();
        let costs = Costs::from([
            ((Provider::Runtime, Verb::Add), times([300, 310, 900])),
            ((Provider::Floor, Verb::Add), times([260, 250, 860])),
            ((Provider::Socket, Verb::Add), times([30, 31, 32])),
        ]);
        let rows = rows_of(10, &costs);
        let value = |name: &str| {
            let row = rows.iter().find(|row| row.name == name).unwrap();
            assert_eq!((row.group, row.unit), (Group::Cri, Unit::Milliseconds));
            row.value
        };
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-6, "{value}");
        near(value("RunPodSandbox p50, 10 pods"), 310.0);
        near(value("RunPodSandbox p99, 10 pods"), 900.0);
        near(value("of RunPodSandbox our part p50, 10 pods"), 40.0);
        near(value("endpoint add at the socket p50, 10 pods"), 31.0);
        near(value("StopPodSandbox p50, 10 pods"), 0.0);
        assert_eq!(rows.len(), 14);
    }
}
