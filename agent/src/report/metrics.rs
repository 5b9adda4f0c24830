//! The agent's counters.

use api::ApiError;
use api::types::ObjectKind;
use api::types::Readiness;
use apiserver::client::traffic;
use loader::reconcile::Repairs;

use super::refused;
use crate::actor::Actor;
use crate::host::kernel::Host;
use crate::server::{ApiServerStats, MetricsSnapshot, OwnAddressStats};

impl<K: Host> Actor<K> {
    /// The counters that need no observation of the kernel's configuration.
    pub(crate) fn figures(&mut self) -> Result<MetricsSnapshot, ApiError> {
        let repairs = self.repairs().by_kind.into_iter();
        let view = &self.passes.last.view;
        let endpoints = view.endpoints.values().map(|view| &view.readiness);
        let enis = view.enis.values().map(|view| &view.readiness);
        let interpreted = self.reconciler.kernel().interpreted();
        Ok(MetricsSnapshot {
            is_ready: self.ready().is_ok(),
            uptime_seconds: self.passes.started.elapsed().as_secs(),
            endpoints: by_readiness(endpoints),
            enis: by_readiness(enis),
            interpreted: u64::try_from(interpreted.programs.len()).unwrap_or(u64::MAX),
            refused: refused::counts(&self.refused()),
            own: OwnAddressStats {
                in_use: u64::try_from(self.ingress_addresses().len()).unwrap_or(u64::MAX),
                failures: self.own.report.borrow().failures,
            },
            pools: self.list_pools(),
            counters: self.metrics()?,
            nat: self.nat_status(),
            work: self.passes.work,
            repairs: repairs.collect(),
            api_server: ApiServerStats {
                requests: traffic::requests(),
                responses: traffic::responses(),
            },
        })
    }

    /// Repairs after changes of other software: objects of the plan, and the nftables table.
    pub(crate) fn repairs(&mut self) -> Repairs {
        let mut repairs = self.reconciler.repairs();
        let tables = self.reconciler.kernel().untracked().repairs();
        if tables > 0 {
            repairs.total += tables;
            repairs.by_kind.insert(ObjectKind::NetfilterTable, tables);
        }
        repairs
    }
}

/// Number of those that are ready, and of those that are not.
fn by_readiness<'a>(all: impl Iterator<Item = &'a Readiness>) -> (u64, u64) {
    all.fold((0, 0), |(ready, others), one| {
        if one.is_ready() {
            (ready + 1, others)
        } else {
            (ready, others + 1)
        }
    })
}
