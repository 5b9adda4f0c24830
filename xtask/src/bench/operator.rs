//! The group `operator`: clusters whose nodes all come at once, in virtual time. The tests of the
//! library `fleet` simulate them and have the targets.

use anyhow::{Context as _, Result};

use crate::console;
use crate::process;

/// Words that begin a row of the table of times in the output of a test, before the row's cells.
const TIME: &str = "bench operator: ";
/// Words that begin a row of the table of costs.
const COST: &str = "bench operator cost: ";
/// The header of the table of times.
const TIMES: [&str; 6] = [
    "nodes",
    "Cilium's operator, computed",
    "bound of EC2's rates",
    "ours",
    "target",
    "peak memory",
];

/// The header of the table of costs.
const COSTS: [&str; 5] = [
    "cost",
    "nodes",
    "Cilium's operator, computed",
    "ours",
    "target",
];

/// Simulates the clusters and prints their tables. A quick run leaves the largest one out.
///
/// # Errors
/// When a target is missed.
pub(super) fn run(is_quick: bool) -> Result<()> {
    let mut command = process::locked_cargo("test");
    command.args(["--quiet", "--release", "--package", "towpath-fleet"]);
    command.args([
        "--test",
        "cases",
        "--",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    command.args(["scale::a_cluster_comes_up", "scale::all_nodes_of_a_cold"]);
    if !is_quick {
        command.env("TOWPATH_FULL", "1");
    }
    let output = process::output(&mut command).context("a simulated cluster missed its target")?;
    println!("\n{}", console::table(&TIMES, &rows(TIME, &output)));
    println!("\n{}", console::table(&COSTS, &rows(COST, &output)));
    Ok(())
}

/// The rows in the output of tests that begin with these words.
fn rows(words: &str, output: &str) -> Vec<Vec<String>> {
    // A test's name precedes its output on the line.
    let cells = output.lines().filter_map(|line| line.split_once(words));
    cells
        .map(|(_, cells)| cells.split(" | ").map(str::to_owned).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{COST, TIME, rows};

    #[test]
    fn rows_are_found_after_names_of_tests() {
        let output = "test scale::a ... bench operator: 150 | 3 min | 28 s | 30 s | 45 s | 9 MB\n\
                      bench operator cost: writes | 150 | 0 | 0 | 0\nok\n";
        let times = [["150", "3 min", "28 s", "30 s", "45 s", "9 MB"]];
        assert_eq!(rows(TIME, output), times);
        assert_eq!(rows(COST, output), [["writes", "150", "0", "0", "0"]]);
    }
}
