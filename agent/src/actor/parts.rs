//! The parts of the actor's state, and the inputs of its task.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use api::ids::{EndpointId, EniNumber};
use flows as nat;
use loader::kernel::Observed;
use loader::netfilter::bypassed::Bypassed;
use loader::netfilter::conntrack::Exhaustion;
use loader::netfilter::service_nat::Missed;
use loader::reconcile::Pass;
use loader::stamp::Stamp;
use sources::node::NodeSource;
use sources::numbering::Numbering;
use tokio::sync::{mpsc, watch};

use super::deferred_deletes::Pending;
use super::detours::Detours;
use super::pacer::Pacer;
use super::policy::PolicyFiles;
use crate::allocation::Addresses;
use crate::cluster::{ClusterWarnings, DemandQuery};
use crate::server::{Command, ReconcileStats};
use crate::state::store::{Store, Stored};

/// The state that an earlier agent left in files.
pub(crate) struct Restored {
    pub(crate) store: Store,
    pub(crate) stored: Stored,
    pub(crate) addresses: Addresses,
    pub(crate) pending: Pending,
    pub(crate) numbering: Numbering,
}

/// The inputs that the actor's task waits for.
pub(crate) struct Streams {
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) node: watch::Receiver<NodeSource>,
    pub(crate) files: PolicyFiles,
    /// Queries of the node's demand.
    pub(crate) demand_queries: mpsc::Receiver<DemandQuery>,
}

/// The documents in force.
pub(crate) struct Documents {
    /// The name of the node's document.
    pub(crate) path: PathBuf,
    pub(crate) source: NodeSource,
    /// Pool documents and ip-masq-agent files, as they were last seen.
    pub(crate) files: PolicyFiles,
    /// The ENIs' numbers and last good forms.
    pub(crate) numbering: Numbering,
    /// The device that each ENI was seen on last.
    pub(crate) last_devices: BTreeMap<EniNumber, u32>,
}

impl Documents {
    pub(super) fn new(numbering: Numbering) -> Self {
        Self {
            path: PathBuf::new(),
            source: NodeSource::default(),
            files: PolicyFiles::default(),
            numbering,
            last_devices: BTreeMap::new(),
        }
    }
}

/// Endpoints on disk.
pub(crate) struct Records {
    pub(crate) store: Store,
    /// Deletes that the CNI plugin left.
    pub(crate) pending: Pending,
    /// Records that cannot be read. Their endpoints are orphans.
    pub(crate) corrupt: BTreeMap<EndpointId, PathBuf>,
    /// True if endpoints were looked for whose records are lost.
    pub(crate) has_orphans: bool,
    /// Reason for which a removed record could not be rewritten.
    pub(crate) unsaved: Option<String>,
    /// The folders of records and of deletes before the last pass.
    pub(super) folders: [Stamp; 2],
}

impl Records {
    pub(super) fn new(
        store: Store,
        corrupt: BTreeMap<EndpointId, PathBuf>,
        pending: Pending,
    ) -> Self {
        Self {
            store,
            pending,
            corrupt,
            has_orphans: false,
            unsaved: None,
            folders: Default::default(),
        }
    }
}

/// Passes of the reconciler, and their pace.
pub(crate) struct Passes {
    pub(crate) last: Pass,
    /// True if endpoints were added or deleted since that pass.
    pub(crate) is_outdated: bool,
    /// An observation of a moment ago, for the pass that follows at once.
    pub(crate) seen: Option<Observed>,
    pub(crate) started: Instant,
    /// Counters of passes.
    pub(crate) work: ReconcileStats,
    pub(crate) pacer: Pacer,
    /// True if the kernel refused the last subscription to its events, which was logged then.
    pub(super) events_unavailable: bool,
}

impl Passes {
    pub(super) fn new() -> Self {
        Self {
            last: Pass::default(),
            is_outdated: false,
            seen: None,
            started: Instant::now(),
            work: ReconcileStats::default(),
            pacer: Pacer::new(),
            events_unavailable: false,
        }
    }
}

/// Observers whose findings the status has, beside the kernel's objects.
pub(crate) struct Observers {
    /// The sweeper of translated flows.
    pub(crate) nat: nat::Handle,
    /// Messages about the cluster.
    pub(crate) cluster_warnings: ClusterWarnings,
    /// The rules of netfilter that name something.
    pub(crate) bypassed: Bypassed,
    /// The paths of pods' packets.
    pub(crate) detours: Detours,
    /// Flows that are cut off for want of notes.
    pub(crate) missed: Missed,
    /// Shortages of conntrack entries.
    pub(crate) conntrack: Exhaustion,
    /// Settings of the agent that users may not have meant.
    pub(crate) warnings: Vec<String>,
}

impl Observers {
    pub(super) fn new(nat: nat::Handle) -> Self {
        Self {
            nat,
            cluster_warnings: ClusterWarnings::default(),
            bypassed: Bypassed::default(),
            detours: Detours::default(),
            missed: Missed::default(),
            conntrack: Exhaustion::default(),
            warnings: Vec::new(),
        }
    }
}
