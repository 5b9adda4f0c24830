//! Putting the agent together.

pub(crate) mod checked;
pub(crate) mod cleanup;
pub(crate) mod cni_install;
mod inputs;
pub(crate) mod memory;
mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use loader::bpf;
use loader::netfilter::Periodic;
use loader::netlink::Netlink;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::actor::Actor;
use super::allocation::{Addresses, boot_id};
use crate::actor::deferred_deletes::Pending;
use crate::actor::ingress::task::IngressTask;
use crate::faults;
use crate::host::kernel::HostKernel;
use crate::host::netns_lock::NetnsLock;
use crate::host::other_cni;
use crate::run::checked::check;
use crate::run::inputs::Inputs;
use crate::run::programs::Programs;
use crate::server::exposition::Exposition;
use crate::server::{Handle, Server, ServerLimits};
use crate::state::identity;
use crate::state::lock::{LOCK_TIMEOUT, Lock, PinsLock};
use crate::state::store::{Store, Stored};
use config::Config;
use sources::kept::Kept;
use sources::numbering::Numbering;

/// Folder of the endpoint records in the state folder.
pub(crate) const ENDPOINTS: &str = "endpoints";
/// The time that a pass may go on once the agent has been stopped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The time in which callers get a last answer, once nothing is done any more.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the agent, which listens at `socket`, until SIGTERM or SIGINT. What it set up stays.
///
/// # Errors
/// When the agent cannot start: another one runs, a folder cannot be written, the kernel refuses
/// the programs.
pub async fn run(config: &Config, socket: &Path) -> Result<()> {
    faults::check()?;
    memory::tune_allocator();
    let mut settings = config.settings();
    let mut netlink = Netlink::open(settings.protocol)?;
    let mut checked = check(config).await?;
    let others = other_cni::check(&mut netlink, config).await?;
    checked.warnings.extend(others);
    checked.log();
    let (_locks, pins) = locks(config, socket)?;
    let boot = boot_id()?;
    let kept = State::open(config, &boot)?;
    let (programs, _sweeper) = Programs::load(config, &boot, &mut settings)?;
    let (handle, commands) = Handle::new(Handle::REPLY_TIMEOUT);
    let commands = (commands, kept.sources);
    let inputs = Inputs::follow(config, checked.cluster, &mut settings, &handle, commands);
    let (ingress, own) = IngressTask::open(config, handle.clone())?;
    let server = bind(socket)?;
    let exposition = Exposition::bind(&config.http, &config.metrics).await?;
    let (nat, misses) = (programs.nat.clone(), programs.misses_service_nat);
    let mut actor = Actor::new(
        programs.kernel(netlink, &settings, pins),
        settings,
        config.endpoint.mtu.map(config::Mtu::get),
        inputs.document,
        kept.store,
        (kept.addresses, kept.pending, kept.numbering),
        nat,
    );
    actor.cluster_warnings = inputs.cluster_warnings;
    actor.warnings = checked.warnings;
    actor.signals = inputs.signals;
    actor.start_ingress(own);
    let _threads = start_threads(&actor, misses)?;

    let (stopped, stop) = stopping()?;
    let actor = actor.run(
        inputs.commands,
        inputs.source,
        inputs.files,
        inputs.demand_queries,
        stopped,
    );
    memory::give_back();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %socket.display(), "agent runs");
    tokio::select! {
        () = actor => {}
        () = exposition.serve(handle.clone()) => {}
        () = server.serve(handle) => {}
        () = ingress.run() => {}
        () = stop => {}
    }
    server.finish(DRAIN_TIMEOUT).await;
    Ok(())
}

/// The state that an earlier agent left in files.
struct State {
    store: (Store, Stored),
    addresses: Addresses,
    pending: Pending,
    numbering: Numbering,
    /// Answers of the sources.
    sources: Kept,
}

impl State {
    fn open(config: &Config, boot: &str) -> Result<Self> {
        let folder = config.state_dir.as_path();
        let store = Store::open(&folder.join(ENDPOINTS))?;
        let addresses = Addresses::open(config, folder, store.1.endpoints.values())?;
        Ok(Self {
            store,
            addresses,
            pending: Pending::new(&config.cni.pending_deletes.path()),
            numbering: Numbering::open(folder, boot),
            sources: Kept::new(folder, boot),
        })
    }
}

/// Starts the threads that read rules of netfilter and conntrack entries. Each ends with its value.
fn start_threads(actor: &Actor<HostKernel>, misses_nat: bool) -> Result<Vec<Periodic>> {
    let mut threads = vec![actor.bypassed.start()?, actor.conntrack.start()?];
    if misses_nat {
        threads.push(actor.missed.start()?);
    }
    Ok(threads)
}

/// A future that ends when a pass has to, and one that ends when the agent has to.
fn stopping() -> Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let (stop, mut stopped) = watch::channel(false);
    let stopped = async move {
        // An error means that the sender is gone, which is a reason to stop too.
        stopped.wait_for(|stop| *stop).await.ok();
    };
    Ok((stopped, stop_at([terminate, interrupt], stop)))
}

/// Stops the agent at one of two signals, and waits a little for the end of its pass.
async fn stop_at([mut one, mut other]: [Signal; 2], stop: watch::Sender<bool>) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
    tracing::info!("stopping; existing objects stay");
    stop.send_replace(true);
    tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    tracing::warn!("a pass did not end within {SHUTDOWN_TIMEOUT:?}");
}

/// Makes sure that no other agent runs here, and that the state folder is that of the pins.
fn locks(config: &Config, socket: &Path) -> Result<((Lock, NetnsLock), (PinsLock, PathBuf))> {
    let state = config.state_dir.as_path();
    let pin_root = config.datapath.pin_root.as_path();
    let lock = Lock::take(state, LOCK_TIMEOUT)?;
    let about = format!(
        "state-dir {}, datapath.pin-root {}, socket {}",
        state.display(),
        pin_root.display(),
        socket.display()
    );
    let netns = NetnsLock::take(&about, LOCK_TIMEOUT)?;
    bpf::prepare(pin_root)?;
    let pins = PinsLock::take(pin_root, LOCK_TIMEOUT)?;
    let identity = identity::join(state, pin_root)?;
    Ok(((lock, netns), (pins, identity)))
}

/// Makes the socket, and its folder.
fn bind(socket: &Path) -> Result<Server> {
    if let Some(folder) = socket.parent() {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    Server::bind(socket, ServerLimits::default())
}
