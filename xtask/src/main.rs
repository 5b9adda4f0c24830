//! Every developer command of Towpath. `cargo xtask help` lists them.

mod bench;
mod build;
mod cluster;
mod console;
mod demo;
mod ebpf;
mod lint;
mod mutations;
mod process;
mod setup;
mod test;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Towpath's developer commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find or install what the other commands need.
    Setup,
    /// Build the eBPF object and report each program's size, stack and verified instructions.
    BuildEbpf(ebpf::Options),
    /// Build the CNI plugin as it is installed: static, and no larger than it may be.
    BuildCni,
    /// Build the agent's container image, the same each time.
    Image(build::image::Options),
    /// Boot the kernels of the matrix and compare what their verifiers make of the programs with
    /// docs/verifier-cost.md (needs root).
    VerifierCost(vm::CostOptions),
    /// Count what each path of a packet costs in instructions and compare it with docs/path-cost.md
    /// (needs root).
    PathCost(ebpf::PathOptions),
    /// Show pods on two ENIs at work, in namespaces of this machine (needs root).
    Demo(demo::Options),
    /// Start, look at and end a Kubernetes cluster with Towpath on this machine (needs root).
    Cluster(cluster::Options),
    /// Measure programs, traffic and the agent beside what a user would run instead (needs root).
    Bench(bench::Options),
    /// Run the test suites: unit, bpf, netns, masq, services, api, cluster, cri, vm (all but unit need root).
    Test(test::Options),
    /// Take guards of the operator away, one at a time, in a copy of the sources, and see that a test
    /// fails for each.
    Mutations(mutations::Options),
    /// Check format, clippy, documentation, dependency edges and text rules.
    Lint,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Setup => {
            setup::ensure(&setup::Need::ALWAYS)?;
            console::note("setup: everything is there");
            Ok(ExitCode::SUCCESS)
        }
        Command::BuildEbpf(options) => ebpf::run(&options).map(|()| ExitCode::SUCCESS),
        Command::BuildCni => build::plugin::run().map(|()| ExitCode::SUCCESS),
        Command::Image(options) => build::image::run(&options).map(|()| ExitCode::SUCCESS),
        Command::VerifierCost(options) => vm::costs(&options).map(|()| ExitCode::SUCCESS),
        Command::PathCost(options) => ebpf::paths(&options).map(|()| ExitCode::SUCCESS),
        Command::Demo(options) => demo::run(&options),
        Command::Cluster(options) => cluster::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Mutations(options) => mutations::run(&options),
        Command::Lint => lint::run(),
    }
}
