//! Rounds: every lane does every operation in turn, in a new order each time.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use testkit::interrupt;
use testkit::random::Random;

use super::clock::Clock;
use super::lane::Lane;
use super::operation::Operation;
use super::stats::{Summary, paired, summary};
use super::traffic;

/// Amounts of measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Passes, each on new nodes.
    ///
    /// The place of a node's maps and programs in memory changes an operation's cost by some
    /// percent, for the node's lifetime.
    pub passes: usize,
    /// Rounds in a pass: in each, every lane does every operation.
    pub rounds: usize,
    /// Divisor of the number of operations for one figure.
    pub divisor: u32,
}

/// Results of rounds: nanoseconds per operation, by lane, one for each round.
#[derive(Clone, Debug)]
pub struct Samples<K> {
    figures: BTreeMap<(K, Operation), Vec<f64>>,
    strain: f64,
}

impl<K: Copy + Ord> Samples<K> {
    /// No rounds yet.
    #[must_use]
    pub fn none() -> Self {
        Self {
            figures: BTreeMap::new(),
            strain: f64::INFINITY,
        }
    }

    /// Adds the rounds of another pass over the same lanes.
    pub fn add(&mut self, pass: Self) {
        for (of, figures) in pass.figures {
            self.figures.entry(of).or_default().extend(figures);
        }
        self.strain = self.strain.min(pass.strain);
    }

    fn of(&self, lane: K, operation: Operation) -> &[f64] {
        let figures = self.figures.get(&(lane, operation));
        figures.map(Vec::as_slice).unwrap_or_default()
    }

    /// Nanoseconds of an operation.
    #[must_use]
    pub fn cost(&self, lane: K, operation: Operation) -> Option<Summary> {
        summary(self.of(lane, operation))
    }

    /// Ratio of an operation's costs in two lanes.
    #[must_use]
    pub fn ratio(&self, lane: K, to: K, operation: Operation) -> Option<Summary> {
        summary(&paired(self.of(lane, operation), self.of(to, operation)))
    }

    /// Ratio of wall time to CPU time of the least disturbed measurement: near 1 on a quiet machine
    /// with an exact clock.
    #[must_use]
    pub fn strain(&self) -> f64 {
        self.strain
    }
}

/// Any number except 0 gives an order.
const SEED: u64 = 0x7077_7061_7468;

/// Measures lanes.
///
/// # Errors
/// When a lane does not carry an operation, and when this process is interrupted.
pub fn run<K: Copy + Ord>(lanes: &[(K, Lane<'_>)], effort: Effort) -> Result<Samples<K>> {
    let clock = Clock::new()?;
    let mut samples = Samples::none();
    let mut random = Random::new(SEED);
    for offloads in [true, false] {
        if !offloads {
            lanes.iter().try_for_each(|(_, l)| l.set_offloads(false))?;
        }
        let operations = Operation::ALL.into_iter();
        let operations: Vec<_> = operations.filter(|o| o.offloads() == offloads).collect();
        // The first round is not counted: neighbours are not resolved yet, caches are cold.
        for round in 0..=effort.rounds {
            for &operation in &operations {
                for index in shuffled(lanes.len(), &mut random) {
                    interrupt::check()?;
                    let Some((key, lane)) = lanes.get(index) else {
                        continue;
                    };
                    let count = (operation.count() / effort.divisor).max(1);
                    let took =
                        traffic::run(&clock, *lane, operation, count).with_context(|| {
                            let (from, to) = (lane.client.address, lane.server.address);
                            format!("{} from {from} to {to}", operation.name())
                        })?;
                    if round == 0 {
                        continue;
                    }
                    let figure = match operation {
                        Operation::UdpRate => took.wall,
                        _ => took.cpu,
                    };
                    samples.strain = samples.strain.min(took.wall / took.cpu);
                    let figures = samples.figures.entry((*key, operation)).or_default();
                    figures.push(figure);
                }
            }
        }
    }
    lanes.iter().try_for_each(|(_, l)| l.set_offloads(true))?;
    Ok(samples)
}

/// The numbers below a limit in random order (Fisher and Yates).
fn shuffled(limit: usize, random: &mut Random) -> Vec<usize> {
    let mut order: Vec<_> = (0..limit).collect();
    for end in (1..limit).rev() {
        order.swap(end, random.below(end + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_everything_once() {
        let mut random = Random::new(1);
        let order = shuffled(9, &mut random);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..9).collect::<Vec<_>>());
        assert_ne!(order, shuffled(9, &mut random), "another one each time");
    }

    #[test]
    fn ratios_are_of_the_lanes_that_are_named() {
        let figures = [(1, vec![3.0, 8.0]), (2, vec![1.0, 2.0])];
        let figures = figures.map(|(lane, values)| ((lane, Operation::UdpOneWay), values));
        let samples = Samples {
            figures: figures.into(),
            strain: 1.0,
        };
        let ratio = samples.ratio(1, 2, Operation::UdpOneWay).unwrap();
        assert!((ratio.median - 3.5).abs() < 1e-9, "{ratio:?}");
        assert!(samples.ratio(1, 3, Operation::UdpOneWay).is_none());
        assert!(samples.cost(1, Operation::UdpRate).is_none());
    }

    #[test]
    fn passes_are_put_together_round_by_round() {
        let pass = |figure: f64| Samples {
            figures: [((1, Operation::UdpOneWay), vec![figure])].into(),
            strain: figure,
        };
        let mut samples = Samples::none();
        for figure in [4.0, 2.0, 9.0] {
            samples.add(pass(figure));
        }
        assert_eq!(samples.of(1, Operation::UdpOneWay), [4.0, 2.0, 9.0]);
        assert!((samples.strain() - 2.0).abs() < 1e-9);
    }
}
