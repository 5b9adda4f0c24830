//! `demo`: builds what the demo needs and runs it.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::artifacts::{self, Metadata};
use crate::console::note;
use crate::setup;

/// The binary that is the demo.
const DEMO: &str = "towpath-demo";

/// Options of `demo`.
#[derive(Args)]
pub(crate) struct Options {
    /// Leave everything up afterwards, and say how to enter it.
    #[arg(long)]
    keep: bool,
    /// Print one JSON document on standard output instead of the story.
    #[arg(long)]
    json: bool,
    /// Remove what an earlier `--keep` left up, and do nothing else.
    #[arg(long, conflicts_with_all = ["keep", "json"])]
    down: bool,
}

/// Runs `demo`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::require_root("the demo")?;
    setup::ensure(&[setup::Need::Build, setup::Need::Tests])?;
    note("demo: building the agent and the demo");
    let executables = artifacts::build_binaries(&Metadata::read()?)?;
    let mut demo = Command::new(artifacts::binary(&executables, DEMO)?);
    if options.keep {
        demo.arg("--keep");
    }
    if options.json {
        demo.arg("--json");
    }
    if options.down {
        demo.arg("--down");
    }
    let status = demo.status().context("cannot run the demo")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
