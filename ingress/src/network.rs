//! The network whose IPAM plugin allocates addresses, read from the runtimes' folder as they read
//! it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use towpath_cni::request::config::{IPAM_PLUGIN, PLUGIN};
use towpath_cni::spec::SpecVersion;

/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// Endings of the files that runtimes read.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];

/// A network with a delegated IPAM plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// The plugin's name.
    pub plugin: String,
    /// The plugin's standard input.
    pub config: String,
}

/// The configuration that runtimes use gives a delegated plugin that cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Unusable {
    path: PathBuf,
    reason: String,
}

/// The network that runtimes use, if it is ours and delegates its addresses. They use the first
/// valid file by name, so the others are not read.
///
/// # Errors
/// If that file does not conform to the specification.
pub fn network(folder: &Path) -> Result<Option<Network>, Unusable> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let ending = path.extension();
            ending.is_some_and(|ending| ENDINGS.iter().any(|one| ending == *one))
        })
        .collect();
    paths.sort_unstable();
    let first = paths
        .into_iter()
        .find_map(|path| Some((read(&path)?, path)));
    let Some((list, path)) = first else {
        return Ok(None);
    };
    of_list(&list).map_err(|reason| Unusable { path, reason })
}

/// A file with plugins; what is none, runtimes pass over.
fn read(path: &Path) -> Option<Value> {
    let about = path.metadata().ok()?;
    // A pipe would never end.
    if !about.is_file() || about.len() > LONGEST {
        return None;
    }
    let list: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let has_plugins = list
        .get("plugins")
        .and_then(Value::as_array)
        .is_some_and(|plugins| !plugins.is_empty());
    (has_plugins || list.get("type").is_some()).then_some(list)
}

fn of_list(list: &Value) -> Result<Option<Network>, String> {
    let listed = list.get("plugins").and_then(Value::as_array);
    let plugins = listed.map_or(std::slice::from_ref(list), Vec::as_slice);
    let delegates = |plugin: &&Value| plugin.get("type").and_then(Value::as_str) == Some(PLUGIN);
    let Some(plugin) = plugins.iter().find(delegates) else {
        return Ok(None);
    };
    let kind = plugin.pointer("/ipam/type").and_then(Value::as_str);
    let Some(kind) = kind.filter(|kind| *kind != IPAM_PLUGIN) else {
        return Ok(None);
    };
    if kind.is_empty() || kind.contains('/') {
        return Err(format!(
            "ipam.type is {kind:?}; expected a plugin's name, without a folder"
        ));
    }
    let name = list.get("name").and_then(Value::as_str);
    let name = name.ok_or("name is missing; expected the network's name")?;
    let version = newest(list)?;
    let mut config = plugin.clone();
    if let Value::Object(config) = &mut config {
        config.insert("name".to_owned(), json!(name));
        config.insert("cniVersion".to_owned(), json!(version.name()));
    }
    Ok(Some(Network {
        name: name.to_owned(),
        plugin: kind.to_owned(),
        config: config.to_string(),
    }))
}

/// The newest version of a list (specification 1.1.0, section 1), which runtimes use.
fn newest(list: &Value) -> Result<SpecVersion, String> {
    let more = list.get("cniVersions").and_then(Value::as_array);
    let all = list
        .get("cniVersion")
        .into_iter()
        .chain(more.into_iter().flatten());
    let known = all.filter_map(|version| SpecVersion::of(&json!({"cniVersion": version})).ok());
    known.max().ok_or_else(|| {
        let names = SpecVersion::ALL.map(SpecVersion::name).join(", ");
        format!("cniVersion: no supported version; expected one of {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ipam: &Value) -> Value {
        json!({"cniVersion": "0.3.1", "cniVersions": ["1.0.0", "0.4.0"], "name": "pods", "plugins": [
            {"type": "towpath-cni", "ipam": ipam}, {"type": "portmap"}]})
    }

    fn found(files: &[(&str, String)]) -> Result<Option<Network>, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        network(folder.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_good_file_counts() {
        let ours = list(&json!({"type": "host-local", "subnet": "10.0.0.0/24"})).to_string();
        let other = json!({"cniVersion": "1.0.0", "name": "x", "type": "bridge"}).to_string();
        let network = found(&[
            ("00-broken.conflist", "{".to_owned()),
            ("05-empty.conflist", json!({"plugins": []}).to_string()),
            ("10-ours.conflist", ours.clone()),
            ("20-other.conf", other.clone()),
        ]);
        let network = network.unwrap().unwrap();
        assert_eq!(
            (network.name.as_str(), network.plugin.as_str()),
            ("pods", "host-local")
        );
        let config: Value = serde_json::from_str(&network.config).unwrap();
        let expected = json!({"cniVersion": "1.0.0", "name": "pods", "type": "towpath-cni",
            "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}});
        assert_eq!(config, expected);
        let behind = found(&[("00-other.conf", other), ("10-ours.conflist", ours)]);
        assert_eq!(behind, Ok(None));
    }

    #[test]
    fn without_delegation_there_is_no_network() {
        for ipam in [json!(null), json!({}), json!({"type": "towpath-ipam"})] {
            let text = list(&ipam).to_string();
            assert_eq!(found(&[("10-a.conflist", text)]), Ok(None), "{ipam}");
        }
        assert_eq!(found(&[]), Ok(None));
        assert!(network(Path::new("/nonexistent")).is_ok_and(|network| network.is_none()));
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        let mut unnamed = list(&json!({"type": "host-local"}));
        unnamed["name"] = json!(null);
        let mut version = list(&json!({"type": "host-local"}));
        version["cniVersion"] = json!("9.0.0");
        version["cniVersions"] = json!([]);
        for (list, message) in [
            (list(&json!({"type": "a/b"})), "ipam.type is \"a/b\""),
            (unnamed, "name is missing"),
            (
                version,
                "cniVersion: no supported version; expected one of 0.3.1",
            ),
        ] {
            let error = found(&[("10-a.conflist", list.to_string())]).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
