//! Results as JSON.

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::Row;
use super::machine::Machine;

#[derive(Serialize)]
struct Document<'a> {
    targets: Vec<Judged<'a>>,
    rows: Vec<Figure<'a>>,
    machine: &'a Machine,
}

#[derive(Serialize)]
struct Judged<'a> {
    name: &'a str,
    value: f64,
    unit: &'static str,
    target: f64,
    met: bool,
}

#[derive(Serialize)]
struct Figure<'a> {
    group: &'static str,
    name: &'a str,
    value: f64,
    unit: &'static str,
    spread: Option<f64>,
    target: Option<f64>,
    met: Option<bool>,
}

/// All of it, as one document.
pub(super) fn json(rows: &[Row], machine: &Machine) -> Result<String> {
    let targets = rows.iter().filter_map(|row| {
        Some(Judged {
            name: &row.name,
            value: row.value,
            unit: row.unit.name(),
            target: row.target?,
            met: row.met()?,
        })
    });
    let figures = rows.iter().map(|row| Figure {
        group: row.group.name(),
        name: &row.name,
        value: row.value,
        unit: row.unit.name(),
        spread: row.spread,
        target: row.target,
        met: row.met(),
    });
    let document = Document {
        targets: targets.collect(),
        rows: figures.collect(),
        machine,
    };
    let text = serde_json::to_string_pretty(&document).context("the results as JSON")?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn targets_are_rows_that_have_one() {
        let rows = [row("with", 250.0, Some(100.0)), row("without", 1.0, None)];
        let text = json(&rows, &Machine::read()).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!([
            {"name": "with", "value": 250.0, "unit": "scaled ns", "target": 100.0, "met": false}
        ]);
        assert_eq!(document["targets"], expected);
        assert_eq!(document["rows"][1]["name"], "without");
        assert!(document["rows"][1]["target"].is_null());
        assert!(document["machine"]["kernel"].is_string());
    }
}
