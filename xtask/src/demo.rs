//! `demo`: builds what a demo needs and runs it.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::build::artifacts::{self, Metadata};
use crate::console::note;
use crate::{cluster, setup};

/// The binary that is the demo.
const DEMO: &str = "towpath-demo";

/// Options of `demo`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask demo                                    Pods on two ENIs of one node, and repairs
  cargo xtask demo --keep                             The same, and leave it up
  cargo xtask demo --cluster                          A Kubernetes cluster whose operator gets ENIs

With --cluster the control plane, two nodes and the operator are real, and EC2 is a fake: pods come, \
ENIs appear on the nodes, packets go by them, pods leave. Calls of EC2 are counted. What must be zero \
is shown in the end. The first build compiles the SDK of AWS and Kubernetes.")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Options {
    /// Show a cluster with the operator and a fake of EC2.
    #[arg(long, conflicts_with_all = ["keep", "json", "down"])]
    cluster: bool,
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
    if options.cluster {
        return cluster::demo();
    }
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
