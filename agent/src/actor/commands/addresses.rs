//! Commands of the socket that concern addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::{EndpointId, Owner};
use api::types;
use api::types::{AllocationStatus, Leased, LeasedAddress, PoolStatus};
use api::{ApiError, ErrorCode};

use crate::actor::Actor;
use crate::allocation::Addresses;
use crate::allocation::adapter::{conflicts, eni_ref};
use crate::host::kernel::Host;
use crate::server::{AddressCommand, AddressRequest};

/// Most addresses that one problem names.
const NAMED: usize = 5;

impl<K: Host> Actor<K> {
    /// Answers a command about addresses.
    pub(crate) async fn address_command(&mut self, command: AddressCommand) {
        // A caller that went away needs no answer.
        match command {
            AddressCommand::Lease(request, reply) => {
                if self.documents.source.value.is_some() {
                    self.look().await;
                }
                reply.send(self.lease(&request)).ok();
                // The observation holds only for this moment.
                self.passes.seen = None;
            }
            AddressCommand::Claim(owner, reply) => drop(reply.send(self.claim(&owner))),
            AddressCommand::Release(owner, reply) => {
                drop(reply.send(self.release_addresses(&owner)));
            }
            AddressCommand::List(reply) => drop(reply.send(Ok(self.list_addresses()))),
            AddressCommand::Pools(reply) => drop(reply.send(Ok(self.list_pools()))),
        }
    }

    /// Gives an owner addresses without an endpoint. They are on disk when this returns.
    pub(crate) fn lease(&mut self, request: &AddressRequest) -> Result<Leased, ApiError> {
        self.check_enabled()?;
        let AddressRequest {
            owner,
            addresses,
            ask,
        } = request;
        if let Some(endpoint) = self.intent.endpoints.get(&EndpointId::of(owner)) {
            return Err(has_endpoint(&endpoint.owner));
        }
        self.update_addresses();
        let had = self.addresses.held_by(owner);
        let given = self.addresses.allocate(owner, addresses, ask);
        let given = given.map_err(|error| self.addresses.refusal(&error))?;
        if self.addresses.held_by(owner) != had {
            self.addresses.is_without_endpoint(owner, ask);
            if !self.addresses.save() {
                if had.is_empty() {
                    self.addresses.take_back(owner, ask.pod.as_ref(), true);
                }
                let message = "the lease could not be written to disk; see the log";
                return Err(ApiError::new(ErrorCode::StateNotWritten, message));
            }
        }
        tracing::info!(%owner, "addresses given");
        let addresses = given.iter().map(|given| LeasedAddress {
            address: given.lease.address,
            pool: given.pool.clone(),
            skip_masquerade: given.skip_masquerade,
            eni: given.details.as_ref().map(eni_ref),
            gateway: given.details.as_ref().and_then(|eni| eni.gateway),
            subnet: given.details.as_ref().and_then(|eni| eni.subnet),
            vpc_cidrs: given
                .details
                .as_ref()
                .map(|eni| eni.vpc_cidrs.clone())
                .unwrap_or_default(),
        });
        Ok(Leased {
            owner: owner.clone(),
            addresses: addresses.collect(),
            expires_seconds: self.addresses.expires(owner),
        })
    }

    fn claim(&mut self, owner: &Owner) -> Result<(), ApiError> {
        if self.addresses.claim(owner).is_empty() {
            let message = format!("{owner} has no address; an unclaimed one expires");
            return Err(ApiError::new(ErrorCode::UnknownLease, message));
        }
        if self.addresses.save() {
            return Ok(());
        }
        let message = "the claim could not be written to disk; see the log";
        Err(ApiError::new(ErrorCode::StateNotWritten, message))
    }

    fn release_addresses(&mut self, owner: &Owner) -> Result<(), ApiError> {
        let endpoint = self.intent.endpoints.get(&EndpointId::of(owner));
        if endpoint.is_some_and(|endpoint| endpoint.owner == *owner) {
            return Err(has_endpoint(owner));
        }
        if !self.addresses.release(owner, Addresses::now()).is_empty() {
            tracing::info!(%owner, "addresses released");
            // If that fails, a restart finds the lease, and the runtime collects it.
            self.addresses.save();
            self.update_addresses();
        }
        Ok(())
    }

    pub(crate) fn list_addresses(&self) -> types::Addresses {
        self.addresses.list(&self.intent, &self.observers.nat)
    }

    /// State of allocation.
    pub(crate) fn allocation_status(&self) -> AllocationStatus {
        let bad = self.records.pending.bad();
        let mut status = self
            .addresses
            .status(&self.intent, &self.observers.nat, bad);
        if status.enabled {
            status.problems.extend(conflicts(&self.intent.node));
            status.problems.extend(self.other_policies());
        }
        status
    }

    /// Addresses that leave by another policy than that of the pool which gave them.
    fn other_policies(&self) -> impl Iterator<Item = String> {
        let mut differing: BTreeMap<(&str, &str), BTreeSet<IpAddr>> = BTreeMap::new();
        for endpoint in self.intent.endpoints.values() {
            for address in &endpoint.addresses {
                let policy = self.intent.policy_of(endpoint, *address);
                if let Some(pool) = self.intent.given_by(endpoint, *address)
                    && pool != policy
                {
                    differing
                        .entry((pool, policy))
                        .or_default()
                        .insert(*address);
                }
            }
        }
        differing.into_iter().map(|((pool, policy), addresses)| {
            let shown = addresses.iter().take(NAMED).map(ToString::to_string);
            let shown = shown.collect::<Vec<_>>().join(", ");
            let more = match addresses.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!(
                "{shown}{more} of pool {pool}: the masquerade policy is that of pool {policy}, because \
                 spec.ipam.pools.allocated has the block there"
            )
        })
    }

    /// The pools with their blocks.
    pub(crate) fn list_pools(&self) -> Vec<PoolStatus> {
        self.addresses.pools()
    }
}

fn has_endpoint(owner: &Owner) -> ApiError {
    let message = format!("{owner} has an endpoint with its addresses; delete that");
    ApiError::new(ErrorCode::EndpointExists, message)
}
