//! Installing packages, as root on Debian and its like.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::requirement::{self, Requirement};
use crate::console::note;
use crate::process;

/// Package with the prebuilt `core` for eBPF; not every release has it.
const PREBUILT_CORE: &str = "libstd-rust-web-dev-bpf";

/// True if packages can be installed: this machine has apt, and we are root.
pub(super) fn can_install() -> bool {
    process::is_root() && process::find("apt-get").is_some()
}

/// Installs the packages of `items`; those of the eBPF compiler only where this release has them.
pub(super) fn install(items: &[&Requirement]) -> Result<()> {
    note("setup: fetching the package lists (apt-get update)");
    process::run(&mut apt("update"))?;
    let compiler = process::succeeds(Command::new("apt-cache").args(["show", PREBUILT_CORE]));
    let wanted: Vec<&Requirement> = items
        .iter()
        .copied()
        .filter(|item| compiler || !item.toolchain)
        .collect();
    let packages = requirement::packages(&wanted);
    if packages.is_empty() {
        return Ok(());
    }
    note(&format!("setup: installing {}", packages.join(" ")));
    process::run(
        apt("install")
            .args(["--yes", "--no-install-recommends"])
            .args(&packages),
    )
    .with_context(|| format!("cannot install {}", packages.join(" ")))
}

fn apt(subcommand: &str) -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["--quiet", subcommand]);
    command
}
