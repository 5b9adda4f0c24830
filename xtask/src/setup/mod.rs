//! Finds or installs what the other commands need. A second run looks at a few files and is done.

mod boto3;
mod components;
mod debian;
mod deny;
mod go;
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

/// The needs of commands.
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
    /// The emulator, and what makes an image for it.
    Vm,
    /// The tool that unpacks packages of other releases of Debian.
    Unpack,
    /// The tools that make the container image.
    Image,
    /// The packages that the unpacked container runtimes need.
    Cri,
    /// The tools for a virtual environment of Python.
    Boto3,
}

impl Need {
    /// The needs that do not depend on the user's cache.
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

/// Makes sure that everything for `needs` is there; installs what is missing where that is
/// possible, and says so.
///
/// # Errors
/// When something is missing that cannot be installed here: the message names it all.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    let mut missing = requirement::missing(needs);
    if missing.iter().any(|item| item.toolchain) && toolchain::rustup_is_ready() {
        missing.retain(|item| !item.toolchain);
    }
    if !missing.is_empty() && debian::can_install() {
        debian::install(&missing)?;
        missing = requirement::missing(needs);
    }
    // What Debian's compiler lacks, rustup's nightly may have.
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

/// Fails unless we are root; `what` is what root is needed for.
pub(crate) fn require_root(what: &str) -> Result<()> {
    if process::is_root() {
        return Ok(());
    }
    bail!(
        "{what} needs root (namespaces, eBPF programs, network devices): run it as root, or with \
         `sudo --preserve-env=PATH,HOME`"
    );
}
