//! Programs of Kubernetes, built once from Debian's source package into the user's cache folder: no
//! registry of packages has their binaries.

use std::env;
use std::fs::{self, File};
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
/// The name of the API server, and its and its store's binaries.
const API_SERVER: &str = "kube-apiserver";
const API_SERVER_BINARIES: [&str; 2] = ["etcd", "kube-apiserver"];
const KUBECTL: &str = "kubectl";
const KUBELET: &str = "kubelet";
const KUBE_PROXY: &str = "kube-proxy";
/// Names a folder that has some of them, as the tools of other projects put them.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Finds the programs, or builds them: the sources are fetched for the first, and unpacked once.
#[derive(Default)]
pub(crate) struct Kubernetes {
    /// One run builds at a time.
    lock: Option<File>,
    tree: Option<Tree>,
}

impl Kubernetes {
    /// The folder that has kube-apiserver and etcd: the one that `KUBEBUILDER_ASSETS` names, else the
    /// cache's, built where it is not there, which takes up to ten minutes.
    ///
    /// # Errors
    /// When the folder that is named lacks one of them.
    pub(crate) fn api_server(&mut self) -> Result<PathBuf> {
        if let Some(folder) = env::var_os(ASSETS) {
            let folder = PathBuf::from(folder);
            check_assets(&folder)?;
            return Ok(folder);
        }
        self.folder(API_SERVER, |tree, work| {
            fetch_store(work)?;
            openapi::generate(tree)?;
            tree.build(API_SERVER, work)
        })
    }

    /// kubectl's binary: the one beside what `KUBEBUILDER_ASSETS` names, else the cache's.
    pub(crate) fn kubectl(&mut self) -> Result<PathBuf> {
        let named = env::var_os(ASSETS).map(|folder| PathBuf::from(folder).join(KUBECTL));
        match named.filter(|binary| binary.is_file()) {
            Some(binary) => Ok(binary),
            None => self.program(KUBECTL),
        }
    }

    /// The kubelet's binary.
    pub(crate) fn kubelet(&mut self) -> Result<PathBuf> {
        self.program(KUBELET)
    }

    /// kube-proxy's binary.
    pub(crate) fn kube_proxy(&mut self) -> Result<PathBuf> {
        self.program(KUBE_PROXY)
    }

    /// A program that is built by itself, which takes a minute or two.
    fn program(&mut self, name: &str) -> Result<PathBuf> {
        let folder = self.folder(name, |tree, work| tree.build(name, work))?;
        Ok(folder.join(name))
    }

    /// The folder of the cache that has a program; `build` makes it in a work folder.
    fn folder(
        &mut self,
        name: &str,
        build: impl FnOnce(&Tree, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = Cache::open(name)?.place("bin");
        let is_there = || folder.join(name).is_file();
        if is_there() {
            return Ok(folder);
        }
        let sources = Cache::open(PACKAGE)?;
        if self.lock.is_none() {
            self.lock = Some(sources.lock()?);
        }
        // Another run may have built it meanwhile.
        if !is_there() {
            ensure(&[Need::Kubernetes])?;
            note(&format!(
                "setup: building {name} (source package {PACKAGE} of {SUITE}; some minutes) into {}",
                folder.display()
            ));
            let tree = match self.tree.take() {
                Some(tree) => tree,
                None => Tree::fetch(&sources.place("sources"))?,
            };
            let tree = self.tree.insert(tree);
            Cache::open(name)?
                .fill("bin", |work| build(tree, work))
                .with_context(|| format!("cannot build {name}"))?;
        }
        Ok(folder)
    }
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

/// Puts the API server's store into the folder `result` of a work folder.
fn fetch_store(work: &Path) -> Result<()> {
    let unpacked = fetch_packages(&["etcd-server"], work)?;
    fs::copy(unpacked.join("usr/bin/etcd"), work.join("result/etcd"))
        .context("Debian's etcd-server has no usr/bin/etcd")
        .map(drop)
}

/// Fetches and unpacks packages of Debian below a folder, and returns where.
fn fetch_packages(packages: &[&str], work: &Path) -> Result<PathBuf> {
    let debs = work.join("debs");
    let unpacked = debs.join("result");
    fs::create_dir_all(&unpacked)?;
    Mirror::open(SUITE, &work.join("apt"))?.download_packages(packages, &debs)?;
    unpacked::unpack(&debs)?;
    Ok(unpacked)
}

/// The unpacked sources in a work folder, for as long as something may be built of them.
pub(super) struct Tree {
    work: PathBuf,
    /// Where the sources are.
    pub(super) folder: PathBuf,
}

impl Tree {
    /// Fetches and unpacks them into a folder.
    fn fetch(work: &Path) -> Result<Self> {
        if work.exists() {
            // A run that was stopped left them.
            fs::remove_dir_all(work)?;
        }
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
        let tree = Self {
            work: work.to_owned(),
            folder,
        };
        openapi::renew_reflect(&tree, &fetch_packages(&[openapi::REFLECT_PACKAGE], work)?)?;
        Ok(tree)
    }

    /// The folder of the Go path that the sources are in.
    pub(super) fn source_root(&self) -> PathBuf {
        self.work.join("path/src")
    }

    /// Builds one of Kubernetes' own programs into the folder `result` of a work folder.
    fn build(&self, name: &str, work: &Path) -> Result<()> {
        self.go_build(&format!("./cmd/{name}"), &work.join("result").join(name))
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

impl Drop for Tree {
    fn drop(&mut self) {
        // The next one to fetch them removes them, if this does not.
        let _stays = fs::remove_dir_all(&self.work);
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
