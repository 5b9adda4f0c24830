//! The actor's use of the agent's own addresses: on the host, or by an endpoint in a namespace.

mod pools;
pub(crate) mod task;

use std::collections::BTreeSet;
use std::net::IpAddr;

use tokio::sync::watch;

use self::pools::OwnPools;
use crate::actor::Actor;
use crate::actor::commands::Forgotten;
use crate::allocation::{Addresses, is_own};
use crate::host::kernel::Host;
use crate::host::netns::is_another;
use crate::server::{AddressRequest, AddressSpec, EndpointRequest, IngressCommand};
use api::ids::{EndpointId, Owner};
use api::{ApiError, ErrorCode};
use config::Ingress;
use ipam::Family;

/// The state of the task that keeps the addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IngressReport {
    /// The problems.
    pub(crate) problems: Vec<String>,
    /// Number of calls and steps that have failed.
    pub(crate) failures: u64,
}

/// State of the agent's own addresses, without their leases.
#[derive(Debug)]
pub(crate) struct OwnAddresses {
    pub(crate) mode: Ingress,
    pub(crate) report: watch::Receiver<IngressReport>,
    pools: OwnPools,
}

impl OwnAddresses {
    /// State of addresses that are drawn from a pool.
    pub(crate) fn new(mode: Ingress, pool: &str, report: watch::Receiver<IngressReport>) -> Self {
        Self {
            mode,
            report,
            pools: OwnPools::unread(pool),
        }
    }

    /// State without addresses.
    pub(crate) fn none() -> Self {
        let report = watch::channel(IngressReport::default()).1;
        Self::new(Ingress::Off, ipam::DEFAULT_POOL, report)
    }
}

impl<K: Host> Actor<K> {
    /// Restores the addresses of an earlier agent, before the first pass.
    pub(crate) fn start_ingress(&mut self, own: OwnAddresses) {
        // With the mode off they stay until their keeper gives them up.
        if !matches!(own.mode, Ingress::Netns(_)) {
            let owners = self.addresses.owners().keys();
            let owners = owners.filter(|owner| is_own(owner));
            let held = owners.flat_map(|owner| self.addresses.held_by(owner));
            self.intent.settings.host.ingress = held.map(|lease| lease.address).collect();
        }
        self.own = own;
        let owners = match self.own.mode {
            Ingress::Off => Vec::new(),
            Ingress::On | Ingress::Netns(_) => self.own_owners(),
        };
        let held = owners
            .iter()
            .flat_map(|owner| self.addresses.held_by(owner));
        self.own.pools.restore(held.collect());
        self.publish_ingress();
    }

    /// Answers the keeper of the addresses.
    pub(crate) async fn ingress_command(&mut self, command: IngressCommand) {
        // A send fails only if the task has ended with the agent.
        match command {
            IngressCommand::Name(reply) => drop(reply.send(self.node_name())),
            IngressCommand::Problems(reply) => drop(reply.send(Ok(self.ingress_problems()))),
            IngressCommand::Owners(reply) => drop(reply.send(Ok(self.own_owners()))),
            IngressCommand::Allocate(owner, families, reply) => {
                drop(reply.send(self.allocate_ingress(&owner, &families)));
            }
            IngressCommand::Take(owner, addresses, reply) => {
                let taken = self.take_ingress(&owner, addresses).await;
                self.publish_ingress();
                reply.send(taken).ok();
            }
            IngressCommand::Leave(owner, reply) => {
                let left = self.leave_ingress(&owner).await;
                self.publish_ingress();
                reply.send(left).ok();
            }
        }
    }

