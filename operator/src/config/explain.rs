//! The settings key by key, from their types: names, values, defaults and help.

use std::fmt::Write as _;

use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;
use serde_yaml_ng::Value as Yaml;

use super::Config;

/// The widest line of the commented file.
const WIDTH: usize = 100;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The path of its key (`ec2.reads.enis`).
    pub key: String,
    /// Its value, as YAML.
    pub value: String,
    /// Its default.
    pub default: String,
    /// The origin of the value.
    pub source: Source,
    /// Its help.
    pub help: String,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The configuration file.
    File,
    /// The default.
    Default,
}

/// A key of the schema: a setting, or a section of settings.
struct Key {
    path: Vec<String>,
    help: String,
    is_section: bool,
}

impl Config {
    /// All settings. `text` is the file that this configuration was read from.
    #[must_use]
    pub fn explain(&self, text: &str) -> Vec<Row> {
        let (now, default) = (tree(self), tree(&Self::default()));
        let given = document::read::<Value>(text).unwrap_or_default();
        let settings = keys().into_iter().filter(|key| !key.is_section);
        let row = |key: Key| {
            let source = match at(&given, &key.path) {
                Value::Null => Source::Default,
                _ => Source::File,
            };
            Row {
                value: yaml(at(&now, &key.path)),
                default: yaml(at(&default, &key.path)),
                key: key.path.join("."),
                source,
                help: key.help,
            }
        };
        settings.map(row).collect()
    }
}

/// The JSON schema of the configuration file (draft 2020-12).
#[must_use]
pub fn schema() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings
        .into_generator()
        .into_root_schema_for::<Config>()
        .to_value()
}

/// A configuration file with every setting at its default, each with its help.
#[must_use]
pub fn example() -> String {
    let default = tree(&Config::default());
    let mut text = String::from(
        "# Settings of towpath-operator. Every value here is the default; only cluster-name is \
         required.\n",
    );
    for Key {
        path,
        help,
        is_section,
    } in keys()
    {
        let indent = "  ".repeat(path.len().saturating_sub(1));
        if is_section {
            text.push('\n');
        }
        for line in wrapped(&help, WIDTH.saturating_sub(indent.len() + 2)) {
            writeln!(text, "{indent}# {line}").ok();
        }
        let name = path.last().map_or("", String::as_str);
        if is_section {
            writeln!(text, "{indent}{name}:").ok();
        } else {
            let value = yaml(at(&default, &path));
            writeln!(text, "{indent}{name}: {value}").ok();
        }
    }
    text
}

fn tree(config: &Config) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

fn at<'a>(tree: &'a Value, path: &[String]) -> &'a Value {
    let value = path.iter().try_fold(tree, |value, key| value.get(key));
    value.unwrap_or(&Value::Null)
}

/// A value on one line: YAML's form of a single value, JSON's of a map.
fn yaml(value: &Value) -> String {
    if value.is_object() || value.is_array() {
        return value.to_string();
    }
    let text = serde_yaml_ng::to_string(value).unwrap_or_default();
    text.trim_end().to_owned()
}

/// All keys, in the order of the types: the schema has their help, and YAML keeps their order.
fn keys() -> Vec<Key> {
    let mut keys = Vec::new();
    let order = serde_yaml_ng::to_value(Config::default()).unwrap_or_default();
    collect(&order, &schema(), &[], &mut keys);
    keys
}

fn collect(order: &Yaml, schema: &Value, above: &[String], keys: &mut Vec<Key>) {
    let names = order.as_mapping().into_iter().flatten();
    for (name, value) in names {
        let Some(name) = name.as_str() else { continue };
        let schema = &schema["properties"][name];
        let help = schema["description"].as_str().unwrap_or_default();
        let path: Vec<String> = above.iter().cloned().chain([name.to_owned()]).collect();
        let is_section = schema["properties"].is_object();
        keys.push(Key {
            path: path.clone(),
            help: help.replace('\n', " "),
            is_section,
        });
        if is_section {
            collect(value, schema, &path, keys);
        }
    }
}

/// The text in lines of at most `width` characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
