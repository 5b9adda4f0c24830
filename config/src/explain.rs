//! The settings key by key, from their types: names, values, defaults and help.

use document::settings::{Row, Settings, schema as schema_of};
use serde_json::Value;

use super::Config;

/// The beginning of the page of all settings.
const REFERENCE_HEAD: &str = "\
# Settings

Settings of the agent, in `/etc/towpath/config.yaml` or in the file that `--config` names. In a
cluster the ConfigMap has them. A change takes a restart of the agent, which costs no packet.
[deploy/config.yaml](../../deploy/config.yaml) is a file with every default.

`towpath config show` lists the values in force. `towpath config check FILE` checks a file. Unknown
keys and wrong values are refused, with the key and what is allowed. `towpath config schema` writes
the JSON schema of such files, for editors that check them. The operator's settings are in
[deploy/operator.yaml](../../deploy/operator.yaml).

This page is the output of `towpath config reference`.
";

impl Config {
    /// Every setting with its value, default, source and help.
    #[must_use]
    pub fn explain(&self) -> Vec<Row> {
        Settings::of::<Self>().rows(self, &self.given)
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
    let head = "Settings of the node agent, each with its default. Keep only those that you change.
`towpath config show` lists them with their values, `towpath config check FILE` checks a file.";
    Settings::of::<Config>().example(head)
}

/// A Markdown page with every setting, its default and its help.
#[must_use]
pub fn reference() -> String {
    REFERENCE_HEAD.to_owned() + &Settings::of::<Config>().reference()
}
