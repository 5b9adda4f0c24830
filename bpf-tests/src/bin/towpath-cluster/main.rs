//! A cluster for a person: `up` starts it in the background, where it stays until `down`.
//!
//! `cargo xtask cluster` builds and runs it.

mod demo;
mod place;
mod serve;
mod status;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use testkit::fabric::Netns;
use testkit::kubernetes::{ProxyMode, program};

use place::Place;

/// Starts, shows and ends a cluster with Towpath, in network namespaces of this machine. Needs root.
#[derive(Debug, Parser)]
#[command(name = "towpath-cluster")]
struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a cluster, and wait until it is ready.
    Up {
        /// The rules that kube-proxy writes: iptables or nftables.
        proxy: ProxyMode,
        /// Worker nodes.
        workers: u8,
    },
    /// Be the process that the cluster belongs to.
    Serve {
        /// As for `up`.
        proxy: ProxyMode,
        /// As for `up`.
        workers: u8,
    },
    /// Show pods come and go, with a real operator and a fake of EC2.
    Demo,
    /// End the cluster.
    Down,
    /// Show how it is.
    Status {
        /// text or json.
        format: String,
    },
    /// Run kubectl.
    Kubectl {
        /// Its words.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Options::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Up { proxy, workers } => serve::up(proxy, workers)?,
        Verb::Serve { proxy, workers } => serve::serve(proxy, workers)?,
        Verb::Demo => demo::run()?,
        Verb::Down => serve::down()?,
        Verb::Status { format } => return status::show(&Place::of_running()?, format == "json"),
        Verb::Kubectl { words } => return kubectl(&Place::of_running()?, &words),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs kubectl where the control plane is, and ends as it does.
fn kubectl(place: &Place, words: &[String]) -> Result<ExitCode> {
    let control = Netns::foreign(&place.control)?;
    let mut kubectl = control.command(&program("kubectl")?.to_string_lossy());
    kubectl
        .arg("--kubeconfig")
        .arg(&place.kubeconfig)
        .args(words);
    let status = kubectl.status().context("cannot run kubectl")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
