//! The table of keys against the types.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::explain::HELP;
use super::tree::leaves;
use super::{Config, Source};

const REFERENCE: &str = include_str!("../../../docs/reference/config.md");

const EXAMPLE: &str = include_str!("../../../deploy/config.yaml");

fn keys_of_types() -> Vec<String> {
    leaves(&serde_yaml_ng::to_value(Config::default()).unwrap())
}

#[test]
fn every_key_has_help_and_every_help_a_key() {
    let helped: Vec<&str> = HELP.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys_of_types(), helped, "in the same order, too");
    assert!(HELP.iter().all(|(_, help)| help.ends_with('.')));
}

#[test]
fn the_reference_lists_every_setting_with_its_default_and_help() {
    let documented = REFERENCE.lines().filter(|line| line.starts_with("| `"));
    let documented: BTreeSet<&str> = documented.collect();
    let rows = Config::default().explain();
    let expected = rows.iter().map(|row| {
        let default = Some(row.default.as_str()).filter(|text| !text.is_empty());
        let default = default.unwrap_or("\"\"");
        format!("| `{}` | `{default}` | {} |", row.key, row.help)
    });
    let expected: BTreeSet<String> = expected.collect();
    let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    let lacking: Vec<_> = expected.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&expected).collect();
    assert!(
        lacking.is_empty() && stale.is_empty(),
        "docs/reference/config.md lacks {lacking:#?}, and has without need {stale:#?}"
    );
}

#[test]
fn the_example_has_the_help_of_every_setting() {
    let comments = EXAMPLE
        .lines()
        .filter_map(|line| line.trim().strip_prefix('#'));
    let comments: Vec<&str> = comments.flat_map(str::split_whitespace).collect();
    let comments = comments.join(" ");
    for (key, help) in HELP {
        assert!(
            comments.contains(help),
            "deploy/config.yaml lacks {key}: {help}"
        );
    }
}

#[test]
fn every_key_is_read_and_named_as_given() {
    for row in Config::default().explain() {
        assert_eq!(row.source, Source::Default, "{}", row.key);
        let mut text = String::new();
        for (depth, part) in row.key.split('.').enumerate() {
            write!(text, "\n{}{part}:", "  ".repeat(depth)).unwrap();
        }
        writeln!(text, " {}", row.default).unwrap();
        let config = Config::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let given: BTreeSet<String> = config
            .explain()
            .into_iter()
            .filter(|row| row.source == Source::File)
            .map(|row| row.key)
            .collect();
        assert_eq!(given, BTreeSet::from([row.key]), "{text}");
    }
}

#[test]
fn a_key_that_is_not_known_is_refused_at_every_level() {
    let mut sections: BTreeSet<String> = BTreeSet::new();
    for key in keys_of_types() {
        sections.insert(key.rsplit_once('.').map_or("", |(s, _)| s).to_owned());
    }
    assert_eq!(sections.len(), 20);
    for section in sections {
        let parts = section.split('.').filter(|part| !part.is_empty());
        let path: Vec<&str> = parts.chain(["colour"]).collect();
        let mut text = String::new();
        for (depth, part) in path.iter().enumerate() {
            write!(text, "\n{}{part}:", "  ".repeat(depth)).unwrap();
        }
        text += " red\n";
        let path = path.join(".");
        let error = Config::parse(&text).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{path}: unknown field")),
            "{error}"
        );
        assert!(error.contains("expected"), "{error}");
    }
}
