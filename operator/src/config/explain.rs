//! The settings key by key, from their types: names, values, defaults and help.

use document::settings::{Row, Settings, schema as schema_of};
use serde_json::Value;

use super::Config;

impl Config {
    /// All settings. `text` is the file that this configuration was read from.
    #[must_use]
    pub fn explain(&self, text: &str) -> Vec<Row> {
        let given = document::read(text).unwrap_or_default();
        Settings::of::<Self>().rows(self, &given)
    }
}

/// The JSON schema of the configuration file (draft 2020-12).
#[must_use]
pub fn schema() -> Value {
    schema_of::<Config>()
}

/// A configuration file with every setting at its default, each with its help.
#[must_use]
pub fn example() -> String {
    let head = "Settings of towpath-operator. Every value here is the default; only cluster-name \
                is required.";
    Settings::of::<Config>().example(head)
}
