//! A copy of the sources, with a target folder of its own: a package of the copy has the same
//! fingerprint as that of the workspace, so a shared folder would pass one off as the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::Mutant;
use crate::process;

/// The copy.
pub(super) struct Tree {
    root: PathBuf,
}

/// A file that lacks its guard. Dropping it brings the guard back.
pub(super) struct Changed {
    file: PathBuf,
    whole: String,
}

impl Tree {
    /// Copies the sources, those that are not committed included. Files that are the same stay, so
    /// that cargo builds little.
    pub(super) fn copy() -> Result<Self> {
        let from = datapath_build::workspace_root();
        let root = from.join("target/mutations");
        let mut list = Command::new("git");
        list.current_dir(from).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let names = process::output(&mut list)?;
        for name in names.split_terminator('\0') {
            copy_file(&from.join(name), &root.join(name)).with_context(|| name.to_owned())?;
        }
        Ok(Self { root })
    }

    /// The copy's folder.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A cargo that works on the copy.
    pub(super) fn cargo(&self, subcommand: &str) -> Command {
        let mut command = process::locked_cargo(subcommand);
        command
            .current_dir(&self.root)
            .arg("--quiet")
            .env("CARGO_TARGET_DIR", self.root.join("target"));
        command
    }

    /// Takes the guard of a mutant away.
    pub(super) fn change(&self, mutant: &Mutant) -> Result<Changed> {
        let file = self.root.join(mutant.file);
        let whole = fs::read_to_string(&file).with_context(|| mutant.file)?;
        let count = whole.matches(mutant.code).count();
        ensure!(
            count == 1,
            "{}: {:?} is there {count} times, expected once",
            mutant.file,
            mutant.code
        );
        fs::write(&file, whole.replacen(mutant.code, mutant.without, 1))?;
        Ok(Changed { file, whole })
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.file, &self.whole) {
            eprintln!("write {}: {error}", self.file.display());
        }
    }
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    // A file that is deleted and not committed is still listed, and a link may lead nowhere.
    if !from.is_file() {
        return Ok(());
    }
    let new = fs::read(from)?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    let folder = to.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(to, new).context("write the copy")
}
