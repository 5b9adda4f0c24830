//! Programs of packages that would start a service if they were installed: fetched and unpacked into
//! the user's cache folder. Nothing of the machine changes.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result};

use crate::console::note;
use crate::process;

/// Debian's package of NetworkManager.
const PACKAGE: &str = "network-manager";
/// The program in it.
const PROGRAM: &str = "usr/sbin/NetworkManager";

/// Makes sure that the tests find NetworkManager: the machine's, or one that is unpacked.
pub(super) fn ensure_network_manager() -> Result<()> {
    let folder = cache_folder()?.join("unpacked").join(PACKAGE);
    if process::find("NetworkManager").is_some() || folder.join(PROGRAM).exists() {
        return Ok(());
    }
    note(&format!(
        "setup: unpacking {PACKAGE} into {}",
        folder.display()
    ));
    // Whole or not at all: what a stopped run left half full would be taken for good.
    let partial = folder.with_extension("partial");
    drop(fs::remove_dir_all(&partial));
    fs::create_dir_all(&partial)?;
    let mut download = Command::new("apt-get");
    download
        .current_dir(&partial)
        .args(["--quiet", "download", PACKAGE]);
    process::run(&mut download).with_context(|| {
        format!("cannot fetch {PACKAGE}: on Debian `apt-get update` may help; elsewhere, install NetworkManager")
    })?;
    let unpacked = partial.join("files");
    for file in fs::read_dir(&partial)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            process::run(Command::new("dpkg-deb").arg("-x").arg(path).arg(&unpacked))?;
        }
    }
    fs::rename(&unpacked, &folder)?;
    Ok(fs::remove_dir_all(&partial)?)
}

/// What we keep between runs.
fn cache_folder() -> Result<PathBuf> {
    let cache = match env::var_os("XDG_CACHE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("towpath"))
}
