//! The page of faults, guards and tests.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

use super::faults;

/// The page.
pub(super) const FILE: &str = "docs/guards.md";

/// The text before the table.
const PREFACE: &str = "\
# Guards of the operator

Written by `cargo xtask mutations --update`; not by hand. Each line of the table has a fault that
users of operators for ENIs met, a guard against it, and the test that fails without the guard.
`cargo xtask mutations` takes each guard away in a copy of the sources, and sees its test fail. The
list is `xtask/src/mutations/`.

| no. | fault | guard | file | test |
|--:|---|---|---|---|
";

/// Writes the page.
pub(super) fn write() -> Result<()> {
    let file = datapath_build::workspace_root().join(FILE);
    fs::write(&file, text()).with_context(|| format!("write {FILE}"))
}

/// The text of the page.
pub(super) fn text() -> String {
    let mut text = PREFACE.to_owned();
    for fault in faults() {
        for mutant in fault.mutants {
            let number = match fault.number {
                0 => String::new(),
                number => number.to_string(),
            };
            let name = mutant.test.name.rsplit("::").next().unwrap_or_default();
            let file = mutant.file.replace("/src/", "/");
            // Writing into a text cannot fail.
            let _written = writeln!(
                text,
                "| {number} | {} | {} | `{file}` | `{name}` |",
                fault.symptom, mutant.guard
            );
        }
    }
    text
}
