//! The eBPF compiler of a rustup machine, the eBPF linker, and cargo's components.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use datapath_build::Toolchain;

use crate::console::note;
use crate::process;

/// Version of bpf-linker that the programs are built with.
const LINKER_VERSION: &str = "0.13.0";
/// Debian's LLVM, the one that its `rustc-web` is built with.
const DEBIAN_LLVM: &str = "/usr/lib/llvm-22";

/// True if a rustup toolchain is selected, or if the default one is complete.
pub(super) fn rustup_is_ready() -> bool {
    match Toolchain::detect() {
        Toolchain::Debian => false,
        Toolchain::Rustup(name) => {
            env::var_os("EBPF_TOOLCHAIN").is_some() || has_library_source(&name)
        }
    }
}

/// Where a rustup toolchain builds the programs, makes sure of it and its `rust-src`.
pub(super) fn ensure_compiler() -> Result<()> {
    let Toolchain::Rustup(name) = Toolchain::detect() else {
        return Ok(());
    };
    if has_library_source(&name) {
        return Ok(());
    }
    note(&format!("setup: installing rustup's {name} with rust-src"));
    let install = ["toolchain", "install", &name, "--profile", "minimal"];
    process::run(Command::new("rustup").args(install).args([
        "--component",
        "rust-src",
        "--component",
        "clippy",
    ]))
    .context("the eBPF programs need a nightly compiler with rust-src (https://rustup.rs)")
}

/// True if a rustup toolchain can build `core`.
fn has_library_source(name: &str) -> bool {
    Command::new("rustup")
        .args(["run", name, "rustc", "--print", "sysroot"])
        .output()
        .is_ok_and(|output| {
            let sysroot = String::from_utf8_lossy(&output.stdout);
            output.status.success()
                && Path::new(sysroot.trim())
                    .join("lib/rustlib/src/rust/library")
                    .is_dir()
        })
}

/// Makes sure of bpf-linker in the right version.
pub(super) fn ensure_linker() -> Result<()> {
    if linker_version().as_deref() == Some(LINKER_VERSION) {
        return Ok(());
    }
    note(&format!(
        "setup: building bpf-linker {LINKER_VERSION} (under two minutes)"
    ));
    let mut install = process::cargo("install");
    // Outside of the workspace: its settings are not for this build.
    install.current_dir("/").args([
        "bpf-linker",
        "--version",
        LINKER_VERSION,
        "--locked",
        "--force",
    ]);
    if Toolchain::detect() == Toolchain::Debian {
        // A debug build links our programs as fast, and is there in a third of the time.
        install.env("LLVM_PREFIX", DEBIAN_LLVM).args([
            "--debug",
            "--no-default-features",
            "--features",
            "llvm-22",
        ]);
    }
    process::run(&mut install).context("cannot install bpf-linker")?;
    if process::find("bpf-linker").is_none() {
        bail!(
            "bpf-linker is installed in {}, which is not in PATH: add it",
            cargo_home().join("bin").display()
        );
    }
    Ok(())
}

/// Makes sure of a component of the compiler for the host.
pub(super) fn ensure_component(name: &str) -> Result<()> {
    let subcommand = if name == "rustfmt" { "fmt" } else { name };
    if process::succeeds(process::cargo(subcommand).arg("--version")) {
        return Ok(());
    }
    note(&format!("setup: adding rustup's component {name}"));
    process::run(Command::new("rustup").args(["component", "add", name]))
        .with_context(|| format!("`cargo {subcommand}` is missing, and rustup cannot add {name}"))
}

/// Version of the bpf-linker that a build would use.
fn linker_version() -> Option<String> {
    let linker = process::find("bpf-linker")?;
    let output = Command::new(linker).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(1).map(str::to_owned)
}

fn cargo_home() -> PathBuf {
    env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    )
}
