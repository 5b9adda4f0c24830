//! The network configuration that container runtimes use.
//!
//! Runtimes use the first valid file by name. A later or an invalid file has no effect.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;
use towpath_cni::request::config::{IPAM_PLUGIN, PLUGIN};

use super::{AWS, CALICO, CILIUM};

/// Name of our configuration list. Runtimes take the first by name.
pub(crate) const CONFLIST: &str = "10-towpath.conflist";
/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// Beginning of the types of Multus' plugins.
const MULTUS: &str = "multus";
/// CNIs by the types of their plugins. Auxiliary plugins, such as bridge or portmap, identify none.
const TYPES: [(&str, &str); 11] = [
    ("antrea", "Antrea"),
    ("aws-cni", AWS),
    ("azure-vnet", "Azure CNI"),
    ("calico", CALICO),
    ("cilium-cni", CILIUM),
    ("flannel", "Flannel"),
    ("kube-ovn", "Kube-OVN"),
    ("kube-router", "kube-router"),
    ("ovn-k8s-cni-overlay", "OVN-Kubernetes"),
    ("terway", "Terway"),
    ("weave-net", "Weave Net"),
];

/// A configuration of other CNIs that runtimes use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Used {
    /// Path of the file.
    pub(super) file: String,
    /// Names of the CNIs.
    pub(super) by: Vec<&'static str>,
}

/// Finds the configuration that runtimes use or will use, where it is another CNI's. A folder that
/// cannot be read shows none.
pub(super) fn used(folder: &Path) -> Option<Used> {
    let entries = fs::read_dir(folder).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| comes_first(name)).collect();
    names.sort_unstable();
    let first = names.iter().find_map(|name| {
        let path = folder.join(name);
        let configuration = read(&path)?;
        let plugins = plugins(&configuration);
        (!plugins.is_empty()).then(|| Used {
            file: path.display().to_string(),
            by: cnis(&plugins),
        })
    });
    first.filter(|used| !used.by.is_empty())
}

/// True for a name of a configuration that runtimes prefer to ours.
fn comes_first(name: &str) -> bool {
    let kind = Path::new(name).extension();
    let is_read =
        kind.is_some_and(|kind| ["conf", "conflist", "json"].iter().any(|one| kind == *one));
    is_read && name < CONFLIST
}

