//! The settings of the types, the example, the schema and the reference.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Config, Source, example, reference, schema};

const REFERENCE: &str = include_str!("../../docs/reference/config.md");

const EXAMPLE: &str = include_str!("../../deploy/config.yaml");

fn keys() -> impl Iterator<Item = String> {
    Config::default().explain().into_iter().map(|row| row.key)
}

#[test]
fn every_setting_has_a_default_and_help() {
    for row in Config::default().explain() {
        let is_section = row.default.starts_with('{');
        assert!(!is_section, "{}: its type has no JsonSchema", row.key);
        assert!(row.help.ends_with('.'), "{}: {:?}", row.key, row.help);
    }
}

#[test]
fn the_reference_is_the_page_of_all_settings() {
    assert_eq!(
        REFERENCE,
        reference(),
        "docs/reference/config.md: write it by `towpath config reference`"
    );
}

#[test]
fn the_deployed_file_is_the_example_with_all_defaults() {
    assert_eq!(
        EXAMPLE,
        example(),
        "deploy/config.yaml: write it by `towpath config example`"
    );
    assert!(EXAMPLE.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn the_schema_has_bounds_words_and_no_other_keys() {
    let schema = schema();
    let section = |name: &str| &schema["properties"][name];
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(section("nat")["additionalProperties"], false);
    let flows = &section("nat")["properties"]["flows"]["properties"]["ipv4"];
    assert_eq!(
        (&flows["minimum"], &flows["maximum"]),
        (&64.into(), &4_194_304.into())
    );
    assert_eq!(flows["default"], 262_144);
    let release = section("ipam")["properties"]["release"].to_string();
    assert!(
        release.contains("\"off\"") && release.contains("\"on\""),
        "{release}"
    );
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
    for key in keys() {
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
