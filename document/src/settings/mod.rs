//! Settings of a configuration, from its types: keys, help, JSON schema, an example and a page.
//!
//! The documentation comments of the types' fields are the help.

mod example;
mod reference;
mod text;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value as Json;
use serde_yaml_ng::Value;

/// The settings of a type, in the order of its fields.
#[derive(Clone, Debug)]
pub struct Settings {
    keys: Vec<Key>,
    defaults: Value,
}

/// A key of a configuration: a setting, or a section of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    /// The names of the sections that the key is in, and its own.
    path: Vec<String>,
    /// The help, on one line.
    help: String,
    is_section: bool,
}

/// A setting as commands show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The key's path (`datapath.attach`).
    pub key: String,
    /// The value in force, on one line.
    pub value: String,
    /// The default, on one line.
    pub default: String,
    /// The origin of the value.
    pub source: Source,
    /// The purpose and the allowed values.
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

impl Key {
    /// The path with dots (`datapath.attach`).
    fn name(&self) -> String {
        self.path.join(".")
    }

    /// Number of sections that the key is in.
    fn depth(&self) -> usize {
        self.path.len().saturating_sub(1)
    }

    /// The key's value in a configuration that has it.
    fn find<'a>(&self, configuration: &'a Value) -> Option<&'a Value> {
        let mut names = self.path.iter();
        names.try_fold(configuration, |value, name| value.get(name))
    }
}

impl Settings {
    /// The settings of a type.
    #[must_use]
    pub fn of<T: Default + JsonSchema + Serialize>() -> Self {
        let defaults = tree(&T::default());
        let mut keys = Vec::new();
        collect(&defaults, &schema::<T>(), &[], &mut keys);
        Self { keys, defaults }
    }

    /// All settings with the values of a configuration of the type. `given` is the document that
    /// the configuration was read from.
    #[must_use]
    pub fn rows<T: Serialize>(&self, configuration: &T, given: &Value) -> Vec<Row> {
        let values = tree(configuration);
        let settings = self.keys.iter().filter(|key| !key.is_section);
        let row = |key: &Key| Row {
            value: key.find(&values).map(text::plain).unwrap_or_default(),
            default: self.default(key).map(text::plain).unwrap_or_default(),
            source: match key.find(given) {
                Some(_) => Source::File,
                None => Source::Default,
            },
            key: key.name(),
            help: key.help.clone(),
        };
        settings.map(row).collect()
    }

    fn default(&self, key: &Key) -> Option<&Value> {
        key.find(&self.defaults)
    }
}

/// The JSON schema of a configuration (draft 2020-12).
#[must_use]
pub fn schema<T: JsonSchema>() -> Json {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let generator = settings.into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// A configuration as a tree. It has keys and plain values only, so it always is one.
fn tree<T: Serialize>(configuration: &T) -> Value {
    serde_yaml_ng::to_value(configuration).unwrap_or_default()
}

/// Appends the keys of a section in the order of its values. The schema has no order.
fn collect(values: &Value, schema: &Json, above: &[String], keys: &mut Vec<Key>) {
    let pairs = values.as_mapping().into_iter().flatten();
    for (name, value) in pairs {
        let Some(name) = name.as_str() else { continue };
        let schema = &schema["properties"][name];
        let help = schema["description"].as_str().unwrap_or_default();
        let help: Vec<&str> = help.split_whitespace().collect();
        let path: Vec<String> = above.iter().cloned().chain([name.to_owned()]).collect();
        let is_section = schema["properties"].is_object();
        keys.push(Key {
            path: path.clone(),
            help: help.join(" "),
            is_section,
        });
        if is_section {
            collect(value, schema, &path, keys);
        }
    }
}

#[cfg(test)]
mod tests;
