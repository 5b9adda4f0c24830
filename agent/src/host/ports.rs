//! The ports of translation while the agent runs. Where no setting names them, they follow the
//! host's automatic ports, and flows that have others stay.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use datapath_common::config::PortSlice;
use datapath_common::ports::Ports;
use loader::bpf::{Datapath, DatapathSettings, FlowPorts};
use loader::intent::masquerade::{HostPorts, PortList, SharedPorts, choose, cover};

use super::earlier_ports::EarlierPorts;
use super::reservation::Reservation;
use config::Config;
use flows as nat;

/// The time before programs that were refused are tried again.
const RETRY: Duration = Duration::from_mins(1);
/// The time that the sweeper may be busy with something else.
const BUSY: Duration = Duration::from_secs(5);

type Slices = [PortSlice; PortSlice::MAX];

/// The ports of translation.
#[derive(Debug)]
pub(crate) struct TranslationPorts {
    slices: Slices,
    /// True if the settings name them.
    are_set: bool,
    /// True if anything is translated.
    are_used: bool,
    earlier: EarlierPorts,
    /// True if programs run that may still make flows by the former slices.
    changes: bool,
    /// When the last change failed, and why.
    refused: Option<(Instant, String)>,
}

impl TranslationPorts {
    /// The ports that the settings name, else those that the host can do without.
    pub(crate) fn open(
        config: &Config,
        state: &Path,
        boot: &str,
        reservation: &mut Reservation,
    ) -> Self {
        let host = reservation.host_ports().unwrap_or_default();
        let are_set = config.nat.ports.is_some();
        let mut earlier = EarlierPorts::open(state, boot);
        let slices = if are_set {
            config.nat.slices()
        } else {
            choose(&host.usable())
        };
        earlier.begin(&PortList::of_slices(&slices), are_set);
        Self {
            slices,
            are_set,
            are_used: config.masquerade.settings().is_on_at_all(),
            earlier,
            changes: false,
            refused: None,
        }
    }

    /// The slices.
    pub(crate) fn slices(&self) -> Slices {
        self.slices
    }

    /// Takes out of the kernel's list what an earlier agent added and is not to be there.
    pub(crate) fn give_back(&self, reservation: &mut Reservation) {
        let host = reservation.host_ports().filter(|_| self.are_used);
        let reserved = host.map(|host| SharedPorts::new(self.slices, &host.usable()).reserved());
        if let Err(error) = reservation.drop_stale(&reserved.unwrap_or_default()) {
            tracing::warn!("cannot release reserved local ports: {error:#}");
        }
    }

    fn with_earlier(&self, slices: Slices) -> FlowPorts {
        FlowPorts {
            slices,
            earlier: cover(self.earlier.list()),
        }
    }

    /// Settings for the programs, with these ports.
    pub(crate) fn datapath_settings(&self, config: &Config) -> DatapathSettings {
        DatapathSettings {
            ports: self.with_earlier(self.slices),
            ..config.datapath_settings()
        }
    }

    /// Selects other ports if the host needs some of ours. Then it reloads the programs, and the
    /// next plan replaces the running ones.
    pub(crate) fn look(
        &mut self,
        host: &HostPorts,
        datapath: &mut Datapath,
        nat: &nat::Handle,
    ) -> Slices {
        let usable = host.usable();
        let refused = self.refused.as_ref();
        let may_try = refused.is_none_or(|(at, _)| at.elapsed() > RETRY);
        if self.are_used && !self.are_set && may_try && self.shares(&usable) {
            let slices = choose(&usable);
            match self.change(slices, datapath, nat) {
                Ok(()) => {
                    let ports = PortList::of_slices(&slices);
                    tracing::info!(%ports, "translated flows get other ports from now on");
                    self.refused = None;
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!("translated flows keep the host's ports: {error}");
                    self.refused = Some((Instant::now(), error));
                }
            }
        }
        self.slices
    }

    fn shares(&self, usable: &PortList) -> bool {
        !SharedPorts::new(self.slices, usable).open().is_empty()
    }

    fn change(&mut self, slices: Slices, datapath: &mut Datapath, nat: &nat::Handle) -> Result<()> {
        self.earlier.begin(&PortList::of_slices(&slices), false);
        self.renew(slices, nat)?;
        datapath.take_ports(self.with_earlier(slices))?;
        self.slices = slices;
        self.changes = true;
        Ok(())
    }

    /// Notes that a pass left nothing to do, so the programs with these ports run. Flows that the
    /// earlier programs created until then are found, too.
    pub(crate) fn settled(&mut self, nat: &nat::Handle) {
        if std::mem::take(&mut self.changes)
            && let Err(error) = self.renew(self.slices, nat)
        {
            tracing::warn!(
                "cannot re-index existing flows; their connections may break: {error:#}"
            );
        }
    }

    /// Why the host and translation have ports in common, and what to do about it.
    pub(crate) fn problem(&self, host: &HostPorts) -> Option<String> {
        let usable = host.usable();
        let shared = SharedPorts::new(self.slices, &usable);
        if !self.are_used || shared.open().is_empty() {
            return None;
        }
        let (open, automatic) = (shared.open(), &host.automatic);
        if self.are_set {
            let other = PortList::of_slices(&choose(&usable));
            return Some(format!(
                "nat.ports leaves the host too few automatic ports of {automatic} \
                 (net.ipv4.ip_local_port_range): {open} are not reserved, and both use them; \
                 remove nat.ports, or set it to {other}"
            ));
        }
        let (_, error) = self.refused.as_ref()?;
        Some(format!(
            "translated flows and the host have the ports {open} in common, for the programs could \
             not be given others: {error}"
        ))
    }

    /// Makes programs with these ports find the existing flows.
    fn renew(&self, slices: Slices, nat: &nat::Handle) -> Result<()> {
        let ports = |slices: Slices| Ports::from_words(slices.map(PortSlice::to_word));
        let (ports, known) = (ports(slices), ports(cover(self.earlier.list())));
        let (done, renewed) = mpsc::channel();
        nat.look(Box::new(move |tables| {
            // The caller may have given up.
            done.send(nat::renew(tables, ports, known)).ok();
        }));
        let renewed = renewed.recv_timeout(BUSY);
        renewed.context("the sweeper of flows is busy")?.map(drop)
    }
}
