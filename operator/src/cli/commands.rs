//! Commands.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use cloud::want::Capacity;
use fleet::WhyView;
use serde::Serialize;
use serde::de::DeserializeOwned;
use terminal::{Output, Paint};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::args::{At, Cli, Command, ConfigCommand};
use super::{Connect, client, render};
use crate::check::{self, State};
use crate::cleanup::{self, Fate};
use crate::config::{self, ClusterName, Config};
use crate::max_pods;
use crate::run;

/// Exit code where something is missing or left.
const INCOMPLETE: u8 = 4;

/// Runs a command.
pub(super) fn run(cli: Cli, connect: Connect) -> Result<ExitCode> {
    let file = cli.config.as_deref();
    match cli.command {
        Command::Run { dry_run } => block_on(work(file, dry_run, connect)),
        Command::Nodes { at, output } => list(file, (at, "/v1/nodes"), output, render::nodes),
        Command::Why { node, at, output } => block_on(async {
            let node: WhyView = ask(file, at, &format!("/v1/nodes/{node}")).await?;
            terminal::value(output, &node, render::why)?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Subnets { at, output } => list(file, (at, "/v1/subnets"), output, render::subnets),
        Command::Pools { at, output } => list(file, (at, "/v1/pools"), output, render::pools),
        Command::Budget { at, output } => list(file, (at, "/v1/budget"), output, render::budgets),
        Command::Leaks { at, output } => list(file, (at, "/v1/leaks"), output, render::leaks),
        Command::MaxPods {
            instance_type,
            first_interface_index,
            use_primary_address,
            output,
        } => {
            let types = instance_type.into_iter().collect();
            let capacity = Capacity {
                first_index: first_interface_index,
                use_primary: use_primary_address,
                ..Capacity::default()
            };
            block_on(max_pods(file, (types, capacity), output, connect))
        }
        Command::Check { output } => block_on(check(file, output, connect)),
        Command::Cleanup {
            cluster,
            list,
            output,
        } => {
            let cluster = ClusterName::try_from(cluster).context("--cluster")?;
            block_on(cleanup(file, (&cluster, list), output, connect))
        }
        Command::Config(command) => config(file, &command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let mut shape = Cli::command();
            clap_complete::generate(shell, &mut shape, "towpath-operator", &mut script);
            terminal::text(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Shows a list that the operator at an address has under a path.
fn list<T: DeserializeOwned + Serialize>(
    file: Option<&Path>,
    (at, path): (At, &str),
    output: Output,
    table: fn(&[T], Paint) -> String,
) -> Result<ExitCode> {
    let all: Vec<T> = block_on(ask(file, at, path))?;
    terminal::value(output, all.as_slice(), table)?;
    Ok(ExitCode::SUCCESS)
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(work)
}

/// Runs the operator until a signal.
async fn work(file: Option<&Path>, dry_run: bool, connect: Connect) -> Result<ExitCode> {
    let (mut config, _) = Config::load(file)?;
    config.dry_run |= dry_run;
    let level = config.log_level.name();
    // Libraries log every request at the level debug.
    let own = ["apiserver", "fleet", "operator"].map(|name| format!("{name}={level}"));
    let filter = EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_unset| EnvFilter::new(format!("error,{}", own.join(","))));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    config.cluster()?;
    let ec2 = connect(config.ec2.clone()).await?;
    let mut end = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    let stop = async move {
        tokio::select! {
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    run::run(config, ec2, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a path of the running operator.
async fn ask<T: DeserializeOwned>(file: Option<&Path>, at: At, path: &str) -> Result<T> {
    let address = match at.address {
        Some(address) => address,
        None => Config::load(file)?.0.http.address,
    };
    client::get(address, path).await
}

async fn check(file: Option<&Path>, output: Output, connect: Connect) -> Result<ExitCode> {
    let (config, _) = Config::load(file)?;
    let cluster = config.cluster()?.clone();
    let ec2 = connect(config.ec2.clone()).await?;
    let judgements = check::check(ec2.as_ref(), &config, &cluster).await;
    let is_refused = judgements.iter().any(|it| it.state == State::Refused);
    terminal::value(output, judgements.as_slice(), render::judgements)?;
    Ok(code(is_refused))
}

async fn max_pods(
    file: Option<&Path>,
    (types, capacity): (BTreeSet<String>, Capacity),
    output: Output,
    connect: Connect,
) -> Result<ExitCode> {
    let (config, _) = Config::load(file)?;
    let capacity = Capacity {
        prefixes: config.eni.prefixes,
        ..capacity
    };
    let ec2 = connect(config.ec2.clone()).await?;
    let all = max_pods::max_pods(ec2.as_ref(), types, capacity).await?;
    terminal::value(output, all.as_slice(), render::max_pods)?;
    Ok(ExitCode::SUCCESS)
}

async fn cleanup(
    file: Option<&Path>,
    (cluster, list): (&ClusterName, bool),
    output: Output,
    connect: Connect,
) -> Result<ExitCode> {
    let (config, _) = Config::load(file)?;
    let ec2 = connect(config.ec2.clone()).await?;
    let remnants = cleanup::cleanup(ec2.as_ref(), cluster, list)
        .await
        .context("list the ENIs")?;
    let is_left = remnants.iter().any(|it| it.fate != Fate::Deleted);
    terminal::value(output, remnants.as_slice(), render::remnants)?;
    Ok(code(is_left))
}

fn config(file: Option<&Path>, command: &ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::Show(output) => {
            let (config, text) = Config::load(file)?;
            terminal::value(*output, config.explain(&text).as_slice(), render::settings)?;
        }
        ConfigCommand::Check => {
            let (config, _) = Config::load(file)?;
            config.cluster()?;
        }
        ConfigCommand::Example => terminal::text(&config::example())?,
        ConfigCommand::Schema => {
            let schema = serde_json::to_string_pretty(&config::schema()).context("write JSON")?;
            terminal::text(&(schema + "\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn code(is_incomplete: bool) -> ExitCode {
    if is_incomplete {
        ExitCode::from(INCOMPLETE)
    } else {
        ExitCode::SUCCESS
    }
}
