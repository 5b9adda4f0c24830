use super::*;

/// A configuration.
#[derive(Default, Serialize, JsonSchema)]
struct Config {
    /// Name of the node.
    name: String,
    /// Limits. See docs/guide/nat.md#limits.
    limits: Limits,
    /// Switch
    /// of everything (docs/guide/nat.md).
    switch: &'static str,
}

#[derive(Default, Serialize, JsonSchema)]
struct Limits {
    /// Most flows; 0: none.
    flows: u32,
    /// Names of pods.
    pods: Vec<String>,
}

fn config() -> Config {
    Config {
        limits: Limits {
            flows: 3,
            pods: vec!["a".to_owned(), "b".to_owned()],
        },
        switch: "off",
        ..Config::default()
    }
}

#[test]
fn rows_have_value_default_origin_and_help_in_the_order_of_the_types() {
    let given = crate::read("limits: {flows: 3}\nswitch:\n").unwrap();
    let rows = Settings::of::<Config>().rows(&config(), &given);
    let shown = rows.iter().map(|row| {
        let values = (row.value.as_str(), row.default.as_str());
        (row.key.as_str(), values, row.source)
    });
    let expected = [
        ("name", ("", ""), Source::Default),
        ("limits.flows", ("3", "0"), Source::File),
        ("limits.pods", ("[a, b]", "[]"), Source::Default),
        ("switch", ("off", ""), Source::File),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    let help = rows.last().map(|row| row.help.as_str());
    assert_eq!(help, Some("Switch of everything (docs/guide/nat.md)."));
}

#[test]
fn the_example_is_a_commented_file() {
    let mut settings = Settings::of::<Config>();
    settings.defaults = tree(&config());
    let expected = "\
# Settings.

# Name of the node.
name: \"\"

# Limits. See docs/guide/nat.md#limits.
limits:
  # Most flows; 0: none.
  flows: 3
  # Names of pods.
  pods: [a, b]

# Switch of everything (docs/guide/nat.md).
switch: \"off\"
";
    assert_eq!(settings.example("Settings."), expected);
}

#[test]
fn the_reference_has_a_chapter_for_each_section() {
    let expected = "
## limits

Limits. See [nat](../guide/nat.md#limits).

| setting | default | meaning |
|---|---|---|
| `limits.flows` | `0` | Most flows; 0: none. |
| `limits.pods` | `[]` | Names of pods. |

## Top level

| setting | default | meaning |
|---|---|---|
| `name` | `\"\"` | Name of the node. |
| `switch` | `\"\"` | Switch of everything ([nat](../guide/nat.md)). |
";
    assert_eq!(Settings::of::<Config>().reference(), expected);
}

#[test]
fn long_help_is_wrapped() {
    let words = "word ".repeat(52);
    let lines = text::wrapped(&words, 19);
    assert!(lines.iter().all(|line| line.len() == 19), "{lines:?}");
    assert_eq!(
        text::wrapped("a longer-than-that b", 5),
        ["a", "longer-than-that", "b"]
    );
}
