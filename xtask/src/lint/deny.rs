//! Licences, sources and known faults of the crates that we build of, by `deny.toml`.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::console::note;
use crate::{process, setup};

/// Checks that need the crates alone.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];

/// Fails on what `deny.toml` does not allow.
pub(super) fn check() -> Result<()> {
    let program = setup::cargo_deny()?;
    process::run(deny(&program).arg("check").args(OFFLINE))?;
    if !process::succeeds(deny(&program).args(["fetch", "db"])) {
        note("lint: advisories are left out, because https://github.com/RustSec is not reached");
        return Ok(());
    }
    process::run(deny(&program).args(["check", "--disable-fetch", "advisories"]))
}

fn deny(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--locked", "--log-level", "error"])
        .current_dir(datapath_build::workspace_root());
    command
}
