//! Report of the sweeper between sweeps.

use std::net::IpAddr;
use std::time::Instant;

use api::ids::EniNumber;

use crate::census::Used;
use crate::sweep::outcome::Sweep;
use crate::tables::{Capacities, NatCounters};
use crate::view::refusals::Refusals;

/// The endpoint that has most flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top {
    /// Its identity; 0 is the host.
    pub endpoint: u32,
    /// Its flows, translated ones and those from the outside.
    pub flows: u64,
}

/// Findings of the latest sweep, and totals since the agent started.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The last sweep and when it ended; none before the first.
    pub last: Option<(Instant, Sweep)>,
    /// Room of the maps; none before the first sweep.
    pub capacities: Option<Capacities>,
    /// Entries that the maps have now, according to the counters.
    pub used: Used,
    /// Counters of translation.
    pub counters: NatCounters,
    /// Flows removed because they had been idle for too long.
    pub reaped: u64,
    /// Of these, those of sweeps under pressure.
    pub reaped_pressed: u64,
    /// Flows removed because their endpoint is gone.
    pub gone: u64,
    /// Flows removed on request.
    pub flushed: u64,
    /// Quotas corrected.
    pub corrected: u64,
    /// Recent refusals of the programs.
    pub refusals: Refusals,
    /// Error of the last sweep.
    pub error: Option<String>,
}

impl Report {
    /// True if the last sweep found no entry of an address, and already knew that no endpoint has
    /// it.
    #[must_use]
    pub fn is_quiet(&self, address: IpAddr) -> bool {
        self.last.as_ref().is_some_and(|(_, sweep)| {
            let had = sweep
                .endpoints
                .as_ref()
                .is_none_or(|e| e.contains(&address));
            !had && !sweep.lost.contains(&address)
        })
    }

    /// True if a sweep that began after `later_than` found no flow, no flow mark and no entry of
    /// conntrack with an ENI's number.
    #[must_use]
    pub fn has_none_of(&self, eni: EniNumber, later_than: Instant) -> bool {
        self.last.as_ref().is_some_and(|(ended, sweep)| {
            let began = ended.checked_sub(sweep.took);
            let is_later = began.is_some_and(|began| began > later_than);
            is_later && !sweep.enis.contains(&eni) && sweep.unmarked.contains(&eni)
        })
    }

    /// The report of a sweep that found nothing where there was no endpoint.
    #[cfg(any(test, feature = "model"))]
    pub(super) fn of_nothing() -> Self {
        let sweep = Sweep {
            endpoints: Some(std::sync::Arc::default()),
            unmarked: (0..=u8::MAX).map(EniNumber).collect(),
            ..Sweep::default()
        };
        Self {
            last: Some((Instant::now(), sweep)),
            ..Self::default()
        }
    }

    pub(crate) fn take(&mut self, sweep: Sweep, capacities: Capacities) {
        self.reaped += sweep.reaped.idle;
        if sweep.is_pressed {
            self.reaped_pressed += sweep.reaped.idle;
        }
        self.gone += sweep.reaped.gone;
        self.corrected += sweep.quotas.corrected;
        self.used = Used::of(&sweep.census);
        self.capacities = Some(capacities);
        self.error.clone_from(&sweep.error);
        self.last = Some((Instant::now(), sweep));
    }
}
