//! The action of each command.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use api::Client;
use api::Tuple;
use api::ids::Owner;
use api::types::ObjectState;
use api::types::{AddEndpoint, FlowFilter, HealthState};
use clap::CommandFactory as _;
use clap_complete::Shell;
use ipam::Family;
use loader::netlink::find_sysctls_in;
use serde_json::json;
use terminal::Output;
use tracing_subscriber::EnvFilter;

use super::args::{
    Cli, CniCommand, Command, EndpointCommand, FlushArgs, MasqCommand, NatCommand, OwnerArgs,
};
use super::failure::{Failure, NOT_READY};
use super::{cni, render, settings};
use config::Config;

/// Where `ip netns` keeps its namespaces.
const NETNS_FOLDER: &str = "/run/netns";

pub(super) fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let command = match cli.command {
        Command::Completions { shell } => return completions(shell),
        Command::Config(command) => return settings::run(command, cli.config.as_deref()),
        command => command,
    };
    let config = settings::load(cli.config.as_deref())?;
    find_sysctls_in(config.kernel.sysctls.as_path());
    let socket = cli.socket;
    let socket = socket.unwrap_or_else(|| config.socket.as_path().to_owned());
    let runtime = runtime()?;
    if let Command::Cni(command) = command {
        if matches!(command, CniCommand::Keep { .. }) {
            log(&config);
        }
        let state_dir = config.cni.pending_deletes.state_dir();
        runtime.block_on(cni::run(command, socket, state_dir))?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = Client::new(socket);
    let client = match cli.timeout {
        Some(timeout) => client.with_timeout(timeout),
        None => client,
    };
    runtime.block_on(with_config(command, &config, &client))
}

