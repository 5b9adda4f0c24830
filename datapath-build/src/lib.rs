//! Builds the eBPF object.
//!
//! The loader's build script and `cargo xtask build-ebpf` both call [`build`]. It keeps one target
//! directory of its own, so both get the same file and the second caller compiles nothing.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Package that holds the programs.
const PACKAGE: &str = "datapath-ebpf";
/// Name of the object that the package's binary target makes.
const OBJECT: &str = "towpath-datapath";
/// Debian's `libstd-rust-web-dev-bpf` puts a prebuilt `core` here, for the compiler of
/// `rustc-web`.
const DEBIAN_CORE: &str = "/usr/lib/rustlib/bpfel-unknown-none";

/// Which compiler builds the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// Debian's `rustc-web` and `cargo-web` in `/usr/bin`, with their prebuilt `core`.
    Debian,
    /// A rustup toolchain with `rust-src`, which builds `core` itself.
    Rustup(String),
}

impl Toolchain {
    /// Finds the toolchain: `EBPF_TOOLCHAIN` (a rustup name, or `debian`), else Debian's when it is
    /// installed, else rustup's nightly.
    #[must_use]
    pub fn detect() -> Self {
        match env::var("EBPF_TOOLCHAIN") {
            Ok(name) if name == "debian" => Self::Debian,
            Ok(name) => Self::Rustup(name),
            Err(_) if Path::new(DEBIAN_CORE).is_dir() => Self::Debian,
            Err(_) => Self::Rustup("nightly".to_owned()),
        }
    }

    /// A cargo command of this toolchain.
    fn cargo(&self) -> Command {
        match self {
            Self::Debian => {
                let mut command = Command::new("/usr/bin/cargo");
                command.env("RUSTC", "/usr/bin/rustc");
                command
            }
            Self::Rustup(name) => {
                let mut command = Command::new("rustup");
                command.args(["run", name, "cargo"]).env_remove("RUSTC");
                command
            }
        }
    }
}

/// Root of the workspace.
#[must_use]
pub fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// Folders whose change asks for a new object.
#[must_use]
pub fn sources() -> [PathBuf; 3] {
    ["datapath-ebpf", "datapath-common", "Cargo.lock"].map(|name| workspace_root().join(name))
}

/// Builds the object for the byte order of `target_endian` (`little` or `big`) with kernel types of
/// `target_arch`, and returns its path. `debug_log` compiles aya-log into the programs.
///
/// # Errors
/// When the toolchain is missing or the programs do not compile; the compiler's words go to
/// standard error.
pub fn build(target_arch: &str, target_endian: &str, debug_log: bool) -> Result<PathBuf> {
    let target = match target_endian {
        "little" => "bpfel-unknown-none",
        "big" => "bpfeb-unknown-none",
        other => bail!("byte order {other:?}: allowed are \"little\" and \"big\""),
    };
    let toolchain = Toolchain::detect();
    // An own directory: cargo holds a lock on the one that it is building for.
    let target_dir = workspace_root().join("target").join("ebpf");
    let mut command = toolchain.cargo();
    command
        .current_dir(workspace_root())
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            PACKAGE,
            "--release",
            "--target",
            target,
        ])
        .arg("--target-dir")
        .arg(&target_dir);
    if debug_log {
        command.args(["--features", "debug-log"]);
    }
    match toolchain {
        // aya-ebpf uses one unstable feature; nothing else of the build may.
        Toolchain::Debian => command.env("RUSTC_BOOTSTRAP", "aya_ebpf"),
        Toolchain::Rustup(_) => command
            .args(["-Z", "build-std=core"])
            .env_remove("RUSTC_BOOTSTRAP"),
    };
    command
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            // What aya asks for: kernel types of the architecture, debug information, and BTF.
            format!("--cfg=bpf_target_arch=\"{target_arch}\"\x1f-Cdebuginfo=2\x1f-Clink-arg=--btf"),
        )
        // A build script runs with its caller's settings, which are for another compiler.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("CARGO_TARGET_DIR");
    let status = command.status().with_context(|| {
        format!("cannot run {command:?}; `cargo xtask setup` installs what is missing")
    })?;
    if !status.success() {
        bail!("building {PACKAGE} failed ({status}); `cargo xtask setup` installs what is missing");
    }
    Ok(target_dir.join(target).join("release").join(OBJECT))
}
