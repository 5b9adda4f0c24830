//! `docs/reference/rfc.md` lists every requirement of the RFCs once, and the requirements that are
//! met name existing tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

/// The documents, and the number of requirements of each, numbered from 1.
const RFCS: &[(&str, u32)] = &[
    ("RFC 4787", 14),
    ("RFC 5382", 10),
    ("RFC 5508", 11),
    ("RFC 6890", 3),
];

/// States of a requirement, with true for those that need a test.
const STATES: &[(&str, bool)] = &[
    ("met", true),
    ("partly", true),
    ("not met", false),
    ("not applicable", false),
];

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    rfc: &'a str,
    requirement: &'a str,
    state: &'a str,
    reason: &'a str,
}

/// Fails on a requirement that is missing, and on a test that does not exist.
pub(super) fn check() -> Result<()> {
    let root = datapath_build::workspace_root();
    let text =
        fs::read_to_string(root.join("docs/reference/rfc.md")).context("docs/reference/rfc.md")?;
    let faults = faults(&text, |test| exists(root, test))?;
    if faults.is_empty() {
        return Ok(());
    }
    bail!("docs/reference/rfc.md: {}", faults.join("; "));
}

/// Faults of the table.
fn faults(text: &str, exists: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let rows = rows(text)?;
    let mut faults = Vec::new();
    for (rfc, last) in RFCS {
        for number in 1..=*last {
            let name = format!("REQ-{number}");
            let found = rows
                .iter()
                .filter(|row| row.rfc == *rfc && row.requirement == name);
            let found = found.count();
            if found != 1 {
                faults.push(format!("{rfc} {name}: {found} rows"));
            }
        }
    }
    for row in &rows {
        let place = format!("{} {}", row.rfc, row.requirement);
        let Some((_, needs_test)) = STATES.iter().find(|(state, _)| *state == row.state) else {
            faults.push(format!("{place}: {}: no such state", row.state));
            continue;
        };
        let tests: Vec<_> = tests(row.reason).collect();
        if *needs_test && tests.is_empty() {
            faults.push(format!("{place}: {}, but no test is named", row.state));
        }
        for test in tests.into_iter().filter(|test| !exists(test)) {
            faults.push(format!("{place}: there is no test {test}"));
        }
        if !needs_test && row.reason.is_empty() {
            faults.push(format!("{place}: {}, but why?", row.state));
        }
    }
    Ok(faults)
}

/// The rows of all tables, each below its RFC's heading.
fn rows(text: &str) -> Result<Vec<Row<'_>>> {
    let mut rows = Vec::new();
    let mut rfc = "";
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            rfc = heading.split(':').next().unwrap_or(heading);
        } else if line.starts_with("| REQ-") {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let &[requirement, _, state, reason] = cells.as_slice() else {
                bail!("{line}: {} cells, not 4", cells.len());
            };
            rows.push(Row {
                rfc,
                requirement,
                state,
                reason,
            });
        }
    }
    ensure!(!rows.is_empty(), "no requirement");
    Ok(rows)
}

/// The tests that a text names: quoted words with a path.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|word| word.contains("::"))
}

/// True if the sources have a test of this name: program, modules, function.
fn exists(root: &Path, test: &str) -> bool {
    let mut parts: Vec<_> = test.split("::").collect();
    let (Some(function), false) = (parts.pop(), parts.is_empty()) else {
        return false;
    };
    let program = parts.remove(0);
    parts.retain(|part| *part != "tests");
    candidates(root, program, &parts)
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .any(|text| has_test(&text, function))
}

/// Possible files of a test program's module.
fn candidates(root: &Path, program: &str, modules: &[&str]) -> Vec<PathBuf> {
    let folders = [
        root.join("bpf-tests/tests").join(program),
        root.join("agent-tests/tests").join(program),
        root.join("loader/tests").join(program),
        root.join("agent/tests").join(program),
        match program {
            "towpath" => root.join("agent/src"),
            other => root.join(other.replace('_', "-")).join("src"),
        },
    ];
    let path: PathBuf = modules.iter().collect();
    folders
        .iter()
        .flat_map(|folder| {
            if modules.is_empty() {
                return vec![
                    folder.with_extension("rs"),
                    folder.join("main.rs"),
                    folder.join("lib.rs"),
                ];
            }
            let module = folder.join(&path);
            vec![
                module.with_extension("rs"),
                module.join("mod.rs"),
                module.join("tests.rs"),
            ]
        })
        .collect()
}

/// True if a source has a function of this name with the attribute of a test.
fn has_test(source: &str, function: &str) -> bool {
    source.split("#[test]").skip(1).any(|after| {
        let name = after.split_once("fn ").map(|(_, rest)| rest);
        name.is_some_and(|rest| {
            rest.strip_prefix(function)
                .is_some_and(|rest| rest.starts_with('('))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_table_is_whole() {
        check().unwrap();
    }

    #[test]
    fn tests_are_found_in_the_sources_and_nowhere_else() {
        let root = datapath_build::workspace_root();
        assert!(exists(
            root,
            "xtask::lint::rfc::tests::our_own_table_is_whole"
        ));
        assert!(exists(root, "netns::ttl::every_hop_counts_and_answers"));
        assert!(!exists(root, "netns::ttl::answers"), "no test");
        assert!(!exists(root, "netns::ttl::every_hop"), "a part of a name");
        assert!(!exists(root, "netns::mtu::every_hop_counts_and_answers"));
        assert!(!exists(root, "every_hop_counts_and_answers"));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let table = |rows: &str| {
            let all: String = RFCS
                .iter()
                .flat_map(|(rfc, last)| {
                    let rows =
                        (1..=*last).map(|number| format!("| REQ-{number} | x | not met | y |\n"));
                    [format!("## {rfc}: x\n")].into_iter().chain(rows)
                })
                .collect();
            all.replace("| REQ-9 | x | not met | y |\n", rows)
        };
        let first = |rows: &str| {
            let faults = faults(&table(rows), |test| test == "a::b").unwrap();
            faults.first().cloned().unwrap_or_default()
        };
        assert_eq!(first("| REQ-9 | x | met | `a::b` |\n"), "");
        assert_eq!(first(""), "RFC 4787 REQ-9: 0 rows");
        assert_eq!(
            first("| REQ-9 | x | met | surely |\n"),
            "RFC 4787 REQ-9: met, but no test is named"
        );
        assert_eq!(
            first("| REQ-9 | x | partly | `a::b` `a::c` |\n"),
            "RFC 4787 REQ-9: there is no test a::c"
        );
        assert_eq!(
            first("| REQ-9 | x | perhaps | y |\n"),
            "RFC 4787 REQ-9: perhaps: no such state"
        );
        assert_eq!(
            first("| REQ-9 | x | not met | |\n"),
            "RFC 4787 REQ-9: not met, but why?"
        );
    }
}
