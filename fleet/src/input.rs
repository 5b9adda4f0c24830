//! Events that a fleet handles.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::Failure;
use cloud::call::query::Page;
use cloud::node::Outcome;
use ipam::Time;
use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Value;

use crate::WorkId;

/// The time, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The operator's own clock, which is never set back.
    pub now: Time,
    /// The time of day, for tags, tokens and reports.
    pub date: Timestamp,
}

/// The standing of this operator among others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Another operator leads: objects are followed, and there is no work.
    #[default]
    Following,
    /// EC2 is read and steps are planned, but nothing is changed (`--dry-run`).
    Watching,
    /// This operator leads. No change begins that could end after the lease.
    Leading {
        /// The end of the lease by the operator's own clock.
        until: Time,
    },
}

/// An event.
#[derive(Clone, Debug)]
pub enum Input {
    /// The standing changed, or the lease was renewed. Leading after anything else begins an epoch.
    Standing(Standing),
    /// Every `CiliumNode`, from a list. Objects that it lacks are gone.
    Nodes(Vec<Value>),
    /// A `CiliumNode` that was added or changed, from a watch.
    Node(Box<Value>),
    /// A `CiliumNode` that was deleted.
    NodeGone {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Every `CiliumPodIPPool`. Nothing is planned before the first of these.
    Pools(Vec<Value>),
    /// The most pods of some nodes, as their kubelets have it: `status.allocatable.pods`.
    MaxPods(BTreeMap<String, u32>),
    /// The CIDRs of the cluster's services.
    Services(BTreeSet<IpNet>),
    /// Pods that wait for an address, by node. Nodes that are not named have none.
    Pods(BTreeMap<String, u32>),
    /// The names of all Nodes, from a list.
    Hosts(BTreeSet<String>),
    /// A Node that was added or deleted, from a watch.
    Host {
        /// Its name.
        name: String,
        /// False when it was deleted.
        is_there: bool,
    },
    /// The answer to [`Task::Call`](crate::Task::Call).
    Answer {
        /// The id of the work.
        id: WorkId,
        /// The answer.
        outcome: Outcome,
    },
    /// The answer to [`Task::Read`](crate::Task::Read).
    Page {
        /// The id of the work.
        id: WorkId,
        /// The page.
        page: Result<Page, Failure>,
    },
    /// The answer to [`Task::List`](crate::Task::List).
    Listed {
        /// The id of the work.
        id: WorkId,
        /// Every `CiliumNode` as it is now, or the reason that they could not be listed.
        objects: Result<Vec<Value>, String>,
    },
    /// The answer to [`Task::Patch`](crate::Task::Patch), [`Task::PatchPool`](crate::Task::PatchPool)
    /// or [`Task::Delete`](crate::Task::Delete).
    Written {
        /// The id of the work.
        id: WorkId,
        /// The answer.
        written: Written,
    },
}

/// The answer to a write.
#[derive(Clone, Debug)]
pub enum Written {
    /// It is done. After a patch, with the object as it is now.
    Done(Option<Box<Value>>),
    /// The object has another version (409). The next event has it.
    Conflict,
    /// There is no such object (404).
    Gone,
    /// The write failed, or its effect is not known.
    Failed {
        /// The reason.
        reason: String,
        /// The wait that the server requests (`Retry-After`).
        retry_after: Option<Duration>,
    },
}
