//! Commands.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use terminal::Output;

use super::args::{Cli, Command, ConfigCommand};
use super::{Connect, render};
use crate::check::{self, State};
use crate::cleanup::{self, Fate};
use crate::config::{self, ClusterName, Config};

/// Exit code where something is missing or left.
const INCOMPLETE: u8 = 4;

/// Runs a command.
pub(super) fn run(cli: Cli, connect: Connect) -> Result<ExitCode> {
    let file = cli.config.as_deref();
    match cli.command {
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

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(work)
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
