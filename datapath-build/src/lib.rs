//! Builds the eBPF object.
//!
//! The loader's build script and `cargo xtask build-ebpf` both call [`build`]. It keeps one target
//! directory of its own, so both get the same file and the second caller compiles nothing.

mod btf_ext;
pub mod faults;
mod strip;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

pub use strip::{Lines, strip};

/// Package that holds the programs.
const PACKAGE: &str = "datapath-ebpf";
/// Name of the object that the package's binary target makes.
const OBJECT: &str = "towpath-datapath";
/// Debian's `libstd-rust-web-dev-bpf` puts a prebuilt `core` here, for the compiler of
/// `rustc-web`.
const DEBIAN_CORE: &str = "/usr/lib/rustlib/bpfel-unknown-none";

/// Compiler of the programs.
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

    /// A cargo subcommand of this toolchain.
    fn cargo(&self, subcommand: &str) -> Command {
        let mut command = match self {
            Self::Debian => {
                // `cargo clippy` would take rustup's clippy, which stands before it in the path.
                let program = match subcommand {
                    "clippy" => "/usr/bin/cargo-clippy",
                    _ => "/usr/bin/cargo",
                };
                let mut command = Command::new(program);
                command
                    .env("CARGO", "/usr/bin/cargo")
                    .env("RUSTC", "/usr/bin/rustc");
                command
            }
            Self::Rustup(name) => {
                let mut command = Command::new("rustup");
                command
                    .args(["run", name, "cargo"])
                    .env_remove("CARGO")
                    .env_remove("RUSTC");
                command
            }
        };
        command.arg(subcommand);
        command
    }
}

/// Root of the workspace.
#[must_use]
pub fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// Folders whose change requires a new object.
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
    let feature = debug_log.then_some("debug-log");
    // Own directories: cargo holds a lock on the one that it is building for, and an object with
    // a feature must never stand where an agent without it looks.
    let directory = feature.map_or("ebpf".to_owned(), |feature| format!("ebpf-{feature}"));
    let target_dir = workspace_root().join("target").join(directory);
    let machine = (target_arch, target_endian);
    build_in(workspace_root(), &target_dir, machine, feature)
}

/// Builds the object of a workspace in a target directory. `machine` is architecture and
/// endianness.
fn build_in(
    workspace: &Path,
    target_dir: &Path,
    machine: (&str, &str),
    feature: Option<&str>,
) -> Result<PathBuf> {
    let target = target(machine.1)?;
    let mut command = cargo("build", machine.0, target, target_dir);
    command.current_dir(workspace).arg("--release");
    if let Some(feature) = feature {
        command.args(["--features", feature]);
    }
    run(&mut command)?;
    Ok(target_dir.join(target).join("release").join(OBJECT))
}

/// Runs clippy on the programs as they are built for the kernel, every warning an error.
///
/// # Errors
/// When the toolchain is missing or clippy has something to say; its words go to standard error.
pub fn clippy(target_arch: &str, target_endian: &str) -> Result<()> {
    let target_dir = workspace_root().join("target").join("ebpf-clippy");
    let mut command = cargo("clippy", target_arch, target(target_endian)?, &target_dir);
    command.args(["--", "--deny", "warnings"]);
    run(&mut command)
}

/// Name of rustc's target for a byte order.
fn target(endian: &str) -> Result<&'static str> {
    match endian {
        "little" => Ok("bpfel-unknown-none"),
        "big" => Ok("bpfeb-unknown-none"),
        other => bail!("byte order {other:?}: allowed are \"little\" and \"big\""),
    }
}

/// A cargo command on the programs' package.
fn cargo(subcommand: &str, target_arch: &str, target: &str, target_dir: &Path) -> Command {
    let toolchain = Toolchain::detect();
    let mut command = toolchain.cargo(subcommand);
    command
        .current_dir(workspace_root())
        .args(["--quiet", "--locked", "--package", PACKAGE])
        .args(["--target", target, "--target-dir"])
        .arg(target_dir);
    match toolchain {
        // Both use one unstable feature, assembly for this target; nothing else of the build may.
        Toolchain::Debian => command.env("RUSTC_BOOTSTRAP", "aya_ebpf,towpath_datapath"),
        Toolchain::Rustup(_) => command
            .args(["-Z", "build-std=core"])
            .env_remove("RUSTC_BOOTSTRAP"),
    };
    command
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            // Requirements of aya: kernel types of the architecture, debug information, and BTF.
            format!("--cfg=bpf_target_arch=\"{target_arch}\"\x1f-Cdebuginfo=2\x1f-Clink-arg=--btf"),
        )
        // A build script runs with its caller's settings, which are for another compiler.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("CARGO_TARGET_DIR");
    command
}

/// Runs a cargo command; the error of a failure names the remedy.
fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| {
        format!("cannot run {command:?}; `cargo xtask setup` installs what is missing")
    })?;
    if !status.success() {
        bail!("{PACKAGE} does not build ({status}); `cargo xtask setup` installs what is missing");
    }
    Ok(())
}
