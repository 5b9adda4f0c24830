//! What each program costs on each kernel of the matrix: the checked-in table, and what is measured
//! beside it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::measured::Measured;
use super::object::Object;
use crate::console;

/// The command that writes the table anew.
const COMMAND: &str = "cargo xtask verifier-cost --update";
/// How far a figure may be off, in percent: the verifier changes a little with each kernel, and the
/// code with each compiler.
const TOLERANCE: u64 = 10;
/// What the table's columns are called.
const HEADER: [&str; 7] = [
    "kernel",
    "program",
    "instructions",
    "stack",
    "verified",
    "states",
    "peak states",
];
/// What stands in the file before the table.
const PREFACE: &str = "\
# What the verifier makes of the programs

Written by `cargo xtask verifier-cost --update`, which boots the kernels of the matrix; not by hand.
`cargo xtask test vm` fails where a figure is off by more than 10 percent, and so does `cargo xtask
test bpf` on the machine's own kernel. On one that is not in the table, no figure may be that much
above the largest.

| column | meaning |
|---|---|
| instructions | slots of eight bytes, with called functions |
| stack | bytes on the deepest path of calls, of 512 |
| verified | instructions that the verifier walked; it gives up at 1,000,000 |
| states | states of registers and stack that it kept, over all |
| peak states | the most of them at one time: what loading takes of memory |

How long loading takes on the machine's kernel, `cargo xtask build-ebpf` shows.

";

/// What one program costs on one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    kernel: String,
    program: String,
    /// In the order of the columns behind these two.
    figures: [u64; 5],
}

/// Figures of programs on kernels.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs(Vec<Row>);

impl Costs {
    /// The checked-in figures.
    pub(crate) fn checked_in() -> Result<Self> {
        let path = path();
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}; {COMMAND} writes it", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    /// Writes the figures to where the checked-in ones are.
    pub(crate) fn check_in(&self) -> Result<()> {
        let path = path();
        fs::write(&path, self.markdown())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Adds what a kernel says of an object's programs.
    pub(crate) fn add(&mut self, object: &Object, measured: &Measured) {
        for cost in object.costs() {
            // One that the kernel did not take has no figures, which the comparison tells.
            if let Some(verified) = measured.programs.get(&cost.name) {
                self.0.push(Row {
                    kernel: measured.series(),
                    program: cost.name,
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

    /// Fails when what one kernel says differs from the checked-in figures by more than is allowed.
    pub(crate) fn check(&self, object: &Object, measured: &Measured) -> Result<()> {
        let mut now = Self::default();
        now.add(object, measured);
        let differences = self.differences(&measured.series(), &now.0);
        if differences.is_empty() {
            return Ok(());
        }
        bail!(
            "the verifier's figures are not those of docs/verifier-cost.md; where that is meant, \
             `{COMMAND}` writes them anew: {}",
            differences.join("; ")
        );
    }

    /// What is off, in words.
    fn differences(&self, kernel: &str, now: &[Row]) -> Vec<String> {
        let is_known = self.0.iter().any(|row| row.kernel == kernel);
        let mut differences = Vec::new();
        for row in self.0.iter().filter(|row| row.kernel == kernel) {
            if !now.iter().any(|other| other.program == row.program) {
                differences.push(format!("{kernel} {}: not loaded", row.program));
            }
        }
        for row in now {
            let before = self.0.iter().filter(|other| {
                other.program == row.program && (!is_known || other.kernel == kernel)
            });
            let before: Vec<_> = before.collect();
            if before.is_empty() {
                differences.push(format!("{kernel} {}: no figures", row.program));
            }
            for (column, figure) in row.figures.iter().enumerate() {
                let figures = before.iter().filter_map(|row| row.figures.get(column));
                let Some(largest) = figures.max() else {
                    continue;
                };
                let is_more = figure * 100 > largest * (100 + TOLERANCE);
                let is_less = is_known && figure * 100 < largest * (100 - TOLERANCE);
                if is_more || is_less {
                    differences.push(format!(
                        "{kernel} {}: {} was {largest}, is {figure}",
                        row.program,
                        HEADER[column + 2]
                    ));
                }
            }
        }
        differences
    }

    /// The figures for people at a terminal.
    pub(crate) fn table(&self) -> String {
        let rows: Vec<_> = self.0.iter().map(Row::cells).collect();
        console::table(&HEADER, &rows)
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rules = HEADER.map(|name| match name {
            "kernel" | "program" => "---".to_owned(),
            _figure => "--:".to_owned(),
        });
        let mut text = PREFACE.to_owned() + &line(&HEADER.map(str::to_owned)) + &line(&rules);
        for row in &self.0 {
            text += &line(&row.cells());
        }
        text
    }

    fn parse(text: &str) -> Result<Self> {
        let begin = format!("| {} |", HEADER.join(" | "));
        let lines = text.lines().skip_while(|line| *line != begin).skip(2);
        lines.map(Row::parse).collect::<Result<_>>().map(Self)
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let figures = self.figures.iter().map(u64::to_string);
        [self.kernel.clone(), self.program.clone()]
            .into_iter()
            .chain(figures)
            .collect()
    }

    fn parse(line: &str) -> Result<Self> {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [kernel, program, figures @ ..] = cells.as_slice() else {
            bail!("no row of figures: {line}");
        };
        let figures = figures.iter().map(|cell| cell.parse());
        let figures: Vec<u64> = figures
            .collect::<Result<_, _>>()
            .with_context(|| format!("no figures: {line}"))?;
        let figures = figures.try_into();
        Ok(Self {
            kernel: (*kernel).to_owned(),
            program: (*program).to_owned(),
            figures: figures.map_err(|_other_number| {
                anyhow::anyhow!("not as many figures as columns: {line}")
            })?,
        })
    }
}

fn path() -> PathBuf {
    datapath_build::workspace_root().join("docs/verifier-cost.md")
}

#[cfg(test)]
mod tests {
    use super::{Costs, Row};

    fn row(kernel: &str, program: &str, verified: u64) -> Row {
        Row {
            kernel: kernel.to_owned(),
            program: program.to_owned(),
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
    fn what_is_written_is_read() {
        assert_eq!(Costs::parse(&costs().markdown()).unwrap(), costs());
        let broken = costs().markdown() + "| 6.18 | to_network | 1 |\n";
        let error = Costs::parse(&broken).unwrap_err().to_string();
        assert!(error.starts_with("not as many figures"), "{error}");
    }

    #[test]
    fn figures_may_be_off_by_a_tenth_and_no_more() {
        let of = |verified| costs().differences("6.18", &[row("6.18", "reaper", verified)]);
        for fine in [450, 500, 550] {
            assert_eq!(of(fine), [] as [String; 0]);
        }
        assert_eq!(of(551), ["6.18 reaper: verified was 500, is 551"]);
        assert_eq!(of(449), ["6.18 reaper: verified was 500, is 449"]);
    }

    #[test]
    fn programs_without_figures_and_figures_without_programs_are_told() {
        let now = [row("5.10", "reaper", 1000), row("5.10", "other", 1)];
        assert_eq!(
            costs().differences("5.10", &now),
            ["5.10 to_network: not loaded", "5.10 other: no figures"]
        );
    }

    #[test]
    fn a_kernel_that_is_not_in_the_table_may_not_be_dearer_than_the_dearest() {
        let of = |verified| costs().differences("6.6", &[row("6.6", "reaper", verified)]);
        assert_eq!(of(1), [] as [String; 0]);
        assert_eq!(of(1100), [] as [String; 0]);
        assert_eq!(of(1101), ["6.6 reaper: verified was 1000, is 1101"]);
    }
}
