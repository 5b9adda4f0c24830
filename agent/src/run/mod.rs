//! Putting the agent together.

pub(crate) mod checked;
pub(crate) mod cleanup;
pub(crate) mod cni_install;
mod inputs;
pub(crate) mod memory;

use std::fs;
use std::path::Path;
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
use crate::actor::parts::Restored;
use crate::fault_points;
use crate::host::kernel::HostKernel;
use crate::host::kernel::pins::Pins;
use crate::host::kernel::programs::Programs;
use crate::host::netns_lock::NetnsLock;
use crate::host::other_cni;
use crate::run::checked::check;
use crate::server::exposition::Exposition;
use crate::server::{Server, ServerLimits};
use crate::state::identity;
use crate::state::lock::{LOCK_TIMEOUT, Lock, PinsLock};
use crate::state::store::Store;
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
    fault_points::check()?;
    memory::tune_allocator();
    let mut settings = config.settings();
    let mut netlink = Netlink::open(settings.protocol)?;
    let mut checked = check(config).await?;
    let others = other_cni::check(&mut netlink, config).await?;
    checked.warnings.extend(others);
    checked.log();
    let (_locks, pins) = locks(config, socket)?;
    let boot = boot_id()?;
    let restored = restore(config, &boot)?;
    let kept = Kept::new(config.state_dir.as_path(), &boot);
    let (programs, _sweeper) = Programs::load(config, &boot, &mut settings)?;
    let (handle, inputs) = inputs::follow(config, checked.cluster, &mut settings, kept);
    let (ingress, own) = IngressTask::open(config, handle.clone())?;
    let server = bind(socket)?;
    let exposition = Exposition::bind(&config.http, &config.metrics).await?;
    let (nat, misses) = (programs.nat.clone(), programs.misses_service_nat);
    let kernel = HostKernel::new(netlink, programs, pins, &settings);
    let mut actor = Actor::new(kernel, settings, restored, nat);
    actor.documents.path = inputs.document;
    actor.signals = inputs.signals;
    actor.mtu = config.endpoint.mtu.map(config::Mtu::get);
    actor.observers.cluster_warnings = inputs.cluster_warnings;
    actor.observers.warnings = checked.warnings;
    actor.start_ingress(own);
    let _threads = start_threads(&actor, misses)?;

    let (stopped, stop) = stopping()?;
    let actor = actor.run(inputs.streams, stopped);
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

/// Reads the state that an earlier agent left in files.
fn restore(config: &Config, boot: &str) -> Result<Restored> {
    let folder = config.state_dir.as_path();
    let (store, stored) = Store::open(&folder.join(ENDPOINTS))?;
    Ok(Restored {
        addresses: Addresses::open(config, folder, stored.endpoints.values())?,
        store,
        stored,
        pending: Pending::new(&config.cni.pending_deletes.path()),
        numbering: Numbering::open(folder, boot),
    })
}

/// Starts the threads that read rules of netfilter and conntrack entries. Each ends with its value.
fn start_threads(actor: &Actor<HostKernel>, misses_nat: bool) -> Result<Vec<Periodic>> {
    let mut threads = vec![
        actor.observers.bypassed.start()?,
        actor.observers.conntrack.start()?,
    ];
    if misses_nat {
        threads.push(actor.observers.missed.start()?);
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
fn locks(config: &Config, socket: &Path) -> Result<((Lock, NetnsLock), Pins)> {
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
    Ok(((lock, netns), Pins::new(pins, identity)))
}

/// Makes the socket, and its folder.
fn bind(socket: &Path) -> Result<Server> {
    if let Some(folder) = socket.parent() {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    Server::bind(socket, ServerLimits::default())
}
