//! `build-cni`: the CNI plugin in its installed form, static and small.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::artifacts::{self, Metadata};
use crate::process;

/// The target whose C library is made for static programs.
const MUSL: &str = "x86_64-unknown-linux-musl";
/// The target that replaces it where it is not installed.
pub(crate) const GNU: &str = "x86_64-unknown-linux-gnu";
/// Makes the compiler link that target's C library statically.
const STATIC: &str = "-C target-feature=+crt-static";
/// Path that replaces the folder of the dependencies' sources in programs.
const SOURCES: &str = "/cargo";
/// Largest size: it is read from disk for every pod that starts.
const LARGEST: u64 = 3 * 1024 * 1024 / 2;

/// Builds the plugin and prints its path and size.
pub(crate) fn run() -> Result<()> {
    let path = build(&Metadata::read()?)?;
    println!("{} {} KiB", path.display(), size_of(&path)?.div_ceil(1024));
    Ok(())
}

/// Builds the plugin.
///
/// # Errors
/// When it exceeds the size limit.
pub(crate) fn build(metadata: &Metadata) -> Result<PathBuf> {
    let mut build = process::locked_cargo("build");
    build.args([
        "--package",
        "towpath-cni",
        "--profile",
        "plugin",
        "--target",
    ]);
    if is_installed(MUSL)? {
        build.arg(MUSL);
    } else {
        build.arg(GNU);
        build.env("RUSTFLAGS", static_flags()?);
    }
    let executables = artifacts::build(&mut build, metadata)?;
    let path = artifacts::binary(&executables, "towpath-cni")?;
    let size = size_of(path)?;
    ensure!(
        size <= LARGEST,
        "the plugin has {size} bytes, {LARGEST} are allowed"
    );
    Ok(path.to_owned())
}

/// Flags of the compiler that link the C library statically, and omit this machine's path of the
/// dependencies' sources.
///
/// Messages of panics contain that path, so that builds would differ between machines.
pub(crate) fn static_flags() -> Result<String> {
    let home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
    };
    let home = home.display();
    Ok(format!("{STATIC} --remap-path-prefix={home}={SOURCES}"))
}

fn size_of(path: &Path) -> Result<u64> {
    let metadata = fs::metadata(path).with_context(|| format!("look at {}", path.display()))?;
    Ok(metadata.len())
}

/// True if the compiler has a target's standard library.
fn is_installed(target: &str) -> Result<bool> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(datapath_build::workspace_root()).args([
        "--print",
        "target-libdir",
        "--target",
        target,
    ]);
    Ok(PathBuf::from(process::output(&mut rustc)?.trim()).is_dir())
}
