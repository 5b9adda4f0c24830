//! What was measured, and how it is shown.

use crate::options::Group;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unit {
    /// Nanoseconds, scaled so that the run's no-op program costs 36.
    ScaledNanoseconds,
    /// Nanoseconds of this machine.
    Nanoseconds,
    /// Milliseconds of this machine.
    Milliseconds,
    /// To another figure of the same run.
    Ratio,
    /// Of 1024 * 1024 bytes.
    Mebibytes,
    /// Percent of one CPU, or of growth.
    Percent,
}

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Of which group.
    pub(crate) group: Group,
    /// What was measured; unique within the group, stable over versions.
    pub(crate) name: String,
    /// The median.
    pub(crate) value: f64,
    pub(crate) unit: Unit,
    /// Half the distance between the quartiles, in the same unit, where there were several rounds.
    pub(crate) spread: Option<f64>,
    /// What it must not exceed.
    pub(crate) target: Option<f64>,
}

impl Row {
    /// Whether the target is met; `None` without one.
    pub(crate) fn met(&self) -> Option<bool> {
        self.target.map(|target| self.value <= target)
    }
}

/// Prints all rows as a table.
pub(crate) fn print(rows: &[Row]) {
    for row in rows {
        println!("{row:?} {:?}", row.met());
    }
}
