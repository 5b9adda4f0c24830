//! Cost of each path of a packet: the checked-in table, compared with the counts of `path-report`.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Deserialize;

use super::figures::{Row, Sheet, Tolerance};
use crate::build::artifacts::{self, Executable, Metadata};
use crate::console::{self, note};
use crate::process;
use crate::setup::{self, Need};
use crate::test::Results;

/// Tolerance of the figures: the code differs a little with each compiler. Smaller figures must be
/// checked in too, so that a later growth is noticed.
const TOLERANCE: Tolerance = Tolerance {
    percent: 5,
    may_shrink: false,
};
/// The checked-in table.
const SHEET: Sheet<3, 3> = Sheet {
    file: "docs/path-cost.md",
    command: "cargo xtask path-cost --update",
    preface: PREFACE,
    names: ["program", "path", "service NAT"],
    figures: ["instructions", "helper calls", "look-ups"],
};
/// The content of the file before the table.
const PREFACE: &str = "\
# What each path of a packet costs

Written by `cargo xtask path-cost --update`; not by hand. `cargo xtask test bpf` fails where a
figure is off by more than 5 percent, whether it grew or shrank.
`cargo xtask path-cost --profile NAME` shows where paths whose name begins so spend their
instructions.

The programs are interpreted (`bpf-tests/src/interpreter/`), and every packet goes through the
kernel's test run, too, which has to make the same of it. Times differ from run to run, these
figures do not.

| column | meaning |
|---|---|
| instructions | executed, of those that the verifier leaves; a constant of two slots is one |
| helper calls | of the kernel's functions, look-ups among them |
| look-ups | in maps |

* A branch on a setting is not counted: the verifier knows its direction and removes the other one.
  The verifier's other removals differ from kernel to kernel and are counted.
* What the kernel puts in the place of an instruction, such as its own look-up in an array, is not
  counted: it differs from kernel to kernel as well.
* No map is full, no lock is waited for, and every header lies where the program sees it at once.
* *Cached*: the flow cache has an entry. *Not cached*: it has none and gets one for the next packet.
* A flow's packets follow one another within a second, but for *after a second*: then the flow is
  locked.
* *Port changed*: the host has the port that the flow would keep.

";

/// Options of `path-cost`.
#[derive(Args)]
pub(crate) struct Options {
    /// Write the counts to docs/path-cost.md instead.
    #[arg(long)]
    update: bool,
    /// Show the instructions by origin for paths whose name begins with this, and compare nothing.
    #[arg(long, value_name = "NAME", conflicts_with = "update")]
    profile: Option<String>,
}

/// A path's cost, as `path-report` prints it.
#[derive(Debug, Deserialize)]
struct Counted {
    program: String,
    path: String,
    service_nat: bool,
    instructions: u64,
    helpers: u64,
    lookups: u64,
}

impl From<Counted> for Row<3, 3> {
    fn from(counted: Counted) -> Self {
        let service_nat = if counted.service_nat { "on" } else { "off" };
        Self {
            names: [counted.program, counted.path, service_nat.to_owned()],
            figures: [counted.instructions, counted.helpers, counted.lookups],
        }
    }
}

/// Runs `path-cost`.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::require_root("loading programs into a kernel")?;
    setup::ensure(&[Need::Build])?;
    let executables = artifacts::build_binaries(&Metadata::read()?)?;
    if let Some(name) = &options.profile {
        let reporter = artifacts::binary(&executables, "path-report")?;
        let profile = process::output(Command::new(reporter).arg(name))?;
        return console::result(profile.trim_end());
    }
    let rows = count(&executables)?;
    console::result(&SHEET.table(&rows))?;
    if options.update {
        return SHEET.write(&rows);
    }
    compare(&SHEET.read()?, &rows)
}

/// Compares the paths' cost with the checked-in figures: one test.
pub(crate) fn check(executables: &[Executable]) -> Results {
    note("test: what paths cost");
    let check = || compare(&SHEET.read()?, &count(executables)?);
    Results::of("what paths cost", check())
}

/// Counts the cost of every path.
fn count(executables: &[Executable]) -> Result<Vec<Row<3, 3>>> {
    let reporter = artifacts::binary(executables, "path-report")?;
    let text = process::output(&mut Command::new(reporter))?;
    let rows: Vec<Counted> =
        serde_json::from_str(&text).context("path-report printed no report")?;
    Ok(rows.into_iter().map(Row::from).collect())
}

/// Fails if the cost of a path has changed.
fn compare(before: &[Row<3, 3>], now: &[Row<3, 3>]) -> Result<()> {
    let differences = differences(before, now);
    if differences.is_empty() {
        return Ok(());
    }
    bail!(
        "paths do not cost what {} says; where that is meant, `{}` writes it anew:\n  {}",
        SHEET.file,
        SHEET.command,
        differences.join("\n  ")
    );
}

/// Differences beyond the tolerance, a line for each path.
fn differences(before: &[Row<3, 3>], now: &[Row<3, 3>]) -> Vec<String> {
    let name = |row: &Row<3, 3>| {
        let [program, path, service_nat] = &row.names;
        format!("{program}: {path}, service NAT {service_nat}")
    };
    let figures = |rows: &[Row<3, 3>]| -> BTreeMap<_, _> {
        rows.iter().map(|row| (name(row), row.figures)).collect()
    };
    let (before, now) = (figures(before), figures(now));
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    let mut differences: Vec<_> = gone.map(|name| format!("{name}: is no path")).collect();
    for (name, now) in &now {
        let Some(before) = before.get(name) else {
            differences.push(format!("{name}: has no figures"));
            continue;
        };
        let off = TOLERANCE.differences(SHEET.figures, *before, *now);
        if !off.is_empty() {
            differences.push(format!("{name}: {}", off.join(", ")));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::{Row, compare, differences};

    fn row(path: &str, instructions: u64, lookups: u64) -> Row<3, 3> {
        Row {
            names: ["to_network", path, "off"].map(str::to_owned),
            figures: [instructions, 10, lookups],
        }
    }

    #[test]
    fn what_grew_and_what_shrank_is_told_in_one_line_a_path() {
        let before = [row("one", 1000, 8), row("two", 1000, 8)];
        let of = |instructions, lookups| {
            differences(
                &before,
                &[row("one", instructions, lookups), row("two", 1000, 8)],
            )
        };
        assert_eq!(of(1050, 8), [] as [String; 0]);
        assert_eq!(of(950, 8), [] as [String; 0]);
        assert_eq!(
            of(1051, 9),
            [
                "to_network: one, service NAT off: instructions was 1000, is 1051, look-ups was 8, is 9"
            ]
        );
        assert_eq!(
            of(949, 8),
            ["to_network: one, service NAT off: instructions was 1000, is 949"]
        );
    }

    #[test]
    fn paths_without_figures_and_figures_without_paths_are_told() {
        let error = compare(&[row("old", 1, 1)], &[row("new", 1, 1)]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`cargo xtask path-cost --update`"), "{text}");
        assert!(
            text.ends_with(
                "\n  to_network: old, service NAT off: is no path\
                 \n  to_network: new, service NAT off: has no figures"
            ),
            "{text}"
        );
    }
}
