//! Finds or installs the requirements of the other commands. A second run only checks a few files.

mod boto3;
pub(super) mod cache;
mod components;
mod debian;
mod deny;
mod go;
pub(super) mod mirror;
mod requirement;
mod runtimes;
mod toolchain;
mod unpacked;

use anyhow::{Result, bail};
use datapath_build::Toolchain;

use crate::process;
pub(crate) use boto3::{BOTO3, boto3};
pub(crate) use components::{COMPONENTS, Component, components};
pub(crate) use deny::cargo_deny;
pub(crate) use runtimes::{RUNTIMES, runtimes};

/// Requirements of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Compiler, core library and linker for the eBPF programs.
    Build,
    /// Format and clippy, for both compilers.
    Lint,
    /// Tools that the tests and the demo call.
    Tests,
    /// The network managers that the namespace tests run.
    Managers,
    /// The emulator, and the tools to make an image for it.
    Vm,
    /// The tool that unpacks packages of other releases of Debian.
    Unpack,
    /// Tools to make the container image.
    Image,
    /// Libraries and tools of the container runtimes, which are unpacked and not installed.
    Cri,
    /// The tools for a virtual environment of Python.
    Boto3,
}

impl Need {
    /// Requirements that do not depend on the contents of the user's cache.
    pub(crate) const ALWAYS: [Self; 8] = [
        Self::Build,
        Self::Lint,
        Self::Tests,
        Self::Managers,
        Self::Vm,
        Self::Image,
        Self::Cri,
        Self::Boto3,
    ];
}

/// Ensures that everything for `needs` is present; installs what is missing where possible, and
/// reports it.
///
/// # Errors
/// When a requirement is missing that cannot be installed here: the message names them all.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    let mut missing = requirement::missing(needs);
    if missing.iter().any(|item| item.toolchain) && toolchain::rustup_is_ready() {
        missing.retain(|item| !item.toolchain);
    }
    if !missing.is_empty() && debian::can_install() {
        debian::install(&missing)?;
        missing = requirement::missing(needs);
    }
    // rustup's nightly may replace Debian's compiler.
    let rustup = matches!(Toolchain::detect(), Toolchain::Rustup(_));
    missing.retain(|item| !(rustup && item.toolchain));
    if !missing.is_empty() {
        bail!("{}", requirement::explain(&missing));
    }
    if needs.contains(&Need::Build) {
        toolchain::ensure_compiler()?;
        toolchain::ensure_linker()?;
    }
    if needs.contains(&Need::Managers) {
        unpacked::ensure_network_manager()?;
    }
    if needs.contains(&Need::Lint) {
        toolchain::ensure_component("clippy")?;
        toolchain::ensure_component("rustfmt")?;
    }
    Ok(())
}

/// Fails unless the user is root; `what` needs root.
pub(crate) fn require_root(what: &str) -> Result<()> {
    if process::is_root() {
        return Ok(());
    }
    bail!(
        "{what} needs root (namespaces, eBPF programs, network devices): run it as root, or with \
         `sudo --preserve-env=PATH,HOME`"
    );
}
