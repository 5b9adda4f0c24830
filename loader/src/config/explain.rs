//! The configuration, key by key.
//!
//! Keys, values and defaults come from the types themselves; only the help is written down here,
//! and a test holds its keys against the types'.

use serde::Serialize;
use serde_yaml_ng::Value;

use super::Config;

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The key's path (`datapath.attach`).
    pub key: String,
    /// Its value now, as YAML.
    pub value: String,
    /// Its value when the file does not have it.
    pub default: String,
    /// Where the value comes from.
    pub source: Source,
    /// What it is for and what is allowed.
    pub help: &'static str,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The configuration file.
    File,
    /// The default.
    Default,
}

/// What each key is for, in the order of display.
pub(super) const HELP: [(&str, &str); 13] = [
    (
        "node.document",
        "File with the node's CiliumNode document, JSON or YAML; followed while the agent runs.",
    ),
    (
        "node.primary-device",
        "Device of the primary ENI where the document lists none with number 0 and no device has the node's InternalIP; null: none.",
    ),
    (
        "endpoint.mtu",
        "MTU of pod interfaces, 1280 to 9001; null: that of the endpoint's ENI.",
    ),
    (
        "datapath.attach",
        "How programs are attached: auto (TCX where the kernel has it), tcx, or clsact.",
    ),
    (
        "datapath.mark-mask",
        "Towpath's bits of the packet mark: contiguous, at least 6, clear of other users' bits.",
    ),
    (
        "datapath.pin-root",
        "Folder on a bpffs under which maps and links are pinned.",
    ),
    (
        "kernel.route-protocol",
        "Protocol of routes and rules: kernel (systemd-networkd leaves those alone), or 5 to 255.",
    ),
    (
        "services.cidrs",
        "CIDRs of services (ClusterIPs): pod packets to them take the host's stack.",
    ),
    (
        "services.addresses",
        "External and load balancer addresses of services, as the CIDRs.",
    ),
    (
        "host-addresses",
        "Addresses that the host answers for though no device has them (a node-local DNS by iptables).",
    ),
    (
        "state-dir",
        "Folder with the endpoint records; it must not outlive a reboot.",
    ),
    ("socket", "Unix socket of the agent."),
    (
        "log-level",
        "What is logged: error, warn, info, debug or trace.",
    ),
];

impl Config {
    /// Every key with its value, default, source and help.
    #[must_use]
    pub fn explain(&self) -> Vec<Row> {
        let values = tree(self);
        let defaults = tree(&Self::default());
        HELP.iter()
            .map(|(key, help)| Row {
                key: (*key).to_owned(),
                value: text(find(&values, key)),
                default: text(find(&defaults, key)),
                source: if self.given.contains(*key) {
                    Source::File
                } else {
                    Source::Default
                },
                help,
            })
            .collect()
    }
}

/// The configuration as a tree. It has string keys and plain values only, which always can be one.
fn tree(config: &Config) -> Value {
    serde_yaml_ng::to_value(config).unwrap_or_default()
}

fn find<'a>(tree: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(tree, |tree, part| tree.get(part))
}

/// A value in one line.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "null".to_owned(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(value)) => value.to_string(),
        Some(Value::String(value)) => value.clone(),
        Some(Value::Sequence(values)) => {
            let values: Vec<String> = values.iter().map(|v| text(Some(v))).collect();
            format!("[{}]", values.join(", "))
        }
        Some(Value::Mapping(map)) => {
            let pairs: Vec<String> = map
                .iter()
                .map(|(k, v)| format!("{}: {}", text(Some(k)), text(Some(v))))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Some(Value::Tagged(tagged)) => text(Some(&tagged.value)),
    }
}

/// The paths of all leaves below maps.
pub(super) fn leaves(tree: &Value) -> Vec<String> {
    fn walk(tree: &Value, path: &str, out: &mut Vec<String>) {
        match tree {
            Value::Mapping(map) => {
                for (key, value) in map {
                    let key = text(Some(key));
                    let path = if path.is_empty() {
                        key
                    } else {
                        format!("{path}.{key}")
                    };
                    walk(value, &path, out);
                }
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Sequence(_)
            | Value::Tagged(_) => out.push(path.to_owned()),
        }
    }
    let mut out = Vec::new();
    walk(tree, "", &mut out);
    out
}
