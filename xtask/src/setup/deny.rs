//! cargo-deny, which Debian does not have.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::console::note;
use crate::process;
use crate::setup::cache::Cache;

/// Version that `deny.toml` is written for.
const VERSION: &str = "0.20.2";

/// Finds cargo-deny in the cache, or builds it there.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    let cache = Cache::open("cargo-deny")?;
    let _lock = cache.lock()?;
    let program = cache.place(VERSION).join("bin/cargo-deny");
    if !program.is_file() {
        note(&format!(
            "setup: building cargo-deny {VERSION} (under two minutes)"
        ));
        cache.fill(VERSION, |work| {
            let mut install = process::cargo("install");
            // The build runs outside of the workspace, whose settings do not apply to it. A debug
            // build checks as fast, and takes a third of the time to build.
            install
                .current_dir("/")
                .args(["cargo-deny", "--version", VERSION, "--locked", "--debug"])
                .arg("--root")
                .arg(work.join("result"));
            process::run(&mut install).context("cannot install cargo-deny")
        })?;
    }
    Ok(program)
}
