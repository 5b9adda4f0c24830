//! Addresses for endpoints: given before the record is written, and given back after it is gone.

use std::collections::BTreeSet;

use api::ids::{EndpointId, Owner};
use api::{ApiError, ErrorCode};
use loader::intent::Endpoint;

use crate::actor::Actor;
use crate::actor::commands::Admitted;
use crate::allocation::NodeInputs;
use crate::fault_points::{self, Point};
use crate::host::kernel::Host;
use crate::server::{AddressSpec, EndpointRequest};

impl<K: Host> Actor<K> {
    /// Updates the allocator with the state of the node, and records the changes that are due by
    /// time.
    pub(crate) fn update_addresses(&mut self) {
        let Some(facts) = self.reconciler.kernel().facts() else {
            return;
        };
        let own = self.intent.settings.host.ingress.clone();
        // The agent's own are leased.
        let on_devices = facts.host.keys().copied();
        let on_devices = on_devices.filter(|address| !own.contains(address));
        // Addresses of endpoints that could neither be made nor removed.
        let lingering = self.passes.last.lingering.iter().flatten().copied();
        let configured = self.intent.settings.host.addresses.iter().copied();
        let enis = &self.passes.last.view.enis;
        let ready = enis.iter();
        let ready = ready.filter(|(_, view)| view.for_new_pods().is_ready());
        let ready = ready.filter_map(|(number, _)| self.intent.node.enis.get(number));
        let ready: BTreeSet<String> = ready.map(|eni| eni.id.clone()).collect();
        self.addresses.update(&NodeInputs {
            intent: &self.intent,
            generation: self.documents.source.generation,
            taken: on_devices.chain(lingering).chain(configured).collect(),
            ready: (!enis.is_empty() || self.intent.node.enis.is_empty()).then_some(ready),
            lingering: self.passes.last.lingering.as_ref(),
            nat: &self.observers.nat,
        });
    }

    /// Fills in the addresses of a request without any: those of the owner's endpoint, or else new
    /// ones.
    pub(crate) fn with_addresses(
        &mut self,
        mut request: EndpointRequest,
    ) -> Result<EndpointRequest, ApiError> {
        if !request.addresses.is_empty() {
            return Ok(request);
        }
        let existing = self.intent.endpoints.get(&EndpointId::of(&request.owner));
        if let Some(existing) = existing.filter(|endpoint| endpoint.owner == request.owner) {
            request.addresses.clone_from(&existing.addresses);
            return Ok(request);
        }
        self.check_enabled()?;
        let EndpointRequest { owner, ask, .. } = &request;
        let given = self.addresses.allocate(owner, &BTreeSet::new(), ask);
        let given = given.map_err(|error| self.addresses.refusal(&error))?;
        request.addresses = given.iter().map(|given| given.lease.address).collect();
        Ok(request)
    }

    /// Refuses to allocate where the configuration says so.
    pub(crate) fn check_enabled(&self) -> Result<(), ApiError> {
        if self.addresses.is_enabled() {
            return Ok(());
        }
        let message = "missing; with ipam.enabled: false one address of each family is needed";
        Err(ApiError::new(ErrorCode::InvalidField, message).at("addresses"))
    }

    /// Gives a new endpoint its addresses and puts it on disk. The record has the leases, so
    /// nothing else has to be written.
    pub(crate) fn record_with_leases(
        &mut self,
        mut endpoint: Endpoint,
        ask: &AddressSpec,
    ) -> Result<Admitted, ApiError> {
        let owner = endpoint.owner.clone();
        if self.addresses.is_enabled() {
            let given = self.addresses.allocate(&owner, &endpoint.addresses, ask);
            given.map_err(|error| self.addresses.refusal(&error))?;
            endpoint.about.leases = self.addresses.held_by(&owner);
            for lease in &mut endpoint.about.leases {
                lease.claim = ipam::Claim::Claimed;
            }
        } else {
            let adopted = self.addresses.adopt(&owner, &endpoint.addresses);
            adopted.map_err(|error| self.addresses.refusal(&error))?;
        }
        fault_points::reach(Point::EndpointAddLeased);
        let admitted = self.record(endpoint)?;
        self.addresses.claim(&owner);
        self.addresses.is_endpoint(&owner);
        Ok(admitted)
    }

    /// True if an owner has an address.
    pub(crate) fn holds(&self, owner: &Owner) -> bool {
        !self.addresses.held_by(owner).is_empty()
    }
}
