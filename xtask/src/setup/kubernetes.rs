//! Programs of Kubernetes, built once from Debian's source package into the user's cache folder: no
//! registry of packages has their binaries.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{Need, ensure, openapi, unpacked};
use crate::cache::Cache;
use crate::console::note;
use crate::mirror::Mirror;
use crate::process;

/// Debian's release whose source package is the whole tree, with all that it depends on; later ones
/// are stripped to kubectl.
const SUITE: &str = "bookworm";
/// The source package.
const PACKAGE: &str = "kubernetes";
/// What it is the source of; the tree itself says `v0.0.0-master`.
const VERSION: &str = "v1.20.2";
/// The folder of the tree in a Go path.
const TREE: &str = "src/k8s.io/kubernetes";
/// kube-proxy's binary, and the name of its cache.
const KUBE_PROXY: &str = "kube-proxy";
/// The name of the cache that has the API server and its store, and their binaries there.
const API_SERVER: &str = "kube-apiserver";
const API_SERVER_BINARIES: [&str; 2] = ["etcd", "kube-apiserver"];
/// Names a folder that has both, as the tools of other projects put them.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// kube-proxy's binary: from the cache, else built, which takes some minutes.
pub(crate) fn kube_proxy() -> Result<PathBuf> {
    let cache = Cache::open(KUBE_PROXY)?;
    let _lock = cache.lock()?;
    let binary = cache.place("bin").join(KUBE_PROXY);
    if !binary.is_file() {
        prepare(KUBE_PROXY, &binary)?;
        cache
            .fill("bin", |work| Tree::fetch(work)?.build(KUBE_PROXY))
            .with_context(|| format!("cannot build {KUBE_PROXY}"))?;
    }
    Ok(binary)
}

/// The folder that has kube-apiserver and etcd: the one that `KUBEBUILDER_ASSETS` names, else the
/// cache's, built where it is not there, which takes up to ten minutes.
///
/// # Errors
/// When the folder that is named lacks one of them.
pub(crate) fn api_server() -> Result<PathBuf> {
    if let Some(folder) = env::var_os(ASSETS) {
        let folder = PathBuf::from(folder);
        check_assets(&folder)?;
        return Ok(folder);
    }
    let cache = Cache::open(API_SERVER)?;
    let _lock = cache.lock()?;
    let folder = cache.place("bin");
    if !folder.join(API_SERVER).is_file() {
        prepare(API_SERVER, &folder)?;
        cache
            .fill("bin", build_api_server)
            .with_context(|| format!("cannot build {API_SERVER}"))?;
    }
    Ok(folder)
}

fn check_assets(folder: &Path) -> Result<()> {
    for name in API_SERVER_BINARIES {
        if !folder.join(name).is_file() {
            let folder = folder.display();
            bail!(
                "{ASSETS}: {folder} has no {name}; allowed: a folder with {}, or no such variable: \
                 then they are built",
                API_SERVER_BINARIES.join(" and ")
            );
        }
    }
    Ok(())
}

fn prepare(name: &str, place: &Path) -> Result<()> {
    ensure(&[Need::Kubernetes])?;
    note(&format!(
        "setup: building {name} (source package {PACKAGE} of {SUITE}; some minutes) into {}",
        place.display()
    ));
    Ok(())
}

/// Builds the server in a folder, and puts its store beside it.
fn build_api_server(work: &Path) -> Result<()> {
    let tree = Tree::fetch(work)?;
    let debs = work.join("debs");
    fs::create_dir_all(debs.join("result"))?;
    Mirror::open(SUITE, &work.join("apt"))?
        .download_packages(&["etcd-server", openapi::REFLECT_PACKAGE], &debs)?;
    unpacked::unpack(&debs)?;
    let unpacked = debs.join("result");
    fs::copy(unpacked.join("usr/bin/etcd"), work.join("result/etcd"))
        .context("Debian's etcd-server has no usr/bin/etcd")?;
    openapi::complete(&tree, &unpacked)?;
    tree.build(API_SERVER)
}

/// The unpacked sources in a work folder.
pub(super) struct Tree {
    work: PathBuf,
    /// Where the sources are.
    pub(super) folder: PathBuf,
}

impl Tree {
    /// Fetches and unpacks them.
    fn fetch(work: &Path) -> Result<Self> {
        let (packages, folder) = (work.join("packages"), work.join("path").join(TREE));
        for folder in [&packages, &folder] {
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
                .arg(&folder),
        )?;
        Ok(Self {
            work: work.to_owned(),
            folder,
        })
    }

    /// The folder of the Go path that the sources are in.
    pub(super) fn source_root(&self) -> PathBuf {
        self.work.join("path/src")
    }

    /// Builds one of Kubernetes' own programs into the folder `result`.
    fn build(&self, name: &str) -> Result<()> {
        self.go_build(
            &format!("./cmd/{name}"),
            &self.work.join("result").join(name),
        )
    }

    /// Builds any program of the tree.
    pub(super) fn go_build(&self, package: &str, binary: &Path) -> Result<()> {
        let of_version = |place: &str| {
            format!("-X k8s.io/kubernetes/vendor/k8s.io/{place}/version.gitVersion={VERSION}")
        };
        let (server, client) = (of_version("component-base"), of_version("client-go/pkg"));
        let mut build = Command::new("go");
        build
            .current_dir(&self.folder)
            // The tree says what it depends on in a form of its time, and has all of it.
            .env("GO111MODULE", "off")
            .env("GOFLAGS", "")
            .env("GOPATH", self.work.join("path"))
            .env("GOCACHE", self.work.join("cache"))
            .env("CGO_ENABLED", "0")
            .args([
                "build",
                "-ldflags",
                &format!("-s -w {server} {client}"),
                "-o",
            ])
            .arg(binary)
            .arg(package);
        process::run(&mut build)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::check_assets;

    #[test]
    fn a_folder_without_the_programs_is_refused_with_what_it_lacks() {
        let folder = env::temp_dir().join(format!("towpath-assets-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let refusal = || check_assets(&folder).unwrap_err().to_string();
        assert!(
            refusal().contains("has no etcd; allowed: "),
            "{}",
            refusal()
        );
        fs::write(folder.join("etcd"), "").unwrap();
        assert!(refusal().contains("has no kube-apiserver"), "{}", refusal());
        fs::write(folder.join("kube-apiserver"), "").unwrap();
        check_assets(&folder).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
