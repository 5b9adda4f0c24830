//! `cluster`: a Kubernetes cluster with Towpath on this machine, for a person.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};

use crate::build::artifacts::{self, Executable, Metadata};
use crate::build::image;
use crate::console::note;
use crate::setup;
use crate::setup::{Component, Need};

/// The binary that carries the verbs out.
const PROGRAM: &str = "towpath-cluster";
/// The components of a cluster.
const PARTS: [Component; 3] = [Component::Kubernetes, Component::CoreDns, Component::Debian];

/// Options of `cluster`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask cluster up                              Two nodes, kube-proxy with nftables
  cargo xtask cluster up --proxy iptables             The same with rules of iptables
  cargo xtask cluster kubectl -- get pods -A -o wide
  cargo xtask cluster status -o json
  cargo xtask cluster down

The nodes are network namespaces of this machine, in a VPC that drops what leaves by an ENI that does
not own its source. The control plane, kubelets, containerd and kube-proxy are real. Images are made
here and pulled never: the one that pods can have is localhost/towpath-test:1, with busybox in it.")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a cluster in the background and wait until its nodes are ready; one that is up is left
    /// as it is.
    Up {
        /// The rules that kube-proxy writes.
        #[arg(long, value_enum, default_value_t = Proxy::Nftables)]
        proxy: Proxy,
        /// Worker nodes.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
        workers: u8,
    },
    /// End the cluster and remove all of it.
    Down,
    /// Show nodes, agents, pods and packets with a foreign source; fails unless all is well.
    Status {
        /// Format of the answer.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Run kubectl with the rights of an administrator.
    Kubectl {
        /// Words for kubectl.
        #[arg(last = true, value_name = "WORDS")]
        words: Vec<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Proxy {
    Iptables,
    Nftables,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

impl Verb {
    /// The words by which the binary knows it.
    fn words(&self) -> Vec<String> {
        let text = |value: Option<clap::builder::PossibleValue>| {
            value
                .map(|value| value.get_name().to_owned())
                .unwrap_or_default()
        };
        let (name, rest) = match self {
            Self::Up { proxy, workers } => (
                "up",
                vec![text(proxy.to_possible_value()), workers.to_string()],
            ),
            Self::Down => ("down", Vec::new()),
            Self::Status { output } => ("status", vec![text(output.to_possible_value())]),
            Self::Kubectl { words } => ("kubectl", words.clone()),
        };
        [vec![name.to_owned()], rest].concat()
    }
}

/// Runs `cluster`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::require_root("a cluster")?;
    let metadata = Metadata::read()?;
    let (executables, files) = match options.verb {
        Verb::Up { .. } => build(&metadata)?,
        Verb::Status { .. } | Verb::Kubectl { .. } => {
            setup::ensure(&[Need::Build])?;
            let components = setup::components(&PARTS)?;
            let executables = artifacts::build_binaries(&metadata)?;
            (executables, vec![(setup::COMPONENTS, components)])
        }
        Verb::Down => {
            setup::ensure(&[Need::Build])?;
            (artifacts::build_binaries(&metadata)?, Vec::new())
        }
    };
    let mut command = Command::new(artifacts::binary(&executables, PROGRAM)?);
    command.args(options.verb.words()).envs(files);
    let status = command
        .status()
        .context("cannot run the cluster's program")?;
    // kubectl's own codes are kept.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Variables, and the files that they name.
type Files = Vec<(&'static str, PathBuf)>;

/// Runs the demo of a cluster with an operator.
pub(crate) fn demo() -> Result<ExitCode> {
    let metadata = Metadata::read()?;
    let (executables, files) = build(&metadata)?;
    note("demo: building the operator");
    artifacts::build_operator(&metadata)?;
    let mut demo = Command::new(artifacts::binary(&executables, PROGRAM)?);
    let status = demo.arg("demo").envs(files).status();
    Ok(if status.context("cannot run the demo")?.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Builds the agent, its image, and what `up` needs beside them.
fn build(metadata: &Metadata) -> Result<(Vec<Executable>, Files)> {
    setup::ensure(&[Need::Build, Need::Tests, Need::Cri, Need::Image])?;
    let components = setup::components(&PARTS)?;
    let runtimes = setup::runtimes()?;
    note("cluster: building the agent and its image");
    let executables = artifacts::build_binaries(metadata)?;
    let image = image::for_tests(&executables, metadata)?;
    let files = vec![
        (setup::COMPONENTS, components),
        (setup::RUNTIMES, runtimes),
        (image::VARIABLE, image),
    ];
    Ok((executables, files))
}

#[cfg(test)]
mod tests {
    use super::{Output, Proxy, Verb};

    #[test]
    fn the_binary_gets_what_was_chosen() {
        let up = Verb::Up {
            proxy: Proxy::Iptables,
            workers: 2,
        };
        assert_eq!(up.words(), ["up", "iptables", "2"]);
        let status = Verb::Status {
            output: Output::Json,
        };
        assert_eq!(status.words(), ["status", "json"]);
        let words = ["get", "-o", "wide"].map(str::to_owned).to_vec();
        assert_eq!(
            Verb::Kubectl { words }.words(),
            ["kubectl", "get", "-o", "wide"]
        );
    }
}
