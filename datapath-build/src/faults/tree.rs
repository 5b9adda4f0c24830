//! The object with the faults, built of a copy of the sources.
//!
//! The copy is a workspace whose entries are links to ours, apart from the programs' package.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{all, seed};
use crate::{PACKAGE, build_in, workspace_root};

/// The module that the copy's root module ends with.
const MODULE: &str = "
mod fault {
    #[unsafe(no_mangle)]
    static FAULT: aya_ebpf::Global<u32> = aya_ebpf::Global::new(0);

    #[inline(always)]
    pub(crate) fn has(fault: u32) -> bool {
        FAULT.load() == fault
    }
}
";
/// The root module.
const ROOT: &str = "main.rs";

/// Builds an object that has every fault, and returns its path. [`super::GLOBAL`] chooses one.
///
/// # Errors
/// As [`crate::build`], and when the sources do not have the code of a fault exactly once.
pub fn build(target_arch: &str, target_endian: &str) -> Result<PathBuf> {
    let target = workspace_root().join("target");
    let copy = target.join("ebpf-faults-sources");
    write(&copy).with_context(|| format!("copy {PACKAGE} to {}", copy.display()))?;
    let directory = target.join("ebpf-faults");
    build_in(&copy, &directory, (target_arch, target_endian), None)
}

/// Writes the copy. A file that is up to date stays, so that cargo builds only what has changed.
fn write(copy: &Path) -> Result<()> {
    fs::create_dir_all(copy)?;
    for entry in fs::read_dir(workspace_root())? {
        let name = entry?.file_name();
        let link = copy.join(&name);
        if name != "target" && name != ".git" && name != PACKAGE && !link.exists() {
            symlink(workspace_root().join(&name), &link)
                .with_context(|| format!("link {}", link.display()))?;
        }
    }
    let package = copy.join(PACKAGE);
    let seeded = sources()?;
    for (name, text) in &seeded {
        let file = package.join(name);
        if fs::read_to_string(&file).is_ok_and(|old| old == *text) {
            continue;
        }
        fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    }
    let kept: BTreeSet<_> = seeded.into_iter().map(|(name, _)| name).collect();
    for name in files(&package)?.difference(&kept) {
        fs::remove_file(package.join(name))?;
    }
    Ok(())
}

/// The files of the programs' package, with every fault.
pub(super) fn sources() -> Result<Vec<(PathBuf, String)>> {
    let package = workspace_root().join(PACKAGE);
    let names = files(&package)?;
    for (_, fault) in all() {
        for change in fault.changes {
            ensure!(
                names.contains(&Path::new("src").join(change.file)),
                "seeded fault {}: there is no file {} in {PACKAGE}/src",
                fault.name,
                change.file
            );
        }
    }
    let text = |name: PathBuf| {
        let text = fs::read_to_string(package.join(&name))
            .with_context(|| format!("read {}", name.display()))?;
        let text = match name.strip_prefix("src").ok().and_then(Path::to_str) {
            Some(ROOT) => text + MODULE,
            Some(file) => seed(file, text)?,
            None => text,
        };
        Ok((name, text))
    };
    names.into_iter().map(text).collect()
}

/// The files below a folder, relative to it.
fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries = fs::read_dir(&next).with_context(|| format!("read {}", next.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    Ok(found)
}
