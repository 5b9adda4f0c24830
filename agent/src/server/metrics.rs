//! The counters, for metrics.

use std::collections::BTreeMap;

use api::types::{Metric, NatStatus, ObjectKind, PoolStatus, RefusedKind};

/// The counters. They need only a read of the datapath's counters.
#[derive(Clone, Debug, Default)]
pub struct MetricsSnapshot {
    /// True if a pod without special requests can be added.
    pub is_ready: bool,
    /// Seconds since the agent's start.
    pub uptime_seconds: u64,
    /// Endpoints that work, and others.
    pub endpoints: (u64, u64),
    /// ENIs that are ready, and others.
    pub enis: (u64, u64),
    /// Programs of the datapath that the kernel interprets.
    pub interpreted: u64,
    /// Entries that are not used, by kind.
    pub refused: Vec<(RefusedKind, u64)>,
    /// The counters of the agent's own addresses.
    pub own: OwnAddressStats,
    /// The pools.
    pub pools: Vec<PoolStatus>,
    /// The datapath's counters.
    pub counters: Vec<Metric>,
    /// The state of the sweeper of flows.
    pub nat: NatStatus,
    /// The reconciler's counters.
    pub work: ReconcileStats,
    /// Objects repaired, by kind.
    pub repairs: BTreeMap<ObjectKind, u64>,
    /// The calls to the API server.
    pub api_server: ApiServerStats,
}

/// The agent's own addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnAddressStats {
    /// Addresses in use.
    pub in_use: u64,
    /// Calls and steps for them that have failed.
    pub failures: u64,
}

/// Calls to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServerStats {
    /// Requests, by method.
    pub requests: Vec<(&'static str, u64)>,
    /// Answers, by class.
    pub responses: Vec<(&'static str, u64)>,
}

/// The reconciler's counters since the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconcileStats {
    /// Passes, of all of the node or of some endpoints.
    pub passes: u64,
    /// Changes of the kernel.
    pub steps: u64,
    /// Those that failed.
    pub failures: u64,
}

impl ReconcileStats {
    /// Counts a pass.
    pub(crate) fn count(&mut self, steps: usize, failures: usize) {
        let add = |to: &mut u64, more: usize| {
            *to = to.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        };
        add(&mut self.passes, 1);
        add(&mut self.steps, steps);
        add(&mut self.failures, failures);
    }
}
