//! Rounds of measurement, and their results.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::Outcome;
use testkit::testrun::assembled::OwnProgram;
use testkit::testrun::repeat::{On, Packet, RESTORED, Repeater};
use testkit::testrun::tables::Runner;

use super::targets;
use super::variant::Variant;
use crate::options::{Group, Options};
use crate::report::{self, Row, Unit, median, spread};

/// Scaled cost of a program that does nothing; all figures are scaled by it.
const SCALE: f64 = 36.0;
/// The row of that program's real cost.
const NOOP: &str = "no-op program";

/// Amounts of measurement.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// Rounds of quick measurements.
    pub(super) rounds: usize,
    /// Rounds of measurements that need a table of flows each.
    pub(super) long_rounds: usize,
    /// Runs in a round for one packet.
    pub(super) repeat: u32,
    /// Flows in measurements with many flows.
    pub(super) flows: usize,
    /// True if every kind of flow is measured with many flows, too.
    pub(super) is_full: bool,
}

impl Plan {
    /// The amounts that the options select.
    pub(super) fn of(options: &Options) -> Self {
        let full = Self {
            rounds: 41,
            long_rounds: 15,
            repeat: 20_000,
            flows: 100_000,
            is_full: true,
        };
        if options.trial {
            Self {
                rounds: 1,
                long_rounds: 1,
                repeat: 50,
                flows: 200,
                ..full
            }
        } else if options.quick {
            Self {
                rounds: 7,
                long_rounds: 3,
                repeat: 10_000,
                is_full: false,
                ..full
            }
        } else {
            full
        }
    }
}

/// Expected results of packets, which show that the right path is measured.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    /// Return code of the program.
    pub(super) code: i32,
    /// Outcome that the program counts; `None` for a packet that it does not handle.
    pub(super) outcome: Option<Outcome>,
}

/// A path: a program, and packets that take it.
pub(super) struct Path {
    /// Name of the row; variants add theirs.
    pub(super) name: String,
    pub(super) program: Program,
    pub(super) on: On,
    pub(super) packets: Vec<Packet>,
    pub(super) expected: Expected,
}

/// A program written by hand that takes the same packets.
pub(super) struct Beside<'a> {
    /// Name of the row.
    pub(super) name: String,
    pub(super) program: &'a OwnProgram,
    pub(super) code: i32,
}

/// Measures, and keeps the results.
pub(super) struct Meter {
    pub(super) plan: Plan,
    pub(super) repeater: Repeater,
    /// Samples in scaled nanoseconds, by row.
    samples: BTreeMap<String, Vec<f64>>,
    /// Names of rows in the order in which they came.
    order: Vec<String>,
    noops: Vec<f64>,
}

/// A frame for a list, padded to the length that a list needs.
pub(super) fn packet(mut frame: Vec<u8>, mark: u32) -> Packet {
    let length = frame.len().max(RESTORED);
    frame.resize(length, 0);
    Packet { frame, mark }
}

impl Meter {
    pub(super) fn new(plan: Plan) -> Result<Self> {
        Ok(Self {
            plan,
            repeater: Repeater::new()?,
            samples: BTreeMap::new(),
            order: Vec::new(),
            noops: Vec::new(),
        })
    }

    /// Current cost of the program that does nothing, in nanoseconds.
    pub(super) fn noop(&mut self, on: On) -> Result<f64> {
        let repeat = 5 * self.plan.repeat;
        let noop = self.repeater.plain(self.repeater.noop(), on, repeat)?;
        self.noops.push(noop.each);
        Ok(noop.each)
    }

    /// Keeps a sample in nanoseconds, scaled by the cost of a no-op program at that time.
    pub(super) fn keep(&mut self, name: &str, nanoseconds: f64, noop: f64) {
        if !self.samples.contains_key(name) {
            report::progress(&format!("program: {name}"));
            self.order.push(name.to_owned());
        }
        let samples = self.samples.entry(name.to_owned()).or_default();
        samples.push(nanoseconds * SCALE / noop);
    }

