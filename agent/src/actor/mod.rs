//! The task that owns the node's state: endpoints, the reconciler, the kernel. Everything happens
//! here, one thing after the other.

pub(crate) mod admission;
mod check;
pub(crate) mod commands;
pub(crate) mod deferred_deletes;
mod detours;
pub(crate) mod ingress;
mod orphans;
pub(crate) mod pacer;
mod passes;
mod placing;
pub(crate) mod policy;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use api::ids::{EndpointId, EniNumber, Owner};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use loader::intent::masquerade::Policy;
use loader::intent::{Intent, Node, Settings};
use loader::kernel::Observed;
use loader::netfilter::bypassed::Bypassed;
use loader::netfilter::conntrack::Exhaustion;
use loader::netfilter::service_nat::Missed;
use loader::netlink::Change;
use loader::reconcile::{Pass, Reconciler};
use loader::stamp::Stamp;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant as Timer, sleep_until};

use super::allocation::{Addresses, is_own};
use crate::actor::deferred_deletes::Pending;
use crate::actor::detours::Detours;
use crate::actor::ingress::OwnAddresses;
use crate::actor::pacer::{Look, Pacer};
use crate::actor::policy::PolicyFiles;
use crate::cluster::{ClusterWarnings, DemandQuery, Signals};
use crate::host::kernel::Host;
use crate::host::netns;
use crate::server::Command;
use crate::server::ReconcileStats;
use crate::state::store::{Store, Stored};
use flows as nat;
use sources::node::NodeSource;
use sources::numbering::Numbering;

/// The owner of the node's state.
pub(crate) struct Actor<K> {
    pub(crate) reconciler: Reconciler<K>,
    /// Follows the document; its node is empty until the first good one.
    pub(crate) intent: Intent,
    pub(crate) source: NodeSource,
    /// Pool documents and ip-masq-agent files, as they were last seen.
    pub(crate) files: PolicyFiles,
    pub(crate) document: PathBuf,
    /// Configured MTU of pods, in bytes.
    pub(crate) mtu: Option<u32>,
    pub(crate) store: Store,
    /// The owners of addresses.
    pub(crate) addresses: Addresses,
    /// The ENIs' numbers and last good forms.
    pub(crate) numbering: Numbering,
    /// Deletes that the CNI plugin left.
    pub(crate) pending: Pending,
    /// Records that cannot be read. Their endpoints are orphans.
    pub(crate) corrupt: BTreeMap<EndpointId, PathBuf>,
    /// True if endpoints were looked for whose records are lost.
    pub(crate) has_orphans: bool,
    /// Reason for which a removed record could not be rewritten.
    pub(crate) unsaved: Option<String>,
    pub(crate) pass: Pass,
    /// True if endpoints were added or deleted since that pass.
    pub(crate) is_outdated: bool,
    /// An observation of a moment ago, for the pass that follows at once.
    pub(crate) seen: Option<Observed>,
    /// The device that each ENI was seen on last.
    pub(crate) last_devices: BTreeMap<EniNumber, u32>,
    pub(crate) started: Instant,
    /// Counters of passes.
    pub(crate) work: ReconcileStats,
    /// The sweeper of translated flows.
    pub(crate) nat: nat::Handle,
    /// Messages about the cluster, for the status.
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
    /// Signals that wake the writer.
    pub(crate) signals: Arc<Signals>,
    pub(crate) pacer: Pacer,
    /// The folders of records and of deletes before the last pass.
    folders: [Stamp; 2],
    /// The agent's own addresses.
    pub(crate) own: OwnAddresses,
    /// True if the kernel refused the last subscription to its events, which was logged then.
    events_unavailable: bool,
}

impl<K: Host> Actor<K> {
    pub(crate) fn new(
        kernel: K,
        settings: Settings,
        mtu: Option<u32>,
        document: PathBuf,
        (store, stored): (Store, Stored),
        (addresses, pending, numbering): (Addresses, Pending, Numbering),
        nat: nat::Handle,
    ) -> Self {
        let Stored { endpoints, corrupt } = stored;
        Self {
            reconciler: Reconciler::new(kernel, Instant::now),
            intent: Intent {
                node: Node::default(),
                endpoints,
                settings,
                policy: Policy::default(),
            },
            files: PolicyFiles::default(),
            source: NodeSource::default(),
            document,
            mtu,
            store,
            addresses,
            numbering,
            pending,
            corrupt,
            has_orphans: false,
            unsaved: None,
            pass: Pass::default(),
            is_outdated: false,
            seen: None,
            last_devices: BTreeMap::new(),
            started: Instant::now(),
            work: ReconcileStats::default(),
            nat,
            cluster_warnings: ClusterWarnings::default(),
            bypassed: Bypassed::default(),
            detours: Detours::default(),
            missed: Missed::default(),
            conntrack: Exhaustion::default(),
            warnings: Vec::new(),
            signals: Arc::default(),
            pacer: Pacer::new(),
            folders: Default::default(),
            own: OwnAddresses::none(),
            events_unavailable: false,
        }
    }

