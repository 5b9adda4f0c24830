//! The eBPF programs at the start: loaded, with the flows of earlier programs taken over.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use flows as nat;
use loader::bpf::{Datapath, DatapathMode, DatapathSettings};
use loader::intent::Settings;
use loader::netfilter::conntrack;
use loader::netfilter::service_nat::KernelTracker;

use crate::host::ports::TranslationPorts;
use crate::host::reservation::Reservation;
use crate::host::service_nat::ServiceNat;
use config::Config;

/// The loaded programs, and the parts of the agent that read and write their maps.
pub(crate) struct Programs {
    pub(super) datapath: Datapath,
    pub(super) service_nat: ServiceNat,
    pub(super) reservation: Reservation,
    pub(super) ports: TranslationPorts,
    /// The thread that removes idle flows.
    pub(crate) nat: nat::Handle,
    /// True if the direct path misses translation by the host's rules, should there be such rules.
    pub(crate) misses_service_nat: bool,
}

impl Programs {
    /// Loads the programs, and starts the removal of idle flows, which ends with the second value.
    /// Sets the ports of translation.
    ///
    /// # Errors
    /// When the kernel refuses the programs, or their maps cannot be opened.
    pub(crate) fn load(
        config: &Config,
        boot: &str,
        settings: &mut Settings,
    ) -> Result<(Self, nat::Running)> {
        let state = config.state_dir.as_path();
        let mut reservation = Reservation::new(state);
        let ports = TranslationPorts::open(config, state, boot, &mut reservation);
        settings.ports = ports.slices();
        let mut of_programs = ports.datapath_settings(config);
        let misses_service_nat = config.service_nat() == api::types::ServiceNat::Off
            && of_programs.path == DatapathMode::Direct;
        let mut service_nat = service_nat(config, &mut of_programs);
        let datapath = Datapath::load(&config.bpf_options(), &of_programs);
        let mut datapath = datapath.context("load the eBPF programs")?;
        let of_nat = datapath.take_nat();
        let of_nat = of_nat.context("take the maps of translation")?;
        service_nat.start(of_nat.notes);
        let nat = nat::Handle::new(Arc::new(of_nat.switch))?;
        let sweeper = sweep(of_nat.tables, config, &of_programs, nat.clone())?;
        ports.give_back(&mut reservation);
        let programs = Self {
            datapath,
            service_nat,
            reservation,
            ports,
            nat,
            misses_service_nat,
        };
        Ok((programs, sweeper))
    }
}

/// Service NAT as the settings have it, and what the programs are to do for it.
fn service_nat(config: &Config, datapath_settings: &mut DatapathSettings) -> ServiceNat {
    let service_nat = ServiceNat::new(
        config.service_nat(),
        datapath_settings.path,
        config.knows_services(),
        conntrack::timeouts().max,
    );
    if service_nat.is_on() {
        datapath_settings.path = DatapathMode::ServiceNat;
    }
    datapath_settings.stack = service_nat.capacity();
    service_nat
}

/// Takes over the flows of earlier programs, and starts the removal of idle ones.
fn sweep(
    tables: impl nat::Tables + 'static,
    config: &Config,
    datapath_settings: &DatapathSettings,
    handle: nat::Handle,
) -> Result<nat::Running> {
    renew_flows(&tables, datapath_settings);
    let lifetimes = config.nat.lifetimes.lifetimes();
    let limits = nat::Limits::from(datapath_settings);
    let tracker = Box::new(KernelTracker::default());
    let sweeper = nat::Sweeper::new(tables, lifetimes, limits, tracker);
    nat::start(sweeper, handle)
}

/// Takes over the flows of earlier programs.
fn renew_flows(tables: &impl nat::Tables, datapath_settings: &DatapathSettings) {
    match nat::renew(
        tables,
        datapath_settings.ports.current(),
        datapath_settings.ports.known(),
    ) {
        Ok(nat::Renewed { lost, .. }) if lost > 0 => tracing::warn!(
            lost,
            "flows have ports that translation no longer uses: their connections break"
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