fn completions(shell: Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "towpath", &mut script);
    terminal::text(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

async fn with_config(
    command: Command,
    config: &Config,
    client: &Client,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Run => {
            log(config);
            Box::pin(crate::run(config, client.socket())).await?;
        }
        Command::Status(output) => return status(output, client).await,
        Command::Ready => client.ready().await?,
        Command::Endpoints(output) => {
            let endpoints = client.endpoints().await?;
            terminal::value(output, endpoints.as_slice(), render::endpoints)?;
        }
        Command::Pools(output) => {
            terminal::value(output, client.pools().await?.as_slice(), render::pools)?;
        }
        Command::Addresses(output) => {
            terminal::value(output, &client.addresses().await?, render::addresses)?;
        }
        Command::Enis(output) => {
            terminal::value(output, client.enis().await?.as_slice(), render::enis)?;
        }
        Command::Routes { differing, output } => {
            let mut objects = client.objects().await?;
            objects.retain(|object| !differing || object.state != ObjectState::Present);
            terminal::value(output, objects.as_slice(), render::objects)?;
        }
        Command::Masq { command, output } => masquerade(command, output, client).await?,
        Command::Metrics { drops, all, output } => {
            let mut metrics = client.metrics().await?;
            metrics.retain(|metric| (metric.drop || !drops) && (metric.packets > 0 || all));
            terminal::value(output, metrics.as_slice(), render::metrics)?;
        }
        Command::Nat(command) => nat(command, client).await?,
        Command::Endpoint(command) => endpoint(command, client).await?,
        Command::Cleanup {
            yes,
            conf_dir,
            output,
        } => {
            let removed = crate::cleanup(config, &conf_dir, yes).await?;
            terminal::value(output, &removed, render::removed)?;
            if !removed.failures.is_empty() {
                return Err(anyhow!("{} objects of Towpath remain", removed.failures.len()).into());
            }
        }
        // Done before the runtime was started.
        Command::Config(_) | Command::Completions { .. } | Command::Cni(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(output: Output, client: &Client) -> Result<ExitCode, Failure> {
    let status = client.status().await?;
    terminal::value(output, &status, render::status)?;
    Ok(match status.health.state {
        HealthState::Ready => ExitCode::SUCCESS,
        HealthState::Degraded | HealthState::NotReady => ExitCode::from(NOT_READY),
    })
}

async fn masquerade(
    command: Option<MasqCommand>,
    output: Output,
    client: &Client,
) -> Result<(), Failure> {
    let Some(MasqCommand::Explain {
        source,
        destination,
        protocol,
        output,
    }) = command
    else {
        terminal::value(output, &client.masquerade().await?, render::masquerade)?;
        return Ok(());
    };
    let tuple = Tuple::new(protocol, source, destination).map_err(anyhow::Error::from)?;
    terminal::value(output, &client.explain(&tuple).await?, render::explanation)?;
    Ok(())
}

async fn endpoint(command: EndpointCommand, client: &Client) -> Result<(), Failure> {
    match command {
        EndpointCommand::Add {
            owner,
            netns,
            addresses,
            which,
            output,
        } => {
            let pools = which.pool.iter();
            let pools = pools.flat_map(|pool| Family::ALL.map(|family| (family, pool.clone())));
            let request = AddEndpoint {
                owner: owner.into(),
                netns: netns_path(netns)?,
                addresses: (!addresses.is_empty()).then_some(addresses),
                families: which.families.into_iter().map(Into::into).collect(),
                pools: pools.collect(),
                network: None,
                pod: None,
            };
            let attachment = client.add_endpoint(&request).await?;
            terminal::value(output, &attachment, render::attachment)?;
        }
        EndpointCommand::Del { owner, output } => {
            client.delete_endpoint(&owner.into()).await?;
            terminal::value(output, &json!({}), |_, _| String::new())?;
        }
    }
    Ok(())
}

async fn nat(command: NatCommand, client: &Client) -> Result<(), Failure> {
    match command {
        NatCommand::List {
            pod,
            remote,
            protocol,
            output,
        } => {
            let filter = FlowFilter {
                pod,
                remote,
                protocol,
                all: false,
            };
            let flows = client.nat_flows(&filter).await?;
            terminal::value(output, &flows, render::nat_flows)?;
        }
        NatCommand::Flush { which, output } => {
            let FlushArgs { pod, all } = which;
            let filter = FlowFilter {
                pod,
                all,
                ..FlowFilter::default()
            };
            let flushed = client.nat_flush(&filter).await?;
            terminal::value(output, &flushed, |flushed, _paint| {
                render::nat_flushed(*flushed)
            })?;
        }
        NatCommand::Stats(output) => {
            terminal::value(output, &client.nat_stats().await?, render::nat_stats)?;
        }
    }
    Ok(())
}

impl From<OwnerArgs> for Owner {
    fn from(owner: OwnerArgs) -> Self {
        let OwnerArgs {
            container_id,
            interface,
        } = owner;
        Self {
            container_id,
            interface,
        }
    }
}

/// A runtime of one thread.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("start the runtime")
}

/// A path as it is, from here where it is relative; a bare name as `ip netns` means it.
fn netns_path(netns: PathBuf) -> Result<PathBuf> {
    if netns.components().count() == 1 && !netns.is_absolute() {
        return Ok(PathBuf::from(NETNS_FOLDER).join(netns));
    }
    std::path::absolute(&netns).with_context(|| format!("the path of {}", netns.display()))
}

/// Logs to stderr, which the service manager or the container runtime collects.
fn log(config: &Config) {
    let level = tracing::Level::from(config.log_level);
    let mut filter = EnvFilter::builder()
        .with_default_directive(level.into())
        .from_env_lossy();
    // The library logs each failed request as an error of its own. The caller logs it, too.
    if let Ok(quiet) = "kube_client=off".parse()
        && std::env::var_os(EnvFilter::DEFAULT_ENV).is_none()
    {
        filter = filter.add_directive(quiet);
    }
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_writer(io::stderr)
        // It would panic once stderr has no reader. The node's network must outlive its log.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_name_or_a_path() {
        let here = std::env::current_dir().unwrap();
        for (given, path) in [
            ("web", PathBuf::from("/run/netns/web")),
            ("/proc/1/ns/net", PathBuf::from("/proc/1/ns/net")),
            ("./web", here.join("web")),
        ] {
            assert_eq!(netns_path(given.into()).unwrap(), path, "{given}");
        }
    }
}
