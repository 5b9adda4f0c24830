//! The table: case x family x protocol x backend of rules. A cell that is empty or failed fails.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use ipam::Family;

use crate::model::Transport;
use crate::scene::Setting;

/// The outcome of a cell.
#[derive(Clone, Debug)]
enum Cell {
    Passed,
    Failed(String),
    /// It says nothing, for this reason.
    Without(&'static str),
}

/// The cells of one setting.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    setting: Setting,
    rows: Vec<String>,
    cells: BTreeMap<(String, Family, Transport), Cell>,
}

/// The columns of this run so far.
static COLUMNS: Mutex<BTreeMap<Setting, Column>> = Mutex::new(BTreeMap::new());

impl Column {
    pub(crate) fn new(setting: Setting) -> Self {
        Self {
            setting,
            rows: Vec::new(),
            cells: BTreeMap::new(),
        }
    }

    /// Runs every cell of a row, those aside that say nothing.
    pub(crate) fn row(
        &mut self,
        name: &str,
        without: impl Fn(Family, Transport) -> Option<&'static str>,
        run: impl Fn(Family, Transport) -> Result<()>,
    ) {
        self.rows.push(name.to_owned());
        for family in Family::ALL {
            for transport in Transport::ALL {
                let cell = match without(family, transport) {
                    Some(reason) => Cell::Without(reason),
                    None => match run(family, transport) {
                        Ok(()) => Cell::Passed,
                        Err(error) => Cell::Failed(format!("{error:#}")),
                    },
                };
                self.cells
                    .insert((name.to_owned(), family, transport), cell);
            }
        }
    }

    /// Prints the column, and the whole table once all are there.
    ///
    /// # Panics
    /// When a cell is empty or failed.
    pub(crate) fn finish(self) {
        println!("{}", text(&[&self]));
        let faults = self.faults();
        let setting = self.setting;
        let mut columns = COLUMNS.lock().unwrap_or_else(PoisonError::into_inner);
        columns.insert(setting, self);
        let all: Vec<_> = columns.values().collect();
        if all.len() == Setting::ALL.len() {
            println!("{}", text(&all));
        }
        drop(columns);
        assert!(
            faults.is_empty(),
            "{}: {} cells failed: {}",
            setting.name(),
            faults.len(),
            faults.join("\n")
        );
    }

    /// The cells that are empty or failed.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for row in &self.rows {
            for family in Family::ALL {
                for transport in Transport::ALL {
                    let at = format!("{row}, {family:?} {}", transport.name());
                    match self.cells.get(&(row.clone(), family, transport)) {
                        Some(Cell::Passed | Cell::Without(_)) => {}
                        Some(Cell::Failed(error)) => faults.push(format!("{at}: {error}")),
                        None => faults.push(format!("{at}: empty")),
                    }
                }
            }
        }
        faults
    }
}

/// Columns side by side, and below them why some cells say nothing.
fn text(columns: &[&Column]) -> String {
    let mut rows: Vec<&String> = Vec::new();
    for row in columns.iter().flat_map(|column| &column.rows) {
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let width = rows.iter().map(|row| row.len()).max().unwrap_or_default();
    let mut first = format!("{:width$}", "");
    let mut second = format!("{:width$}", "case");
    for column in columns {
        // Writing to a string cannot fail.
        let _infallible = write!(first, "  {:<19}", column.setting.name());
        second += "  tcp4 udp4 tcp6 udp6";
    }
    let mut lines = vec![first.trim_end().to_owned(), second];
    let mut reasons = BTreeMap::new();
    for row in rows {
        let mut line = format!("{row:width$}");
        for column in columns {
            line += " ";
            for family in Family::ALL {
                for transport in Transport::ALL {
                    let cell = column.cells.get(&(row.clone(), family, transport));
                    let word = match cell {
                        Some(Cell::Passed) => "ok".to_owned(),
                        Some(Cell::Failed(_)) => "FAIL".to_owned(),
                        Some(Cell::Without(reason)) => {
                            let next = reasons.len() + 1;
                            format!("({})", reasons.entry(*reason).or_insert(next))
                        }
                        None => String::new(),
                    };
                    let _infallible = write!(line, " {word:<4}");
                }
            }
        }
        lines.push(line.trim_end().to_owned());
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, number)| *number);
    for (reason, number) in reasons {
        lines.push(format!("({number}) {reason}"));
    }
    lines.join("\n")
}