fn read(path: &Path) -> Option<Value> {
    // A pipe would never end.
    let is_file = fs::metadata(path).ok()?.is_file();
    let file = is_file.then(|| File::open(path).ok())??;
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The plugins of a configuration. A delegating plugin is replaced by its delegates. One without
/// any, as Multus may be, uses the next file by itself.
fn plugins(configuration: &Value) -> Vec<&Value> {
    let listed = configuration.get("plugins").and_then(Value::as_array);
    let alone = std::slice::from_ref(configuration);
    let entries = listed.map_or(alone, Vec::as_slice).iter();
    let plugins = entries.flat_map(|entry| {
        let delegates = entry.get("delegates").and_then(Value::as_array);
        match (delegates, kind(entry)) {
            (Some(delegates), _) => delegates.iter().flat_map(plugins).collect(),
            (None, Some(kind)) if !kind.starts_with(MULTUS) => vec![entry],
            (None, _) => Vec::new(),
        }
    });
    plugins.collect()
}

fn kind(plugin: &Value) -> Option<&str> {
    plugin.get("type").and_then(Value::as_str)
}

/// The CNIs of these plugins; none if ours is among them, because the others are chained to it.
fn cnis(plugins: &[&Value]) -> Vec<&'static str> {
    let is_ours = |plugin: &&&Value| {
        let ipam = plugin.pointer("/ipam/type").and_then(Value::as_str);
        kind(plugin) == Some(PLUGIN) || ipam == Some(IPAM_PLUGIN)
    };
    if plugins.iter().any(|plugin| is_ours(&plugin)) {
        return Vec::new();
    }
    let known = plugins.iter().filter_map(|plugin| {
        let kind = kind(plugin)?;
        let (_, name) = TYPES.iter().find(|(known, _)| *known == kind)?;
        Some(*name)
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and texts of the folder's files.
    type Files = &'static [(&'static str, &'static str)];

    const AWS_LIST: &str = r#"{"cniVersion": "1.0.0", "name": "aws-cni", "plugins": [
        {"type": "aws-cni"}, {"type": "egress-cni"}, {"type": "portmap"}]}"#;
    const CHAINED: &str =
        r#"{"name": "cilium", "plugins": [{"type": "aws-cni"}, {"type": "cilium-cni"}]}"#;
    const CHAINED_TO_OURS: &str =
        r#"{"name": "x", "plugins": [{"type": "towpath-cni"}, {"type": "cilium-cni"}]}"#;
    const BRIDGE: &str = r#"{"name": "x", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}"#;
    const MULTUS: &str = r#"{"name": "multus", "type": "multus-shim"}"#;
    const MULTUS_FLANNEL: &str = r#"{"type": "multus", "delegates": [
        {"name": "cbr0", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}]}"#;
    const MULTUS_OURS: &str = r#"{"type": "multus", "delegates": [{"type": "towpath-cni"}]}"#;

    /// Names of folders, their files, and the CNIs that they make a node use.
    const CASES: &[(&str, Files, &[&str])] = &[
        ("none", &[], &[]),
        ("the VPC CNI's", &[("10-aws.conflist", AWS_LIST)], &[AWS]),
        (
            "two of one chain",
            &[("05-cilium.conflist", CHAINED)],
            &[AWS, CILIUM],
        ),
        (
            "chained to ours",
            &[("05-x.conflist", CHAINED_TO_OURS)],
            &[],
        ),
        (
            "behind ours",
            &[("99-flannel.conflist", MULTUS_FLANNEL)],
            &[],
        ),
        (
            "of another suffix",
            &[("10-aws.conflist.cilium_bak", AWS_LIST)],
            &[],
        ),
        (
            "a single plugin",
            &[("10-calico.conf", r#"{"type": "calico"}"#)],
            &[CALICO],
        ),
        (
            "a file of JSON",
            &[("05-w.json", r#"{"type": "weave-net"}"#)],
            &["Weave Net"],
        ),
        (
            "of a node's own use",
            &[("00-bridge.conflist", BRIDGE)],
            &[],
        ),
        (
            "behind one that counts for none",
            &[
                ("00-bridge.conflist", BRIDGE),
                ("10-aws.conflist", AWS_LIST),
            ],
            &[],
        ),
        (
            "behind ours in a chain",
            &[
                ("00-x.conflist", CHAINED_TO_OURS),
                ("10-aws.conflist", AWS_LIST),
            ],
            &[],
        ),
        (
            "behind one that nothing can use",
            &[
                ("00-x.conflist", "{"),
                ("01-x.conf", "[]"),
                ("10-aws.conflist", AWS_LIST),
            ],
            &[AWS],
        ),
        (
            "behind Multus, which takes the next",
            &[("00-multus.conf", MULTUS), ("10-aws.conflist", AWS_LIST)],
            &[AWS],
        ),
        ("behind Multus alone", &[("00-multus.conf", MULTUS)], &[]),
        (
            "of Multus",
            &[("00-multus.conf", MULTUS_FLANNEL)],
            &["Flannel"],
        ),
        (
            "of Multus, ours",
            &[
                ("00-multus.conf", MULTUS_OURS),
                ("10-aws.conflist", AWS_LIST),
            ],
            &[],
        ),
    ];

    #[test]
    fn what_runtimes_use_counts_and_what_merely_lies_there_does_not() {
        for (name, files, expected) in CASES {
            let folder = tempfile::tempdir().unwrap();
            for (name, text) in *files {
                fs::write(folder.path().join(name), text).unwrap();
            }
            fs::create_dir(folder.path().join("00-folder.conf")).unwrap();
            let used = used(folder.path());
            let by = used.as_ref().map_or(&[][..], |used| &used.by);
            assert_eq!(by, *expected, "{name}: {used:?}");
        }
        assert_eq!(used(Path::new("/nonexistent")), None);
    }
}