    /// The agent's owners that garbage collection must keep.
    pub(crate) fn kept_owners(&self) -> Vec<Owner> {
        let mut owners = self.own_owners();
        // The delegated plugin may have allocated an address that is not known here yet.
        if self.own.mode != Ingress::Off
            && let Ok(name) = self.node_name()
        {
            let owner = owner(&name);
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        owners
    }

    /// The agent's own addresses that are in use.
    pub(crate) fn ingress_addresses(&self) -> BTreeSet<IpAddr> {
        self.own.pools.in_use().unwrap_or_default()
    }

    /// The problems of the task.
    pub(crate) fn ingress_problems(&self) -> Vec<String> {
        self.own.report.borrow().problems.clone()
    }

    fn own_owners(&self) -> Vec<Owner> {
        let endpoints = self.intent.endpoints.values().map(|one| &one.owner);
        let owners = self.addresses.owners().keys().chain(endpoints);
        owners.filter(|owner| is_own(owner)).cloned().collect()
    }

    fn node_name(&self) -> Result<String, ApiError> {
        let node = self.documents.source.value.as_ref();
        let name = node.map(|_| self.intent.node.name.clone());
        name.ok_or_else(|| ApiError::new(ErrorCode::NotReady, "no node document yet"))
    }

    fn publish_ingress(&mut self) {
        let addresses = self.own.pools.in_use();
        let is_new = self.signals.ingress.send_if_modified(|published| {
            let is_new = *published != addresses;
            *published = addresses;
            is_new
        });
        if is_new {
            self.signals.changed.notify_one();
        }
    }

    /// Allocates addresses for the agent itself. If its own pools lack some, they come from the
    /// allocator of pods' addresses. While that allocator waits for its start, the result is empty.
    pub(crate) fn allocate_ingress(
        &mut self,
        owner: &Owner,
        families: &BTreeSet<Family>,
    ) -> Result<BTreeSet<IpAddr>, ApiError> {
        let now = Addresses::now();
        let allocated = self.own.pools.allocate(owner, families, now);
        let lacking = self.own.pools.lacking();
        if allocated.is_err() && !lacking.is_empty() {
            self.update_addresses();
            if !self.addresses.gives() {
                return Ok(BTreeSet::new());
            }
            let request = AddressRequest {
                owner: owner.clone(),
                addresses: BTreeSet::new(),
                ask: Box::new(AddressSpec {
                    families: lacking.keys().copied().collect(),
                    pools: lacking,
                    ..AddressSpec::default()
                }),
            };
            for given in self.lease(&request)?.addresses {
                self.own.pools.give(given.address, given.pool);
            }
        }
        let allocated = self.own.pools.allocate(owner, families, now);
        allocated.map_err(|error| self.addresses.refusal(&error))
    }

    /// Uses exactly these addresses of an owner, and releases its others.
    pub(crate) async fn take_ingress(
        &mut self,
        owner: &Owner,
        addresses: BTreeSet<IpAddr>,
    ) -> Result<(), ApiError> {
        let held = self.addresses.held_by(owner);
        if !held.iter().all(|lease| addresses.contains(&lease.address)) {
            self.leave_ingress(owner).await?;
        }
        self.use_ingress(owner, addresses.clone()).await?;
        let mut leases = self.addresses.held_by(owner);
        leases.retain(|lease| addresses.contains(&lease.address));
        let taken = self.own.pools.take(owner, &leases, Addresses::now());
        taken.map_err(|error| self.addresses.refusal(&error))
    }

    async fn use_ingress(
        &mut self,
        owner: &Owner,
        addresses: BTreeSet<IpAddr>,
    ) -> Result<(), ApiError> {
        self.node_name()?;
        let netns = match &self.own.mode {
            Ingress::Netns(path) => Some(path.clone()),
            Ingress::Off | Ingress::On => None,
        };
        let endpoint = self.intent.endpoints.get(&EndpointId::of(owner));
        let is_other = endpoint.is_some_and(|endpoint| {
            let is_elsewhere = Some(&endpoint.netns) != netns.as_ref();
            is_elsewhere || endpoint.addresses != addresses || is_another(endpoint)
        });
        if is_other {
            self.delete_own_endpoint(owner).await?;
        }
        if let Some(netns) = netns {
            let request = EndpointRequest {
                owner: owner.clone(),
                netns,
                addresses,
                ask: Box::new(AddressSpec::default()),
            };
            let mut added = self.add(vec![request]).await;
            return added.pop().map_or(Ok(()), |added| added.map(drop));
        }
        if self.intent.settings.host.ingress == addresses {
            return Ok(());
        }
        self.look().await;
        self.update_addresses();
        self.adopt_ingress(owner, &addresses)?;
        self.intent.settings.host.ingress = addresses;
        self.run_pass().await;
        Ok(())
    }

    /// Deletes the endpoint of an owner. The owner keeps its addresses if its endpoint is known.
    async fn delete_own_endpoint(&mut self, owner: &Owner) -> Result<(), ApiError> {
        let endpoint = self.intent.endpoints.get(&EndpointId::of(owner));
        if endpoint.is_none_or(|endpoint| endpoint.owner != *owner) {
            let deleted = self.delete(std::slice::from_ref(owner)).await;
            return deleted.into_iter().collect();
        }
        self.keep_own_addresses(owner)?;
        if let Forgotten::Endpoint(id, addresses) = self.forget_owner(owner)? {
            self.run_endpoints([(id, addresses)].into()).await;
        }
        Ok(())
    }

    /// Records an owner of the agent's own addresses as one without an endpoint. Its addresses stay
    /// allocated.
    pub(crate) fn keep_own_addresses(&mut self, owner: &Owner) -> Result<(), ApiError> {
        self.addresses
            .is_without_endpoint(owner, &AddressSpec::default());
        self.addresses.claim(owner);
        if self.addresses.save() {
            return Ok(());
        }
        let message = "the agent's own addresses could not be written to disk; see the log";
        Err(ApiError::new(ErrorCode::StateNotWritten, message))
    }

    /// Makes addresses the agent's own, all or none.
    fn adopt_ingress(
        &mut self,
        owner: &Owner,
        addresses: &BTreeSet<IpAddr>,
    ) -> Result<(), ApiError> {
        let held = self.addresses.held_by(owner);
        let is_held = |address: &IpAddr| held.iter().any(|lease| lease.address == *address);
        let admission = self.admission()?;
        for address in addresses.iter().filter(|address| !is_held(address)) {
            admission.device_for(*address)?;
        }
        let adopted = self.addresses.adopt(owner, addresses);
        adopted.map_err(|error| self.addresses.refusal(&error))?;
        self.keep_own_addresses(owner)
    }

    pub(crate) async fn leave_ingress(&mut self, owner: &Owner) -> Result<(), ApiError> {
        let held: BTreeSet<IpAddr> = self
            .addresses
            .held_by(owner)
            .iter()
            .map(|lease| lease.address)
            .collect();
        if !self.intent.settings.host.ingress.is_disjoint(&held) {
            // An older agent may have made them foreign addresses of the host. This pass makes them
            // ours again, because only our own are ever removed.
            self.run_pass().await;
            let on_host = &mut self.intent.settings.host.ingress;
            on_host.retain(|address| !held.contains(address));
            self.run_pass().await;
        }
        self.delete_own_endpoint(owner).await?;
        self.own.pools.release(owner);
        if !self.addresses.release(owner, Addresses::now()).is_empty() {
            self.addresses.save();
            self.update_addresses();
        }
        Ok(())
    }
}

/// The owner of the addresses of a node's agent.
pub(crate) fn owner(node: &str) -> Owner {
    let owner = ingress::Request::owner(node);
    Owner {
        container_id: owner.container_id,
        interface: owner.interface,
    }
}
