//! boto3, Amazon's client for Python, in a virtual environment in the user's cache folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::console::note;
use crate::process;
use crate::setup::cache::Cache;

/// Names the virtual environment to the suite `cloud`.
pub(crate) const BOTO3: &str = "TOWPATH_BOTO3";
/// The packages, each with its version and hash.
const REQUIREMENTS: &str = "ec2-fake/tests/boto3/requirements.txt";
/// The folder of the cache, and the environment's name there.
const NAME: &str = "boto3";

/// The virtual environment. It is made again when the requirements change.
pub(crate) fn boto3() -> Result<PathBuf> {
    let cache = Cache::open(NAME)?;
    let _lock = cache.lock()?;
    let requirements = datapath_build::workspace_root().join(REQUIREMENTS);
    let wanted = fs::read(&requirements).with_context(|| format!("read {REQUIREMENTS}"))?;
    let folder = cache.place(NAME);
    let is_there = folder.join("bin/python").exists()
        && fs::read(folder.join("requirements.txt")).is_ok_and(|made_of| made_of == wanted);
    if !is_there {
        note(&format!(
            "setup: installing boto3 into {}",
            folder.display()
        ));
        let made = cache.fill(NAME, |work| make(&work.join("result"), &requirements));
        made.context("cannot install boto3")?;
    }
    Ok(folder)
}

fn make(folder: &Path, requirements: &Path) -> Result<()> {
    process::run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut install = Command::new(folder.join("bin/python"));
    // A file that has not its hash, or one that is missing here, is an error.
    install
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args([
            "--no-deps",
            "--require-hashes",
            "--only-binary",
            ":all:",
            "--requirement",
        ])
        .arg(requirements);
    process::run(&mut install)?;
    fs::copy(requirements, folder.join("requirements.txt"))?;
    Ok(())
}
