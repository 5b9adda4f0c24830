//! Programs that tests run and that are not shipped. Kubernetes' components, `CoreDNS` and cnitool
//! are built from `xtask/components` by their Go modules, etcd and kubectl are Debian's. Each is
//! made once, into the user's cache folder.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use datapath_build::workspace_root;

use super::go::{Go, Source};
use super::{Need, ensure, unpacked};
use crate::console::note;
use crate::setup::cache::Cache;

/// Names the folder of all components to test programs.
pub(crate) const COMPONENTS: &str = "TOWPATH_COMPONENTS";
/// Names a folder with programs that replace ours, as setup-envtest of controller-runtime fills it.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// The programs that such a folder must have; kubectl is taken from it if it is there.
const ASSET_PROGRAMS: [&str; 2] = ["etcd", "kube-apiserver"];
/// Debian's release of etcd and kubectl.
const SUITE: &str = "forky";
/// File with the sources' text at the time of the build.
const SOURCES: &str = "sources";
/// The components of the program `kube`.
const KUBERNETES: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
];

/// Programs that are built or fetched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    /// Control plane and node components of Kubernetes, as one program.
    Kubernetes,
    /// The cluster's DNS server.
    CoreDns,
    /// The CNI project's own runtime for tests.
    Cnitool,
    /// The API server's store, and its command line.
    Debian,
}

/// The folder of all components, after those named are in it, each in a folder of its own.
///
/// # Errors
/// When one cannot be built or fetched; when `KUBEBUILDER_ASSETS` names a folder that lacks a program.
pub(crate) fn components(wanted: &[Component]) -> Result<PathBuf> {
    if let Some(folder) = env::var_os(ASSETS) {
        check_assets(Path::new(&folder))?;
    }
    let cache = Cache::open("components")?;
    let _lock = cache.lock()?;
    for component in wanted {
        let (name, sources) = (component.name(), component.sources()?);
        let stamp = cache.place(name).join(SOURCES);
        if fs::read_to_string(stamp).is_ok_and(|built| built == sources) {
            continue;
        }
        let made = cache.fill(name, |work| {
            component.make(work)?;
            Ok(fs::write(work.join("result").join(SOURCES), &sources)?)
        });
        made.with_context(|| format!("cannot make {}", cache.place(name).display()))?;
    }
    Ok(cache.place(""))
}

impl Component {
    /// Name of its folder.
    fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::CoreDns => "coredns",
            Self::Cnitool => "cnitool",
            Self::Debian => "debian",
        }
    }

    /// The text that a build depends on: a changed text needs a new build.
    fn sources(self) -> Result<String> {
        let files: &[&str] = match self {
            Self::Kubernetes => &["go.mod", "kube/main.go"],
            Self::CoreDns => &["go.mod", "coredns/main.go"],
            Self::Cnitool => &["go.mod"],
            Self::Debian => return Ok(SUITE.to_owned()),
        };
        files.iter().map(|file| read(file)).collect()
    }

    /// Makes the component in a work folder's `result`.
    fn make(self, work: &Path) -> Result<()> {
        let result = work.join("result");
        match self {
            Self::Kubernetes => {
                let version = version_of("k8s.io/kubernetes")?;
                let variables = ["component-base/version", "client-go/pkg/version"]
                    .map(|package| format!("k8s.io/{package}.gitVersion"));
                let variables = variables.each_ref().map(|name| (name.as_str(), &*version));
                let title = format!("Kubernetes {version}");
                build(&title, "./kube", &variables, &result.join("kube"))?;
                for name in KUBERNETES {
                    symlink("kube", result.join(name))?;
                }
                Ok(())
            }
            Self::CoreDns => build("CoreDNS", "./coredns", &[], &result.join("coredns")),
            Self::Cnitool => {
                let package = "github.com/containernetworking/cni/cnitool";
                build("cnitool", package, &[], &result.join("cnitool"))
            }
            Self::Debian => fetch(work),
        }
    }
}

