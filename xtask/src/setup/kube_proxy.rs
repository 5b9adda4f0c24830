//! kube-proxy, built once from Debian's source package of Kubernetes into the user's cache folder: no
//! registry of packages has its binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Need, ensure};
use crate::cache::Cache;
use crate::console::note;
use crate::mirror::Mirror;
use crate::process;

/// Debian's release whose source package is the whole tree, with all that it depends on (1.20.2);
/// later ones are stripped to kubectl.
const SUITE: &str = "bookworm";
/// The source package.
const PACKAGE: &str = "kubernetes";
/// The folder of the tree in a Go path.
const TREE: &str = "src/k8s.io/kubernetes";
/// The binary, and its name in the cache.
const NAME: &str = "kube-proxy";

/// kube-proxy's binary: from the cache, else built, which takes some minutes.
pub(crate) fn kube_proxy() -> Result<PathBuf> {
    let cache = Cache::open(NAME)?;
    let _lock = cache.lock()?;
    let binary = cache.place("bin").join(NAME);
    if binary.is_file() {
        return Ok(binary);
    }
    ensure(&[Need::KubeProxy])?;
    note(&format!(
        "setup: building {NAME} (source package {PACKAGE} of {SUITE}; some minutes) into {}",
        binary.display()
    ));
    cache
        .fill("bin", build)
        .with_context(|| format!("cannot build {NAME}"))?;
    Ok(binary)
}

/// Builds it in a folder, into `result` there.
fn build(work: &Path) -> Result<()> {
    let (packages, path) = (work.join("packages"), work.join("path"));
    let tree = path.join(TREE);
    for folder in [&packages, &tree] {
        fs::create_dir_all(folder)?;
    }
    Mirror::open(SUITE, &work.join("apt"))?.download_source(PACKAGE, &packages)?;
    let archive = fs::read_dir(&packages)?
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|file| file.to_string_lossy().ends_with(".orig.tar.gz"))
        .context("the source package has no archive")?;
    let mut unpack = Command::new("tar");
    unpack.arg("--extract").arg("--file").arg(archive);
    process::run(
        unpack
            .arg("--strip-components=1")
            .arg("--directory")
            .arg(&tree),
    )?;
    let mut build = Command::new("go");
    build
        .current_dir(&tree)
        // The tree says what it depends on in a form of its time, and has all of it.
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("GOPATH", &path)
        .env("GOCACHE", work.join("cache"))
        .env("CGO_ENABLED", "0")
        .args(["build", "-ldflags", "-s -w", "-o"])
        .arg(work.join("result").join(NAME))
        .arg("./cmd/kube-proxy");
    process::run(&mut build)
}
