//! `bench`: builds the agent and the benchmark in release mode, and runs it.

mod compare;
mod operator;
mod results;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::build::artifacts::{self, Metadata};
use crate::build::{image, plugin};
use crate::console::note;
use crate::setup::Need;
use crate::{process, setup};

/// The benchmark's binary.
const BENCH: &str = "towpath-bench";
/// Names the agent for the benchmark, if it is not next to it.
const AGENT: &str = "TOWPATH_BIN";
/// Names the CNI plugin for the benchmark, if it is not next to the agent.
const PLUGIN_BINARY: &str = "TOWPATH_CNI_BIN";
/// The package of the CNI plugin, which a runtime runs.
const PLUGIN: &str = "towpath-cni";

/// Groups of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Nanoseconds of each program for a packet, for every path that a packet can take.
    Program,
    /// CPU time of real traffic, next to plain routing and the VPC CNI's rules.
    Live,
    /// CPU time of real traffic with many endpoints, ENIs, exempt CIDRs and flows.
    Growth,
    /// The agent: latencies, memory, CPU, loading.
    Agent,
    /// Pods that a container runtime runs and stops.
    Cri,
    /// Clusters that the operator brings up, in a simulation.
    Operator,
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Live => "live",
            Self::Growth => "growth",
            Self::Agent => "agent",
            Self::Cri => "cri",
            Self::Operator => "operator",
        }
    }
}

/// Options of `bench`.
#[derive(Args)]
#[command(after_help = "\
Times of one machine say little about another's: look at ratios, targets and floors. Times of \
programs are net of a program that does nothing, scaled so that this one costs 36 ns. Nothing else \
should run meanwhile. docs/performance.md says how to read the results.

Examples:
  cargo xtask bench --quick
  cargo xtask bench program --json bench.json --charts charts
  cargo xtask bench --compare main")]
pub(crate) struct Options {
    /// Groups to measure; without any all of them, or with --compare those that take no hour.
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// Fewer rounds, and nothing larger than 1,000 endpoints: about three minutes.
    #[arg(long)]
    quick: bool,
    /// Also write the results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write one SVG chart for each group to this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "compare")]
    charts: Option<PathBuf>,
    /// Build this commit, too, run both in turns, and fail if a figure of ours is more than 10
    /// percent worse beyond its spread.
    #[arg(long, value_name = "REV", conflicts_with = "json")]
    compare: Option<String>,
    /// Runs of each of the two; fewer than 3 give no meaningful spread.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "compare",
        value_parser = clap::value_parser!(u8).range(1..))]
    turns: u8,
}

impl Options {
    /// True if the agent itself is measured.
    fn has_agent(&self) -> bool {
        let by_itself = [Group::Agent, Group::Cri];
        self.groups.is_empty() || self.groups.iter().any(|group| by_itself.contains(group))
    }

    /// True if the operator is simulated.
    fn has_operator(&self) -> bool {
        let is_usual = self.groups.is_empty() && self.compare.is_none();
        is_usual || self.groups.contains(&Group::Operator)
    }

    /// The groups that the benchmark's binary measures, as its arguments.
    fn measured(&self) -> Vec<&'static str> {
        let groups = self.groups.iter().filter(|it| **it != Group::Operator);
        groups.map(|group| group.name()).collect()
    }

    /// True if pods are measured, which needs container runtimes.
    fn runs_pods(&self) -> bool {
        let is_usual = self.groups.is_empty() && self.compare.is_none();
        is_usual || self.groups.contains(&Group::Cri)
    }
}

/// Runs `bench`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.compare.is_some() && options.groups.contains(&Group::Operator) {
        bail!("the group operator is simulated in virtual time: leave it out with --compare");
    }
    if options.has_operator() {
        note("bench: simulating clusters for the operator");
        operator::run(options.quick)?;
        if !options.groups.is_empty() && options.measured().is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    setup::require_root("the benchmark")?;
    let mut needs = vec![Need::Build, Need::Tests];
    if options.runs_pods() {
        needs.push(Need::Cri);
    }
    setup::ensure(&needs)?;
    let runtimes = options.runs_pods().then(setup::runtimes).transpose()?;
    let runtimes = runtimes.as_deref();
    note("bench: building");
    let bench = build(datapath_build::workspace_root(), None)?;
    if let Some(revision) = &options.compare {
        return compare::run(&bench, revision, options, runtimes);
    }
    let mut command = command(&bench, runtimes);
    if options.has_agent() {
        note("bench: building the agent as it is in the image");
        let metadata = Metadata::read_in(datapath_build::workspace_root())?;
        command.env(AGENT, image::build_agent(&metadata)?);
        if options.runs_pods() {
            command.env(PLUGIN_BINARY, plugin::build(&metadata)?);
        }
    }
    command.args(options.measured());
    if options.quick {
        command.arg("--quick");
    }
    for (name, path) in [("--json", &options.json), ("--charts", &options.charts)] {
        if let Some(path) = path {
            command.arg(name).arg(path);
        }
    }
    let status = command.status().context("cannot run the benchmark")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The benchmark's command, with its container runtimes.
fn command(bench: &Path, runtimes: Option<&Path>) -> Command {
    let mut command = Command::new(bench);
    command.envs(runtimes.map(|folder| (setup::RUNTIMES, folder)));
    command
}

/// Builds the measured binaries and the benchmark, from a workspace's root and into its own folder
/// or another one; returns the benchmark's file.
fn build(root: &Path, into: Option<&Path>) -> Result<PathBuf> {
    let metadata = Metadata::read_in(root)?;
    let mut cargo = process::locked_cargo("build");
    cargo
        .current_dir(root)
        .args(["--release", "--package", "towpath"])
        // Commits that `--compare` names may have the benchmark in another package.
        .args(["--package", metadata.package_of(BENCH)?, "--bins"]);
    // Older commits that `--compare` may name have no plugin.
    if metadata
        .packages
        .iter()
        .any(|package| package.name == PLUGIN)
    {
        cargo.args(["--package", PLUGIN]);
    }
    if let Some(folder) = into {
        cargo.arg("--target-dir").arg(folder);
    }
    let executables = artifacts::build(&mut cargo, &metadata)?;
    Ok(artifacts::binary(&executables, BENCH)?.to_owned())
}
