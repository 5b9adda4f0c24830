//! Where the runtimes and the reference plugins are.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::fabric::eventually::check;

/// Names the folder that `cargo xtask test cri` has unpacked them into.
pub const RUNTIMES_VARIABLE: &str = "TOWPATH_RUNTIMES";

/// A release of containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containerd {
    /// 1.6: CNI 1.0.
    One,
    /// 2.1: CNI 1.1.
    Two,
}

/// A release of the reference CNI plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugins {
    /// 1.1: specification 1.0.
    Old,
    /// 1.9: specification 1.1.
    New,
}

impl Containerd {
    /// The folder of its programs.
    pub(super) fn folder(self) -> Result<PathBuf> {
        let name = match self {
            Self::One => "containerd-1",
            Self::Two => "containerd-2",
        };
        Ok(set(name)?.join("usr/bin"))
    }
}

impl Plugins {
    /// The folder of the plugins.
    ///
    /// # Errors
    /// When they were not fetched.
    pub fn folder(self) -> Result<PathBuf> {
        let name = match self {
            Self::Old => "plugins-1.1",
            Self::New => "plugins-1.9",
        };
        Ok(set(name)?.join("usr/lib/cni"))
    }
}

/// The folder of the OCI runtime, which every runtime here uses.
pub(super) fn runc() -> Result<PathBuf> {
    Ok(set("containerd-1")?.join("usr/sbin"))
}

/// The root folder of podman and the libraries that come with it.
pub(super) fn podman() -> Result<PathBuf> {
    set("podman")
}

fn set(name: &str) -> Result<PathBuf> {
    let folder = std::env::var_os(RUNTIMES_VARIABLE).with_context(|| {
        format!(
            "{RUNTIMES_VARIABLE} names no folder of runtimes: `cargo xtask test cri` fetches them"
        )
    })?;
    let set = PathBuf::from(folder).join(name);
    check(set.is_dir(), || {
        format!(
            "{} is missing: `cargo xtask test cri` fetches it",
            set.display()
        )
    })?;
    Ok(set)
}