/// Builds a package of the module, and shows the progress.
fn build(title: &str, package: &str, variables: &[(&str, &str)], program: &Path) -> Result<()> {
    let (go, started) = (Go::ensure()?, Instant::now());
    note(&format!(
        "setup: building {title} into {}",
        program.display()
    ));
    let total = go.count(&module(), &[package])?;
    let mut progress = Progress::of(total);
    let source = Source {
        module: &module(),
        package,
        variables,
    };
    go.build(&source, program, || {
        if let Some(percent) = progress.step() {
            note(&format!(
                "setup: building {title}: {percent} % of {total} packages"
            ));
        }
    })?;
    let seconds = started.elapsed().as_secs();
    note(&format!("setup: built {title} in {seconds} seconds"));
    Ok(())
}

/// Fetches Debian's etcd and kubectl.
fn fetch(work: &Path) -> Result<()> {
    ensure(&[Need::Unpack])?;
    note(&format!(
        "setup: unpacking etcd and kubectl of Debian's {SUITE}"
    ));
    let debs = work.join("debs");
    unpacked::download(SUITE, &["etcd-server", "kubectl"], &debs)?;
    for name in ["etcd", "kubectl"] {
        let program = debs.join("result/usr/bin").join(name);
        fs::copy(&program, work.join("result").join(name))
            .with_context(|| format!("no {}", program.display()))?;
    }
    Ok(())
}

fn check_assets(folder: &Path) -> Result<()> {
    for name in ASSET_PROGRAMS {
        if !folder.join(name).is_file() {
            bail!(
                "{ASSETS}: {} has no {name}: expected a folder with {}; unset it to use those that \
                 are built here",
                folder.display(),
                ASSET_PROGRAMS.join(" and ")
            );
        }
    }
    Ok(())
}

/// The folder of the Go module.
fn module() -> PathBuf {
    workspace_root().join("xtask/components")
}

fn read(file: &str) -> Result<String> {
    let path = module().join(file);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The version of a module that ours requires.
fn version_of(path: &str) -> Result<String> {
    let text = read("go.mod")?;
    let mut lines = text.lines().map(str::split_whitespace);
    let found = lines.find_map(|mut words| {
        let is_it = words.next() == Some(path);
        words.next().filter(|word| is_it && word.starts_with('v'))
    });
    found
        .map(str::to_owned)
        .with_context(|| format!("go.mod requires no {path}"))
}

/// Progress in tenths.
struct Progress {
    total: usize,
    done: usize,
}

impl Progress {
    fn of(total: usize) -> Self {
        Self { total, done: 0 }
    }

    /// Counts one more step, and returns the percentage when a tenth is complete.
    fn step(&mut self) -> Option<usize> {
        let tenth = |done: usize| (done * 10).checked_div(self.total);
        let before = tenth(self.done);
        let now = tenth(self.done + 1);
        self.done += 1;
        now.filter(|_| now != before).map(|tenths| tenths * 10)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::{Component, Progress, check_assets, version_of};

    #[test]
    fn an_assets_folder_without_the_programs_is_refused_by_name() {
        let folder = env::temp_dir().join(format!("towpath-assets-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let refusal = || check_assets(&folder).unwrap_err().to_string();
        assert!(refusal().contains("has no etcd: expected"), "{}", refusal());
        fs::write(folder.join("etcd"), "").unwrap();
        assert!(refusal().contains("has no kube-apiserver"), "{}", refusal());
        fs::write(folder.join("kube-apiserver"), "").unwrap();
        check_assets(&folder).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn every_module_of_kubernetes_has_its_version() {
        let version = version_of("k8s.io/kubernetes").unwrap();
        let minor = version.strip_prefix("v1.").unwrap();
        let text = Component::Kubernetes.sources().unwrap();
        let (_, replaced) = text.split_once("replace (").unwrap();
        let (replaced, _) = replaced.split_once(')').unwrap();
        let lines: Vec<_> = replaced.trim().lines().collect();
        assert!(lines.len() > 30, "{}", lines.len());
        for line in lines {
            assert!(line.ends_with(&format!(" v0.{minor}")), "{line}");
        }
    }

    #[test]
    fn progress_is_shown_by_tenths() {
        let mut progress = Progress::of(25);
        let shown: Vec<_> = (0..25).filter_map(|_| progress.step()).collect();
        assert_eq!(shown, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        assert_eq!(Progress::of(0).step(), None);
    }
}
