//! Programs of packages that would start a service if they were installed: fetched and unpacked into
//! the user's cache folder. Nothing of the machine changes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::console::note;
use crate::process;
use crate::setup::cache::Cache;
use crate::setup::mirror::Mirror;

/// Debian's package of NetworkManager.
const PACKAGE: &str = "network-manager";
/// The program in it.
const PROGRAM: &str = "usr/sbin/NetworkManager";

/// Makes sure that the tests find NetworkManager: the machine's, or one that is unpacked.
pub(super) fn ensure_network_manager() -> Result<()> {
    let cache = Cache::open("unpacked")?;
    let folder = cache.place(PACKAGE);
    if process::find("NetworkManager").is_some() || folder.join(PROGRAM).exists() {
        return Ok(());
    }
    note(&format!(
        "setup: unpacking {PACKAGE} into {}",
        folder.display()
    ));
    cache.fill(PACKAGE, |work| {
        let mut download = Command::new("apt-get");
        download
            .current_dir(work)
            .args(["--quiet", "download", PACKAGE]);
        process::run(&mut download).with_context(|| {
            format!(
                "cannot fetch {PACKAGE}: on Debian `apt-get update` may help; elsewhere, install \
                 NetworkManager"
            )
        })?;
        unpack(work)
    })
}

/// Fetches packages of one of Debian's releases and unpacks them into a folder of the cache.
pub(super) fn fetch(cache: &Cache, name: &str, suite: &str, packages: &[&str]) -> Result<()> {
    let fetched = cache.fill(name, |work| download(suite, packages, work));
    fetched.with_context(|| format!("cannot fetch {} of Debian's {suite}", packages.join(" ")))
}

/// Fetches packages of one of Debian's releases into a folder, and unpacks them into `result` there.
pub(super) fn download(suite: &str, packages: &[&str], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder.join("result"))?;
    Mirror::open(suite, &folder.join("apt"))?.download_packages(packages, folder)?;
    unpack(folder)
}

/// Unpacks the packages that lie in a folder into `result` there.
fn unpack(work: &Path) -> Result<()> {
    for file in fs::read_dir(work)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            let result = work.join("result");
            process::run(Command::new("dpkg-deb").arg("-x").arg(path).arg(result))?;
        }
    }
    Ok(())
}
