//! cnitool, the CNI project's own runtime for tests: built from Debian's source package, for no package
//! has its binary.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::mirror::Mirror;
use crate::process;

/// The last release of Debian whose source package its compiler of Go can build without others (1.1.2).
const SUITE: &str = "bookworm";
/// The source package, by its project's first name.
const PACKAGE: &str = "golang-github-appc-cni";
/// The import path of the project, and of the program in it.
const TREE: &str = "github.com/containernetworking/cni";
/// The program.
pub(super) const NAME: &str = "cnitool";

/// Builds it in a folder, into `result` there.
pub(super) fn build(work: &Path) -> Result<()> {
    let (packages, path) = (work.join("packages"), work.join("path"));
    let tree = path.join("src").join(TREE);
    for folder in [&packages, &tree] {
        fs::create_dir_all(folder)?;
    }
    Mirror::open(SUITE, &work.join("apt"))?.download_source(PACKAGE, &packages)?;
    let archive = fs::read_dir(&packages)?
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|file| file.to_string_lossy().ends_with(".orig.tar.xz"))
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
        // It needs nothing beside itself, and is not to look for anything.
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("GOPATH", &path)
        .env("GOCACHE", work.join("cache"))
        .env("CGO_ENABLED", "0")
        .args(["build", "-ldflags", "-s -w", "-o"])
        .arg(work.join("result").join(NAME))
        .arg(format!("{TREE}/{NAME}"));
    process::run(&mut build)
}
