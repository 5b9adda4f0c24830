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
pub(crate) mod parts;
mod passes;
mod placing;
pub(crate) mod policy;

use std::sync::Arc;
use std::time::Instant;

use api::ids::{EndpointId, Owner};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use loader::intent::masquerade::Policy;
use loader::intent::{Intent, Node, Settings};
use loader::netlink::Change;
use loader::reconcile::Reconciler;
use tokio::sync::watch;
use tokio::time::{Instant as Timer, sleep_until};

use super::allocation::{Addresses, is_own};
use crate::actor::ingress::OwnAddresses;
use crate::actor::pacer::Look;
use crate::actor::parts::{Documents, Observers, Passes, Records, Restored, Streams};
use crate::cluster::{DemandQuery, Signals};
use crate::host::kernel::Host;
use crate::host::netns;
use crate::state::store::Stored;
use flows as nat;
use sources::node::NodeSource;

/// The owner of the node's state.
pub(crate) struct Actor<K> {
    pub(crate) reconciler: Reconciler<K>,
    /// Follows the document; its node is empty until the first good one.
    pub(crate) intent: Intent,
    pub(crate) documents: Documents,
    pub(crate) records: Records,
    /// The owners of addresses.
    pub(crate) addresses: Addresses,
    /// The agent's own addresses.
    pub(crate) own: OwnAddresses,
    pub(crate) passes: Passes,
    pub(crate) observers: Observers,
    /// Signals that wake the writer.
    pub(crate) signals: Arc<Signals>,
    /// Configured MTU of pods, in bytes.
    pub(crate) mtu: Option<u32>,
}

impl<K: Host> Actor<K> {
    pub(crate) fn new(kernel: K, settings: Settings, restored: Restored, nat: nat::Handle) -> Self {
        let Stored { endpoints, corrupt } = restored.stored;
        Self {
            reconciler: Reconciler::new(kernel, Instant::now),
            intent: Intent {
                node: Node::default(),
                endpoints,
                settings,
                policy: Policy::default(),
            },
            documents: Documents::new(restored.numbering),
            records: Records::new(restored.store, corrupt, restored.pending),
            addresses: restored.addresses,
            own: OwnAddresses::none(),
            passes: Passes::new(),
            observers: Observers::new(nat),
            signals: Arc::default(),
            mtu: None,
        }
    }

    /// Serves until the commands end or `stop` resolves.
    pub(crate) async fn run(mut self, streams: Streams, stop: impl Future<Output = ()>) {
        let Streams {
            mut commands,
            mut node,
            files,
            mut demand_queries,
        } = streams;
        tokio::pin!(stop);
        let mut events = None;
        // The subscription precedes the first observation, so that no change is missed.
        self.subscribe(&mut events);
        self.documents.files = files;
        self.look_once().await;
        self.take_policy();
        self.take_document(&mut node);
        loop {
            let (at, look) = self.passes.pacer.due(Timer::now());
            tokio::select! {
                () = &mut stop => return,
                command = commands.recv() => match command {
                    Some(command) => self.serve(command, &mut commands).await,
                    None => return,
                },
                Ok(()) = node.changed() => self.take_document(&mut node),
                () = self.documents.files.changed() => self.take_policy(),
                // Without a cluster there are no requests.
                Some(ask) = demand_queries.recv() => self.answer_demand(ask),
                change = next(&mut events) => match change {
                    Some(change) => self.passes.pacer.event(Timer::now(), change),
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
                    self.passes.events_unavailable = false;
                }
                // Once, not with every pass.
                Err(error) => {
                    if !std::mem::replace(&mut self.passes.events_unavailable, true) {
                        tracing::warn!("no events from the kernel: {error:#}");
                    }
                }
            }
        }
    }

    fn take_document(&mut self, node: &mut watch::Receiver<NodeSource>) {
        self.documents.source = node.borrow_and_update().clone();
        self.take_node();
    }

    /// Answers with the node's demand and kept blocks, if the request is about the current
    /// document.
    fn answer_demand(&mut self, ask: DemandQuery) {
        let DemandQuery { generation, reply } = ask;
        let is_taken =
            self.documents.source.value.is_some() && self.documents.source.generation == generation;
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
        self.intent.policy = self.documents.files.policy(&used);
        self.intent.settings.services.cluster = self.documents.files.services();
        self.take_node();
        self.passes.pacer.event(Timer::now(), Change::Own);
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
        self.records.store.remove(id)?;
        let endpoint = self.intent.endpoints.remove(&id);
        Ok(endpoint.map(|endpoint| endpoint.owner))
    }

    /// Removes what is left of deleted endpoints' records, as far as their devices are gone.
    fn forget_deleted(&mut self) {
        if let Some(facts) = self.reconciler.kernel().facts() {
            let devices = facts.devices();
            let is_gone = |id: EndpointId| !devices.contains(id.device().as_str());
            self.records.store.forget_deleted(is_gone);
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
