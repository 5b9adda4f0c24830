//! Results of several runs of two builds, and the comparison of their figures.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// Ratio up to which figures count as equal.
const TOLERATED: f64 = 1.10;

/// A run in the benchmark's output format.
#[derive(Deserialize)]
pub(super) struct Run {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    group: String,
    name: String,
    value: f64,
    unit: String,
}

impl Run {
    /// Reads the benchmark's output.
    pub(super) fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("the benchmark's results are not what was expected")
    }
}

/// A figure of both builds.
#[derive(Debug, PartialEq)]
pub(super) struct Compared {
    pub(super) group: String,
    pub(super) name: String,
    pub(super) unit: String,
    /// Medians of both builds.
    pub(super) old: f64,
    pub(super) new: f64,
    /// The median of the turns' ratios of new to old.
    pub(super) ratio: f64,
    /// Half the distance between the least and the greatest of these ratios.
    pub(super) spread: f64,
}

impl Compared {
    /// True if the new build is slower, beyond the spread.
    pub(super) fn is_worse(&self) -> bool {
        self.ratio - self.spread > TOLERATED
    }

    /// Cells of a table: name, old, new, unit, ratio, spread, verdict.
    pub(super) fn cells(&self) -> Vec<String> {
        let verdict = if self.is_worse() {
            "WORSE"
        } else if self.ratio + self.spread < 1.0 / TOLERATED {
            "better"
        } else {
            ""
        };
        vec![
            format!("{}: {}", self.group, self.name),
            format!("{:.2}", self.old),
            format!("{:.2}", self.new),
            self.unit.clone(),
            format!("{:.2}", self.ratio),
            format!("{:.2}", self.spread),
            verdict.to_owned(),
        ]
    }
}

/// Compares turns, each a run of the old build and one of the new. Figures of only one build are
/// omitted, and so are figures near zero, whose ratios are random.
pub(super) fn compare(turns: &[(Run, Run)]) -> Vec<Compared> {
    let mut pairs = BTreeMap::<(&str, &str), (&str, Vec<(f64, f64)>)>::new();
    let mut order = Vec::new();
    for (old, new) in turns {
        for row in &new.rows {
            let same = |other: &&Row| {
                (&other.group, &other.name, &other.unit) == (&row.group, &row.name, &row.unit)
            };
            let Some(before) = old.rows.iter().find(same) else {
                continue;
            };
            let key = (row.group.as_str(), row.name.as_str());
            let entry = pairs.entry(key).or_insert_with(|| {
                order.push(key);
                (&row.unit, Vec::new())
            });
            entry.1.push((before.value, row.value));
        }
    }
    let compared = order.into_iter().filter_map(|key| {
        let (unit, values) = pairs.get(&key)?;
        let side = |pick: fn(&(f64, f64)) -> f64| median(values.iter().map(pick).collect());
        let (old, new) = (side(|pair| pair.0), side(|pair| pair.1));
        let usable = values.iter().all(|(old, new)| *old > 0.0 && *new > 0.0);
        if !usable || old < least(unit) {
            return None;
        }
        let mut ratios: Vec<_> = values.iter().map(|(old, new)| new / old).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let spread = (ratios.last()? - ratios.first()?) / 2.0;
        Some(Compared {
            group: key.0.to_owned(),
            name: key.1.to_owned(),
            unit: (*unit).to_owned(),
            old,
            new,
            ratio: median(ratios),
            spread,
        })
    });
    compared.collect()
}

/// Least figure that is compared: a smaller one is a difference of two larger ones.
fn least(unit: &str) -> f64 {
    if unit == "scaled ns" { 10.0 } else { 0.01 }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |place: usize| values.get(place).copied().unwrap_or_default();
    if values.len().is_multiple_of(2) {
        f64::midpoint(at(middle.saturating_sub(1)), at(middle))
    } else {
        at(middle)
    }
}

#[cfg(test)]
mod tests {
    use super::{Run, compare};

    fn run(rows: &[(&str, f64)]) -> Run {
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, value)| {
                let unit = "scaled ns";
                serde_json::json!({"group": "program", "name": name, "value": value, "unit": unit})
            })
            .collect();
        Run::parse(&serde_json::json!({"rows": rows}).to_string()).unwrap()
    }

    #[test]
    fn what_is_slower_beyond_chance_is_worse() {
        let turns: Vec<_> = [(100.0, 0.0), (110.0, 2.0), (90.0, -2.0)]
            .into_iter()
            .map(|(base, noise)| {
                let old = [("a", base), ("b", base), ("gone", 50.0), ("tiny", 1.0)];
                let new = [
                    ("a", base * 1.2 + noise),
                    ("b", base + 15.0 * noise),
                    ("new", 50.0),
                    ("tiny", 4.0),
                ];
                (run(&old), run(&new))
            })
            .collect();
        let compared = compare(&turns);
        let names: Vec<_> = compared.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!((compared[0].ratio - 1.2).abs() < 1e-9 && compared[0].spread < 0.03);
        assert!(compared[0].is_worse());
        assert!(!compared[1].is_worse(), "{:?}", compared[1]);
        assert_eq!(compared[0].cells().last().unwrap(), "WORSE");
        assert!((compared[1].old - 100.0).abs() < 1e-9);
    }

    #[test]
    fn something_else_than_results_is_an_error() {
        assert!(Run::parse("[]").is_err());
    }
}
