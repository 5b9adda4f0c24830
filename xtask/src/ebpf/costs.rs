//! Cost of each program on each kernel of the matrix: the checked-in table, compared with new
//! measurements.

use std::array;
use std::collections::BTreeSet;

use anyhow::{Result, bail};

use super::figures::{Row, Sheet, Tolerance};
use super::measured::Measured;
use super::object::Object;

/// Tolerance of a figure, in percent: the verifier changes a little with each kernel, and the code
/// with each compiler.
const TOLERANCE: u64 = 10;
/// The checked-in table: kernel and program, and the figures.
const SHEET: Sheet<2, 5> = Sheet {
    file: "docs/verifier-cost.md",
    command: "cargo xtask verifier-cost --update",
    preface: PREFACE,
    names: ["kernel", "program"],
    figures: ["instructions", "stack", "verified", "states", "peak states"],
};
/// The content of the file before the table.
const PREFACE: &str = "\
# What the verifier makes of the programs

Written by `cargo xtask verifier-cost --update`, which boots the kernels of the matrix; not by hand.
`cargo xtask test vm` fails where a figure is off by more than 10 percent, whether it grew or
shrank; `cargo xtask test bpf` fails where one on the machine's own kernel is that much above the
largest.

| column | meaning |
|---|---|
| instructions | slots of eight bytes, with called functions |
| stack | bytes on the deepest path of calls, of 512 |
| verified | instructions that the verifier walked; it gives up at 1,000,000 |
| states | states of registers and stack that it kept, over all |
| peak states | the most of them at one time: what loading takes of memory |

The programs have the settings with which there is the most of them (`settings` in
`testkit/src/verifier.rs`). How long loading takes on the machine's kernel, `cargo xtask build-ebpf`
shows.

";

/// Figures of programs on kernels.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs(Vec<Row<2, 5>>);

impl Costs {
    /// The checked-in figures.
    pub(crate) fn checked_in() -> Result<Self> {
        SHEET.read().map(Self)
    }

    /// Writes the figures to the checked-in file.
    pub(crate) fn check_in(&self) -> Result<()> {
        SHEET.write(&self.0)
    }

    /// Adds a kernel's figures for an object's programs.
    pub(crate) fn add(&mut self, object: &Object, measured: &Measured) {
        for cost in object.costs() {
            // A program that the kernel refused has no figures, which the comparison reports.
            if let Some(verified) = measured.programs.get(&cost.name) {
                self.0.push(Row {
                    names: [measured.series(), cost.name],
                    figures: [
                        cost.instructions,
                        cost.stack,
                        verified.verified_instructions,
                        verified.total_states,
                        verified.peak_states,
                    ],
                });
            }
        }
    }

    /// Fails if the figures of a kernel of the matrix differ too much from its checked-in ones.
    /// Debian's newest may be newer than the figures: then it is treated like any other kernel.
    pub(crate) fn check(&self, object: &Object, measured: &Measured) -> Result<()> {
        let kernel = measured.series();
        let of_kernel = |row: &&Row<2, 5>| row.names[0] == kernel;
        let known: Vec<_> = self.0.iter().filter(of_kernel).cloned().collect();
        if known.is_empty() {
            return self.check_elsewhere(object, measured);
        }
        Self(known).compare(object, measured, true)
    }

    /// Fails if the figures of any other kernel are too far above the largest checked-in ones.
    /// Versions of one series can differ by more than the tolerance.
    pub(crate) fn check_elsewhere(&self, object: &Object, measured: &Measured) -> Result<()> {
        self.compare(object, measured, false)
    }

    fn compare(&self, object: &Object, measured: &Measured, exact: bool) -> Result<()> {
        let mut now = Self::default();
        now.add(object, measured);
        let differences = self.differences(&now.0, exact);
        if differences.is_empty() {
            return Ok(());
        }
        bail!(
            "the verifier's figures are not those of {}; where that is meant, \
             `{}` writes them anew. Linux {}: {}",
            SHEET.file,
            SHEET.command,
            measured.series(),
            differences.join("; ")
        );
    }

    /// Differences beyond the tolerance, in words; too small figures only if they must be `exact`.
    fn differences(&self, now: &[Row<2, 5>], exact: bool) -> Vec<String> {
        let tolerance = Tolerance {
            percent: TOLERANCE,
            may_shrink: !exact,
        };
        let mut differences = Vec::new();
        let programs: BTreeSet<_> = self.0.iter().map(|row| &row.names[1]).collect();
        for program in programs {
            if !now.iter().any(|row| row.names[1] == *program) {
                differences.push(format!("{program} is not loaded"));
            }
        }
        for row in now {
            let [_, program] = &row.names;
            let known = self.0.iter().filter(|known| known.names[1] == *program);
            let Some(largest) = known.map(|row| row.figures).reduce(largest) else {
                differences.push(format!("{program} has no figures"));
                continue;
            };
            let off = tolerance.differences(SHEET.figures, largest, row.figures);
            differences.extend(off.into_iter().map(|off| format!("{program}: {off}")));
        }
        differences
    }

    /// The figures for people at a terminal.
    pub(crate) fn table(&self) -> String {
        SHEET.table(&self.0)
    }
}

/// The larger of two kernels' figures.
fn largest(some: [u64; 5], others: [u64; 5]) -> [u64; 5] {
    array::from_fn(|column| some[column].max(others[column]))
}

#[cfg(test)]
mod tests {
    use super::{Costs, Row};

    fn row(kernel: &str, program: &str, verified: u64) -> Row<2, 5> {
        Row {
            names: [kernel.to_owned(), program.to_owned()],
            figures: [100, 64, verified, 30, 10],
        }
    }

    fn costs() -> Costs {
        Costs(vec![
            row("5.10", "reaper", 1000),
            row("5.10", "to_network", 2000),
            row("6.18", "reaper", 500),
        ])
    }

    #[test]
    fn figures_may_be_off_by_a_tenth_and_no_more() {
        let known = Costs(vec![row("6.18", "reaper", 500)]);
        let of = |verified| known.differences(&[row("6.18", "reaper", verified)], true);
        for fine in [450, 500, 550] {
            assert_eq!(of(fine), [] as [String; 0]);
        }
        assert_eq!(of(551), ["reaper: verified was 500, is 551"]);
        assert_eq!(of(449), ["reaper: verified was 500, is 449"]);
    }

    #[test]
    fn programs_without_figures_and_figures_without_programs_are_told() {
        let now = [row("5.10", "reaper", 1000), row("5.10", "other", 1)];
        assert_eq!(
            costs().differences(&now, false),
            ["to_network is not loaded", "other has no figures"]
        );
    }

    #[test]
    fn elsewhere_no_program_is_dearer_than_where_it_is_dearest() {
        let of = |verified| {
            let now = [row("6.6", "reaper", verified), row("6.6", "to_network", 1)];
            costs().differences(&now, false)
        };
        assert_eq!(of(1), [] as [String; 0]);
        assert_eq!(of(1100), [] as [String; 0]);
        assert_eq!(of(1101), ["reaper: verified was 1000, is 1101"]);
    }
}
