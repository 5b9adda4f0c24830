//! Results of the measurements, and their output.

mod chart;
mod document;
mod machine;

use std::fs;
use std::io::{IsTerminal as _, stdout};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::options::{Group, Options};

/// Unit of a figure. Less is better in every unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unit {
    /// Nanoseconds, scaled so that the run's no-op program costs 36.
    ScaledNanoseconds,
    /// Nanoseconds of this machine.
    Nanoseconds,
    /// Milliseconds of this machine.
    Milliseconds,
    /// Ratio to another figure of the same run.
    Ratio,
    /// Of 1024 * 1024 bytes.
    Mebibytes,
    /// Percent of one CPU, or of growth.
    Percent,
    /// Times in a second.
    PerSecond,
}

impl Unit {
    /// Name in tables and documents.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ScaledNanoseconds => "scaled ns",
            Self::Nanoseconds => "ns",
            Self::Milliseconds => "ms",
            Self::Ratio => "ratio",
            Self::Mebibytes => "MiB",
            Self::Percent => "%",
            Self::PerSecond => "/s",
        }
    }
}

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Group of the figure.
    pub(crate) group: Group,
    /// Name of the measurement; unique within the group, stable over versions.
    pub(crate) name: String,
    /// The median.
    pub(crate) value: f64,
    pub(crate) unit: Unit,
    /// Half the distance between the quartiles, in the same unit, where there were several rounds.
    pub(crate) spread: Option<f64>,
    /// Limit of the value.
    pub(crate) target: Option<f64>,
}

impl Row {
    /// True if the target is met; `None` without one.
    pub(crate) fn met(&self) -> Option<bool> {
        self.target.map(|target| self.value <= target)
    }
}

/// Prints the current step to standard error.
pub(crate) fn progress(what: &str) {
    eprintln!("bench: {what}");
}

/// The quantile of samples for a fraction; 0 without samples.
fn quantile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a place in a list of some hundred"
    )]
    let place = |part: f64| ((last as f64 * part) as usize, (last as f64 * part).fract());
    let (below, rest) = place(part);
    let above = sorted[(below + 1).min(last)];
    sorted[below] + (above - sorted[below]) * rest
}

/// The median of samples; 0 without any.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// Half the distance between the quartiles of samples; none where it would be meaningless.
pub(crate) fn spread(samples: &[f64]) -> Option<f64> {
    let distance = quantile(samples, 0.75) - quantile(samples, 0.25);
    (samples.len() > 2).then_some(distance / 2.0)
}

/// Prints the rows, and writes the files that the options name.
pub(crate) fn show(rows: &[Row], options: &Options) -> Result<()> {
    if let Some(file) = &options.json {
        let text = document::json(rows, &machine::Machine::read())?;
        write(file, &text)?;
    }
    if let Some(folder) = &options.charts {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        for group in options.groups() {
            let of_group: Vec<_> = rows.iter().filter(|row| row.group == group).collect();
            if let Some((name, text)) = chart::chart(group, &of_group) {
                write(&folder.join(name), &text)?;
            }
        }
    }
    println!("{}", table(rows, stdout().is_terminal()));
    println!("{}", summary(rows));
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// The number of targets that are met.
fn summary(rows: &[Row]) -> String {
    let verdicts: Vec<_> = rows.iter().filter_map(Row::met).collect();
    let met = verdicts.iter().filter(|met| **met).count();
    format!("{met} of {} targets are met", verdicts.len())
}

/// A figure with its significant digits.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Figures to the right, names to the left, targets first.
fn table(rows: &[Row], is_coloured: bool) -> String {
    const HEADER: [&str; 8] = [
        "group", "name", "value", "unit", "spread", "target", "ratio", "met",
    ];
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_by_key(|row| (row.group as u8, row.target.is_none()));
    let cells = |row: &&Row| {
        let optional = |value: Option<f64>| value.map_or(String::new(), figure);
        let ratio = row.target.filter(|target| *target > 0.0);
        let met = match row.met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        [
            row.group.name().to_owned(),
            row.name.clone(),
            figure(row.value),
            row.unit.name().to_owned(),
            optional(row.spread),
            optional(row.target),
            optional(ratio.map(|target| row.value / target)),
            met.to_owned(),
        ]
    };
    let lines: Vec<_> = std::iter::once(HEADER.map(str::to_owned))
        .chain(rows.iter().map(cells))
        .collect();
    let width = |column: usize| {
        let lengths = lines.iter().map(|cells| cells[column].chars().count());
        lengths.max().unwrap_or_default()
    };
    let widths: [usize; HEADER.len()] = std::array::from_fn(width);
    let text = lines.iter().enumerate().map(|(number, cells)| {
        let padded = cells.iter().zip(widths).enumerate();
        let padded: Vec<_> = padded
            .map(|(column, (cell, width))| match column {
                0 | 1 | 3 | 7 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        let line = padded.join("  ").trim_end().to_owned();
        let met = number.checked_sub(1).and_then(|row| rows[row].met());
        match met {
            Some(met) if is_coloured => {
                let colour = if met { 32 } else { 31 };
                format!("\u{1b}[{colour}m{line}\u{1b}[0m")
            }
            _ => line,
        }
    });
    text.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row with a value and a target.
    pub(crate) fn row(name: &str, value: f64, target: Option<f64>) -> Row {
        Row {
            group: Group::Program,
            name: name.to_owned(),
            value,
            unit: Unit::ScaledNanoseconds,
            spread: Some(0.5),
            target,
        }
    }

    #[test]
    fn medians_lie_in_the_middle_and_spreads_between_quartiles() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).abs() < 1e-9);
        let spread = spread(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((spread - 1.0).abs() < 1e-9);
        assert_eq!(super::spread(&[1.0, 2.0]), None);
    }

    #[test]
    fn the_table_is_aligned_has_targets_first_and_no_colour_in_a_file() {
        let rows = [
            row("plain", 1234.0, None),
            row("met", 50.0, Some(100.0)),
            row("missed", 250.0, Some(100.0)),
        ];
        let text = table(&rows, false);
        let expected = "\
group    name    value  unit       spread  target  ratio  met
program  met      50.0  scaled ns    0.50     100   0.50  yes
program  missed    250  scaled ns    0.50     100   2.50  NO
program  plain    1234  scaled ns    0.50";
        assert_eq!(text, expected);
        assert!(table(&rows, true).contains("\u{1b}[31mprogram  missed"));
        assert_eq!(summary(&rows), "1 of 2 targets are met");
    }
}
