//! The configuration list that is installed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use towpath_cni::request::config::{PLUGIN, SOCKET, STATE_DIR};
use towpath_cni::spec::SpecVersion;

/// The reference plugin that does `hostPort`.
pub(super) const PORTMAP: &str = "portmap";
/// Version that all runtimes of the last years and Debian's plugins support.
const COMMON: SpecVersion = SpecVersion::V1_0_0;

/// The desired list, without the entries of other programs.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) text: Vec<u8>,
    /// True for a list that the operator provides, with all of its entries.
    pub(super) is_given: bool,
}

/// A user's own list, unchanged, after a check that it works: the agent has to read deletes in the
/// plugin's state folder.
pub(super) fn given(path: &Path, state_dir: &Path) -> Result<Vec<u8>> {
    let read = || -> Result<_> {
        let text = std::fs::read(path)?;
        let config = towpath_cni::conflist::check(&text)?;
        ensure!(
            config.state_dir == state_dir,
            "our plugin's state-dir is {}; allowed: {}, by cni.pending-deletes of the agent's \
             configuration",
            config.state_dir.display(),
            state_dir.display()
        );
        Ok(text)
    };
    read().with_context(|| format!("the configuration list {} cannot be used", path.display()))
}

/// A list for the installed plugins: ours, and `portmap` after it if it is installed. Newer
/// runtimes find all versions that both support, and choose.
pub(super) fn made(
    bin_dir: &Path,
    socket: &Path,
    state_dir: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<u8>> {
    let mut ours = json!({"type": PLUGIN});
    if socket != Path::new(SOCKET) {
        ours["socket"] = json!(socket);
    }
    if state_dir != Path::new(STATE_DIR) {
        ours["state-dir"] = json!(state_dir);
    }
    let mut plugins = vec![ours];
    let mut versions: Vec<_> = SpecVersion::ALL.map(SpecVersion::name).to_vec();
    match versions_of(&bin_dir.join(PORTMAP)) {
        Some(spoken) if spoken.contains(COMMON.name()) => {
            versions.retain(|version| spoken.contains(*version));
            plugins.push(portmap());
        }
        Some(_) => notes.push(format!(
            "{PORTMAP} in {} is too old and left out: hostPort will not work",
            bin_dir.display()
        )),
        None => notes.push(format!(
            "there is no {PORTMAP} in {}: hostPort will not work",
            bin_dir.display()
        )),
    }
    let list = json!({
        "cniVersion": COMMON.name(),
        "cniVersions": versions,
        "name": "towpath",
        "plugins": plugins,
    });
    let mut text = serde_json::to_vec_pretty(&list).context("write JSON")?;
    text.push(b'\n');
    towpath_cni::conflist::check(&text).context("the generated configuration list")?;
    Ok(text)
}

/// The entry for `portmap` of a list that is made.
pub(super) fn portmap() -> Value {
    json!({"type": PORTMAP, "capabilities": {"portMappings": true}, "snat": true})
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    supported_versions: BTreeSet<String>,
}

/// The versions that a plugin says it speaks; `None` where it is not there or says nothing.
fn versions_of(plugin: &Path) -> Option<BTreeSet<String>> {
    let output = Command::new(plugin)
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let versions: Versions = serde_json::from_slice(&output.stdout).ok()?;
    Some(versions.supported_versions)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn made_with(portmap: Option<&str>, socket: &str) -> (Value, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        if let Some(versions) = portmap {
            let path = folder.path().join(PORTMAP);
            let script = format!("#!/bin/sh\necho '{{\"supportedVersions\": {versions}}}'\n");
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut notes = Vec::new();
        let state_dir = Path::new(STATE_DIR);
        let text = made(folder.path(), Path::new(socket), state_dir, &mut notes).unwrap();
        (serde_json::from_slice(&text).unwrap(), notes)
    }

    #[test]
    fn a_plugin_that_is_missing_or_too_old_is_left_out_and_told() {
        for portmap in [None, Some(r#"["0.3.1", "0.4.0"]"#)] {
            let (list, notes) = made_with(portmap, SOCKET);
            assert_eq!(list["plugins"], json!([{"type": "towpath-cni"}]));
            assert_eq!(
                list["cniVersions"],
                json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
            );
            assert!(notes[0].contains("hostPort will not work"), "{notes:?}");
        }
    }

    #[test]
    fn versions_are_those_that_all_plugins_speak() {
        let (list, notes) = made_with(
            Some(r#"["0.1.0", "0.4.0", "1.0.0", "1.2.0"]"#),
            "/other.sock",
        );
        assert_eq!(list["cniVersion"], "1.0.0");
        assert_eq!(list["cniVersions"], json!(["0.4.0", "1.0.0"]));
        assert_eq!(list["plugins"][0]["socket"], "/other.sock");
        assert_eq!(list["plugins"][1], portmap());
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn an_own_list_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own");
        let error = given(&path, Path::new(STATE_DIR)).unwrap_err();
        assert!(format!("{error:#}").contains("cannot be used"), "{error:#}");
        let list = br#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge"}]}"#;
        fs::write(&path, list).unwrap();
        let error = format!("{:#}", given(&path, Path::new(STATE_DIR)).unwrap_err());
        assert!(error.contains("none has the type towpath-cni"), "{error}");
    }
}
