//! Putting the agent together.

pub(crate) mod checked;
pub(crate) mod cleanup;
pub(crate) mod memory;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use loader::bpf;
use loader::bpf::Datapath;
use loader::netfilter::conntrack;
use loader::netfilter::service_nat::KernelTracker;
use loader::netfilter::untracked::Untracked;
use loader::netlink::Netlink;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::actor::Actor;
use super::allocation::{Addresses, boot_id};
use crate::actor::deferred_deletes::Pending;
use crate::actor::ingress::task::IngressTask;
use crate::config::{self, Config};
use crate::faults;
use crate::host::kernel::HostKernel;
use crate::host::netns_lock::NetnsLock;
use crate::host::other_cni;
use crate::host::policy::PolicyWatch;
use crate::host::ports::TranslationPorts;
use crate::host::reservation::Reservation;
use crate::host::service_nat::ServiceNat;
use crate::run::checked::check;
use crate::run::sources::Sources;
use crate::server::exposition::Exposition;
use crate::server::{Handle, Server, ServerLimits};
use crate::sources::node::Kept;
use crate::sources::numbering::Numbering;
use crate::state::identity;
use crate::state::lock::{LOCK_TIMEOUT, Lock, PinsLock};
use crate::state::store::Store;
use flows as nat;

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
    let state = config.state_dir.as_path();
    let options = config.bpf_options();
    let (_locks, pins) = locks(state, &options.pin_root, socket)?;
    let store = Store::open(&state.join(ENDPOINTS))?;
    let endpoints = store.1.endpoints.values();
    let addresses = Addresses::open(config, state, endpoints)?;
    let pending = Pending::new(&config.cni.pending_deletes.path());
    let boot = boot_id()?;
    let numbering = Numbering::open(state, &boot);
    let kept = Kept::new(state, &boot);
    let mut reservation = Reservation::new(state);
    let ports = TranslationPorts::open(config, state, &boot, &reservation);
    settings.ports = ports.slices();
    let mut told = ports.told(config);
    let misses = config.service_nat() == api::types::ServiceNat::Off
        && told.path == bpf::DatapathMode::Direct;
    let mut service_nat = service_nat(config, &mut told);
    let mut datapath = Datapath::load(&options, &told).context("load the eBPF programs")?;
    let taken = datapath.take_nat();
    let of_nat = taken.context("take the maps of translation")?;
    service_nat.start(of_nat.notes);
    let nat = nat::Handle::new(Arc::new(of_nat.switch))?;
    renew_flows(&of_nat.tables, &told);
    let lifetimes = config.nat.lifetimes.lifetimes();
    let limits = nat::Limits::from(&told);
    let tracker = Box::new(KernelTracker::default());
    let _sweeper = nat::start(of_nat.tables, lifetimes, limits, tracker, nat.clone())?;
    ports.give_back(&mut reservation);
    let (handle, commands) = Handle::new(Handle::REPLY_TIMEOUT);
    let Sources {
        document,
        source,
        files,
        outlooks,
        signals,
        commands,
        remarks,
    } = Sources::follow(
        config,
        checked.cluster,
        &mut settings,
        &handle,
        (commands, kept),
    );
    let watch = PolicyWatch::new(nat.clone(), settings.masquerade.clone());
    let ports = (reservation, ports, nat.clone());

    let untracked = Untracked::new(settings.mark.exception());
    let (ingress, own) = IngressTask::open(config, handle.clone())?;
    let server = bind(socket)?;
    let exposition = Exposition::bind(&config.http, &config.metrics).await?;
    let mut actor = Actor::new(
        HostKernel::new(
            netlink,
            datapath,
            ports,
            watch,
            (service_nat, untracked),
            pins,
        ),
        settings,
        config.endpoint.mtu.map(config::Mtu::get),
        document,
        store,
        (addresses, pending, numbering),
        nat,
    );
    actor.remarks = remarks;
    actor.warnings = checked.warnings;
    let _reading = actor.bypassed.start()?;
    let _missed = misses.then(|| actor.missed.start()).transpose()?;
    actor.signals = signals;
    actor.start_ingress(own);

    let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let (stop, mut stopped) = watch::channel(false);
    let actor = actor.run(commands, source, files, outlooks, async move {
        // An error means that the sender is gone, which is a reason to stop too.
        stopped.wait_for(|stop| *stop).await.ok();
    });
    memory::give_back();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %socket.display(), "agent runs");
    tokio::select! {
        () = actor => {}
        () = exposition.serve(handle.clone()) => {}
        () = server.serve(handle) => {}
        () = ingress.run() => {}
        () = stop_at([terminate, interrupt], stop) => {}
    }
    server.finish(DRAIN_TIMEOUT).await;
    Ok(())
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

/// Service NAT as the settings have it, and what the programs are to do for it.
fn service_nat(config: &Config, told: &mut bpf::DatapathSettings) -> ServiceNat {
    let service_nat = ServiceNat::new(
        config.service_nat(),
        told.path,
        config.knows_services(),
        conntrack::timeouts().max,
    );
    if service_nat.is_on() {
        told.path = bpf::DatapathMode::ServiceNat;
    }
    told.stack = service_nat.capacity();
    service_nat
}

/// Makes sure that no other agent runs here, and that the state folder is that of the pins.
fn locks(
    state: &Path,
    pin_root: &Path,
    socket: &Path,
) -> Result<((Lock, NetnsLock), (PinsLock, PathBuf))> {
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

/// Takes over the flows of earlier programs.
fn renew_flows(tables: &impl nat::Tables, told: &bpf::DatapathSettings) {
    match nat::renew(tables, told.ports(), told.known_ports()) {
        Ok(nat::Renewed { lost, .. }) if lost > 0 => tracing::warn!(
            lost,
            "flows have ports that are none of ours any more: their connections break"
        ),
        Ok(renewed) => tracing::debug!(?renewed, "flows of earlier programs adopted"),
        // Most of them are found without.
        Err(error) => {
            tracing::warn!(
                "cannot re-index existing flows; their connections may break: {error:#}"
            );
        }
    }
}

/// Makes the socket, and its folder.
fn bind(socket: &Path) -> Result<Server> {
    if let Some(folder) = socket.parent() {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    Server::bind(socket, ServerLimits::default())
}