    /// Runs packets once through the programs of variants, to create their flows.
    pub(super) fn pass<'a>(
        &mut self,
        path: &Path,
        variants: impl Iterator<Item = &'a mut Variant>,
    ) -> Result<()> {
        self.repeater.set(&path.packets)?;
        for variant in variants {
            self.repeater.rewind()?;
            let count = u32::try_from(path.packets.len())?;
            self.checked(path, variant, count)?;
        }
        Ok(())
    }

    /// Measures a path with each variant, and with handwritten programs.
    pub(super) fn measure<'a>(
        &mut self,
        path: &Path,
        variants: impl Iterator<Item = &'a mut Variant>,
        beside: &[Beside<'_>],
    ) -> Result<()> {
        let mut variants: Vec<_> = variants.collect();
        self.repeater.set(&path.packets)?;
        let count = path.packets.len();
        let (rounds, repeat) = if count == 1 {
            (self.plan.rounds, self.plan.repeat)
        } else {
            (self.plan.long_rounds, u32::try_from(count)?)
        };
        // The first round warms the caches.
        for round in 0..=rounds {
            let noop = self.noop(path.on)?;
            let empty = self
                .repeater
                .run(self.repeater.noop(), path.on, repeat)?
                .each;
            for variant in &mut variants {
                let each = self.checked(path, variant, repeat)?;
                if round > 0 {
                    self.keep(
                        &format!("{}{}", path.name, variant.suffix),
                        each - empty,
                        noop,
                    );
                }
            }
            for program in beside {
                let timed = self
                    .repeater
                    .run(program.program.runner(), path.on, repeat)?;
                let code = timed.code;
                ensure!(code == program.code, "{} returned {code}", program.name);
                if round > 0 {
                    self.keep(&program.name, timed.each - empty, noop);
                }
            }
        }
        Ok(())
    }

    /// Runs a path a number of times and returns the nanoseconds of a run; every packet must have
    /// the expected result.
    pub(super) fn checked(&self, path: &Path, variant: &mut Variant, repeat: u32) -> Result<f64> {
        let runner: Runner = variant.programs.runner(path.program)?;
        let before = Counts::read(path, variant)?;
        let timed = self.repeater.run(runner, path.on, repeat)?;
        let after = Counts::read(path, variant)?;
        let name = || format!("{}{}", path.name, variant.suffix);
        let code = timed.code;
        ensure!(
            code == path.expected.code,
            "{}: returned {code}, not {}",
            name(),
            path.expected.code
        );
        let expected = path
            .expected
            .outcome
            .map(|outcome| (path.program.slot(outcome), repeat));
        before.grown_by(&after, expected).with_context(name)?;
        Ok(timed.each)
    }

    /// Everything that was measured.
    pub(super) fn finish(self) -> Result<Vec<Row>> {
        let mut rows = vec![Row {
            group: Group::Program,
            name: NOOP.to_owned(),
            value: median(&self.noops),
            unit: Unit::Nanoseconds,
            spread: spread(&self.noops),
            target: None,
        }];
        let names: BTreeSet<_> = self.order.iter().collect();
        ensure!(names.len() == self.order.len(), "two rows of one name");
        rows.extend(targets::rows(&self.samples)?);
        rows.extend(self.order.iter().filter_map(|name| {
            let samples = self.samples.get(name)?;
            Some(row(name.clone(), samples, None))
        }));
        Ok(rows)
    }
}

/// A row of samples.
pub(super) fn row(name: String, samples: &[f64], target: Option<f64>) -> Row {
    Row {
        group: Group::Program,
        name,
        value: median(samples),
        unit: Unit::ScaledNanoseconds,
        spread: spread(samples),
        target,
    }
}

/// The counters of a path's program.
struct Counts(BTreeMap<u32, Counter>);

impl Counts {
    fn read(path: &Path, variant: &Variant) -> Result<Self> {
        let mut counters = variant.programs.counters()?;
        let first = path.program as u32 * Outcome::SLOTS;
        counters.retain(|slot, _| (first..first + Outcome::SLOTS).contains(slot));
        Ok(Self(counters))
    }

    /// Fails unless the one slot has grown by so much until `after`, and no other has.
    fn grown_by(&self, after: &Self, expected: Option<(u32, u32)>) -> Result<()> {
        let packets = |counts: &Self, slot| {
            let counter = counts.0.get(slot);
            counter.map_or(0, |counter: &Counter| counter.packets)
        };
        let mut grown: BTreeMap<u32, u64> = after
            .0
            .keys()
            .map(|slot| (*slot, packets(after, slot) - packets(self, slot)))
            .collect();
        grown.retain(|_, packets| *packets > 0);
        let expected: BTreeMap<u32, u64> = expected
            .into_iter()
            .map(|(slot, repeat)| (slot, u64::from(repeat)))
            .collect();
        ensure!(
            grown == expected,
            "counted {}, not {}",
            named(&grown),
            named(&expected)
        );
        Ok(())
    }
}

fn named(counts: &BTreeMap<u32, u64>) -> String {
    let names = counts.iter().map(|(slot, packets)| {
        let outcome = u8::try_from(slot % Outcome::SLOTS).ok();
        let outcome = outcome.and_then(Outcome::from_code);
        let name = outcome.map_or("an unknown outcome", Outcome::name);
        format!("{packets} of {name}")
    });
    let names: Vec<_> = names.collect();
    if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    }
}
