//! All nodes, and what is kept by node.

mod kubelet;
mod timers;

use std::collections::{BTreeMap, BTreeSet};

use cloud::InstanceId;
use cloud::call::budget::{Budgets, Queue};
use cloud::node::Progress;
use ipnet::IpNet;
use kubernetes::operation::bindings::PoolBindings;

use self::timers::Timers;
use super::Key;
use super::advertise::Advertised;
use super::objects::removal::Removals;
use crate::member::{Lacked, Member};

/// All nodes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) members: BTreeMap<String, Member>,
    /// Progress of each node. It outlives an object that is made again.
    pub(crate) progress: BTreeMap<String, Progress>,
    pub(crate) by_instance: BTreeMap<InstanceId, BTreeSet<String>>,
    /// Nodes whose plans are to be recomputed.
    pub(super) dirty: BTreeSet<String>,
    pub(super) timers: Timers,
    pub(super) lacked: Lacked,
    pub(crate) advertised: Advertised,
    pub(crate) removals: Removals,
}

/// Objects of the API server beside those of the nodes.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The most pods of each kubelet.
    pub(super) max_pods: BTreeMap<String, u32>,
    /// The CIDRs of the cluster's services; none before they are read.
    pub(super) services: Option<BTreeSet<IpNet>>,
    /// The number of waiting pods, by node.
    pub(super) waiting: BTreeMap<String, u32>,
    /// The pools; none before they are read.
    pub(crate) bindings: Option<PoolBindings>,
}

/// Calls of EC2 that change something, and the budgets of all calls.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) budgets: Budgets,
    pub(crate) queue: Queue<Key>,
}