    /// Serves until the commands end or `stop` resolves.
    pub(crate) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut document: watch::Receiver<NodeSource>,
        files: PolicyFiles,
        mut demand_queries: mpsc::Receiver<DemandQuery>,
        stop: impl Future<Output = ()>,
    ) {
        tokio::pin!(stop);
        let mut events = None;
        // The subscription precedes the first observation, so that no change is missed.
        self.subscribe(&mut events);
        self.files = files;
        self.look_once().await;
        self.take_policy();
        self.take_document(&mut document);
        loop {
            let (at, look) = self.pacer.due(Timer::now());
            tokio::select! {
                () = &mut stop => return,
                command = commands.recv() => match command {
                    Some(command) => self.serve(command, &mut commands).await,
                    None => return,
                },
                Ok(()) = document.changed() => self.take_document(&mut document),
                () = self.files.changed() => self.take_policy(),
                // Without a cluster there are no requests.
                Some(ask) = demand_queries.recv() => self.answer_demand(ask),
                change = next(&mut events) => match change {
                    Some(change) => self.pacer.event(Timer::now(), change),
                    None => events = None,
                },
                () = sleep_until(at) => {
                    self.subscribe(&mut events);
                    match look {
                        Look::Glance => self.glance().await,
                        Look::Pass => self.run_pass().await,
                    }
                }
            }
            self.tell_writer();
        }
    }

    /// Wakes the writer if the demand may have changed. That has to follow the change: an earlier
    /// check would find nothing, and the next one would be a minute later.
    fn tell_writer(&mut self) {
        if !self.addresses.take_news() {
            return;
        }
        if self.addresses.has_claims_to_write() {
            self.signals.waiting.notify_one();
        } else {
            self.signals.changed.notify_one();
        }
    }

    /// Subscribes to the kernel's events where there is no subscription. Without one audits
    /// still find every change, later.
    fn subscribe(&mut self, events: &mut Option<BoxStream<'static, Change>>) {
        if events.is_none() {
            match self.reconciler.kernel().events() {
                Ok(stream) => {
                    *events = Some(stream);
                    self.events_unavailable = false;
                }
                // Once, not with every pass.
                Err(error) => {
                    if !std::mem::replace(&mut self.events_unavailable, true) {
                        tracing::warn!("no events from the kernel: {error:#}");
                    }
                }
            }
        }
    }

    fn take_document(&mut self, document: &mut watch::Receiver<NodeSource>) {
        self.source = document.borrow_and_update().clone();
        self.take_node();
    }

    /// Answers with the node's demand and kept blocks, if the request is about the current
    /// document.
    fn answer_demand(&mut self, ask: DemandQuery) {
        let DemandQuery { generation, reply } = ask;
        let is_taken = self.source.value.is_some() && self.source.generation == generation;
        let demand = if is_taken {
            self.update_addresses();
            self.addresses.demand(&self.intent)
        } else {
            None
        };
        // The caller may have gone.
        reply.send(demand).ok();
    }

    /// Updates the policy from its files and the cluster's services. The last valid version of an
    /// invalid file stays in force.
    fn take_policy(&mut self) {
        let used = self.addresses.pools_in_use();
        self.intent.policy = self.files.policy(&used);
        self.intent.settings.cluster_services = self.files.services();
        self.take_node();
        self.pacer.event(Timer::now(), Change::Own);
    }

    /// Takes the policy again where a pool that was deleted is in use no more.
    fn drop_unused_pools(&mut self) {
        let pools = self.intent.policy.pools.iter();
        let mut removed = pools.flat_map(|pools| pools.removed());
        let used = self.addresses.pools_in_use();
        let is_due = removed.any(|name| !used.contains(name));
        drop(removed);
        if is_due {
            self.take_policy();
        }
    }

    /// Observes the kernel unless that has been done.
    async fn look_once(&mut self) {
        if self.reconciler.kernel().facts().is_none()
            && let Err(error) = self.reconciler.kernel_mut().observe().await
        {
            tracing::warn!("the kernel could not be read: {error:#}");
        }
    }

    /// Forgets endpoints whose namespace and device are both gone: that pod is dead, and the
    /// runtime may never say so. The agent's own addresses stay allocated to it.
    fn drop_dead(&mut self) {
        let Some(facts) = self.reconciler.kernel().facts() else {
            return;
        };
        let devices = facts.devices();
        let dead: Vec<_> = self
            .intent
            .endpoints
            .iter()
            .filter(|(id, endpoint)| {
                let is_gone = || endpoint.is_orphan() || netns::is_gone(endpoint);
                !devices.contains(id.device().as_str()) && is_gone()
            })
            .map(|(id, _)| *id)
            .collect();
        let owners = dead.iter().filter_map(|id| self.intent.endpoints.get(id));
        let owners = owners.map(|endpoint| endpoint.owner.clone());
        let (own, owners): (Vec<Owner>, Vec<Owner>) = owners.partition(is_own);
        for owner in &own {
            if let Err(error) = self.keep_own_addresses(owner) {
                tracing::error!(%owner, "{error}");
            }
        }
        let now = self.addresses.announce_release(&owners);
        for id in dead {
            match self.forget(id) {
                Ok(None) => {}
                Ok(Some(owner)) => {
                    if !is_own(&owner) {
                        self.addresses.release(&owner, now);
                    }
                    tracing::info!(%owner, "endpoint dropped: its namespace is gone");
                }
                Err(error) => {
                    tracing::error!("cannot delete the record of a dead endpoint: {error:#}");
                }
            }
        }
    }

    /// Removes an endpoint from disk and from the intent; its owner, if it was known.
    pub(crate) fn forget(&mut self, id: EndpointId) -> anyhow::Result<Option<Owner>> {
        self.store.remove(id)?;
        let endpoint = self.intent.endpoints.remove(&id);
        Ok(endpoint.map(|endpoint| endpoint.owner))
    }

    /// Removes what is left of deleted endpoints' records, as far as their devices are gone.
    fn forget_deleted(&mut self) {
        if let Some(facts) = self.reconciler.kernel().facts() {
            let devices = facts.devices();
            let is_gone = |id: EndpointId| !devices.contains(id.device().as_str());
            self.store.forget_deleted(is_gone);
        }
    }
}

/// Waits for an event; none when there will be no more. Waits for ever where there is no
/// subscription.
async fn next(events: &mut Option<BoxStream<'static, Change>>) -> Option<Change> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
