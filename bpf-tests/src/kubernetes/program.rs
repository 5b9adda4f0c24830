//! Kubernetes' programs, where `cargo xtask test` has put them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Names the folder of the components, each of them in a folder of its own.
const COMPONENTS: &str = "TOWPATH_COMPONENTS";
/// Names a folder whose programs replace ours.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// The programs that such a folder may have.
const REPLACEABLE: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];
/// Folders of components.
const FOLDERS: [&str; 4] = ["kubernetes", "coredns", "cnitool", "debian"];

/// A program, by its name.
///
/// # Errors
/// When it was not built or fetched: the message names the command that does.
pub fn program(name: &str) -> Result<PathBuf> {
    let assets = std::env::var_os(ASSETS).filter(|_| REPLACEABLE.contains(&name));
    if let Some(program) = assets.map(|folder| Path::new(&folder).join(name))
        && program.is_file()
    {
        return Ok(program);
    }
    let folder = std::env::var_os(COMPONENTS).with_context(|| {
        format!("{COMPONENTS} names no folder with {name}: `cargo xtask test api` makes one")
    })?;
    let places = FOLDERS.map(|component| Path::new(&folder).join(component).join(name));
    let Some(program) = places.into_iter().find(|program| program.is_file()) else {
        bail!(
            "{} has no {name}: `cargo xtask test api` builds it",
            Path::new(&folder).display()
        );
    };
    Ok(program)
}
