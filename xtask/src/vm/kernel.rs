//! The kernels of the matrix, fetched once into the user's cache folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::module::{self, file_name};
use crate::console::note;
use crate::process;
use crate::setup::cache::Cache;
use crate::setup::mirror::Mirror;

/// A kernel of the matrix.
pub(super) struct Kernel {
    /// Our name for it, here and in the cache.
    pub(super) name: &'static str,
    /// Debian's suite that has it.
    suite: &'static str,
    /// Debian's package, or one that depends on the newest of a series.
    package: &'static str,
    /// True if it has TCX, which came with 6.6.
    pub(super) tcx: bool,
    /// Tests that run on it.
    pub(super) depth: Depth,
}

/// Tests that run on a kernel; each depth includes the tests of the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// The programs, by the kernel's test run.
    Programs,
    /// Attaching, and real packets: routing, masquerade, services.
    Packets,
    /// Displaced flows, the reaper, and tests that need a module that machines lack.
    Thorough,
}

/// The oldest supported kernel, Debian's long-term kernels, and its newest one. Packets flow on all
/// except the one of development machines, which the other suites cover.
pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "5.10",
        suite: "bullseye-security",
        package: "linux-image-cloud-amd64",
        tcx: false,
        depth: Depth::Thorough,
    },
    Kernel {
        name: "6.1",
        suite: "bookworm-security",
        package: "linux-image-cloud-amd64",
        tcx: false,
        depth: Depth::Packets,
    },
    Kernel {
        name: "6.12",
        suite: "bookworm-security",
        package: "linux-image-6.12-cloud-amd64",
        tcx: true,
        depth: Depth::Thorough,
    },
    // Its last version there: later ones have other packages, and this one stays.
    Kernel {
        name: "6.18",
        suite: "trixie-backports",
        package: "linux-image-6.18.15+deb13-cloud-amd64",
        tcx: true,
        depth: Depth::Programs,
    },
    Kernel {
        name: "newest",
        suite: "trixie-backports",
        package: "linux-image-cloud-amd64",
        tcx: true,
        depth: Depth::Thorough,
    },
];

/// Modules that tests need, without their dependencies.
const MODULES: &[&str] = &[
    "veth",
    "dummy",
    "sch_ingress",
    "cls_bpf",
    "cls_u32",
    "nf_tables",
    "nft_counter",
    "nft_objref",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_nat",
    "nft_chain_nat",
    "nft_ct",
    "nft_nat",
    "nft_masq",
    "nft_redir",
    "nft_fib",
    "nft_fib_inet",
    "sctp",
];
/// File of the cache with the names in [`MODULES`] when it was made.
const WANTED: &str = "wanted";

/// A kernel's files.
pub(super) struct Files {
    /// The kernel, ready to boot.
    pub(super) kernel: PathBuf,
    /// Its modules, not compressed; the order of their names is the load order.
    pub(super) modules: Vec<PathBuf>,
}

impl Kernel {
    /// The kernel's files, from the cache or from the mirror.
    pub(super) fn fetch(&self) -> Result<Files> {
        let cache = cache()?;
        let folder = cache.place(self.name);
        if let Some(files) = Files::find(&folder) {
            return Ok(files);
        }
        note(&format!(
            "setup: fetching kernel {} ({} of {}) into {}",
            self.name,
            self.package,
            self.suite,
            folder.display()
        ));
        cache.fill(self.name, |work| self.download(work))?;
        Files::find(&folder).context("the fetched kernel lacks a file")
    }

    fn download(&self, work: &Path) -> Result<()> {
        let (packages, root, result) = (work.join("deb"), work.join("root"), work.join("result"));
        for folder in [&packages, &root] {
            fs::create_dir_all(folder)?;
        }
        Mirror::open(self.suite, &work.join("apt"))?.download(self.package, &packages)?;
        for package in fs::read_dir(&packages)? {
            let package = package?.path();
            process::run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root))?;
        }
        let files = files_below(&root)?;
        let kernel = files
            .iter()
            .find(|file| file_name(file).starts_with("vmlinuz"))
            .context("the packages hold no kernel")?;
        fs::copy(kernel, result.join("vmlinuz"))?;
        let absent = module::collect(MODULES, &files, &result)?;
        if !absent.is_empty() {
            let absent = absent.join(", ");
            note(&format!(
                "setup: not modules of {} (built in, or not there): {absent}",
                self.name
            ));
        }
        fs::write(result.join(WANTED), MODULES.join("\n"))?;
        Ok(())
    }
}

impl Files {
    /// The files in a folder of the cache, if it matches our list of modules.
    fn find(folder: &Path) -> Option<Self> {
        let wanted = fs::read_to_string(folder.join(WANTED)).ok()?;
        if wanted != MODULES.join("\n") {
            return None;
        }
        let mut modules = files_below(folder).ok()?;
        modules.retain(|file| file.extension().is_some_and(|extension| extension == "ko"));
        modules.sort();
        let kernel = folder.join("vmlinuz");
        kernel.is_file().then_some(Self { kernel, modules })
    }
}

/// The cache of kernels.
pub(super) fn cache() -> Result<Cache> {
    Cache::open("kernels")
}

/// Every regular file below `root`; links are not followed.
fn files_below(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}
