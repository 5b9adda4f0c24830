//! Admission of an endpoint to the node, and the answer for an admitted one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::ids::EndpointId;
use api::types::Readiness;
use api::types::{Allocation, Attachment, EniRef};
use api::{ApiError, ErrorCode};
use ipam::Family;
use loader::constants;
use loader::intent::{Endpoint, EndpointMeta, Eni, Intent};
use loader::observation::view::{DeviceView, View};

use crate::actor::Actor;
use crate::allocation::Addresses;
use crate::host::host_snapshot::Facts;
use crate::host::kernel::Host;
use crate::server::{AddressSpec, EndpointRequest};

/// The node, as far as it decides about a request.
pub(crate) struct Admission<'a> {
    /// Desired state of the node.
    pub(crate) intent: &'a Intent,
    /// Observed state of the node.
    pub(crate) view: &'a View,
    /// MTU that the configuration sets, in bytes.
    pub(crate) mtu: Option<u32>,
    /// Facts that the kernel showed last.
    pub(crate) facts: &'a Facts,
}

/// Action for a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The owner has just this endpoint.
    Existing(Endpoint),
    /// The endpoint can be made.
    New(Endpoint),
}

impl<K: Host> Actor<K> {
    /// The state that a request is admitted against.
    pub(crate) fn admission(&self) -> Result<Admission<'_>, ApiError> {
        let facts = self.reconciler.kernel().facts().ok_or_else(|| {
            let message = "the kernel could not be read; see the log";
            ApiError::new(ErrorCode::NotReady, message)
        })?;
        Ok(Admission {
            intent: &self.intent,
            view: &self.passes.last.view,
            mtu: self.mtu,
            facts,
        })
    }
}

impl Admission<'_> {
    /// Decides about a request. What was given to an owner stays given, whatever became of its
    /// ENI: a repeated request gets the same answer.
    pub(crate) fn decide(&self, request: EndpointRequest) -> Result<Decision, ApiError> {
        let id = EndpointId::of(&request.owner);
        if let Some(existing) = self.intent.endpoints.get(&id) {
            return repeated(existing, &request);
        }
        let mut mtu = self.mtu.unwrap_or(constants::MTU_MAX);
        for address in &request.addresses {
            let device = self
                .device_for(*address)
                .map_err(|error| error.at("addresses"))?;
            mtu = device.map_or(mtu, |device| device.mtu.min(mtu));
        }
        let device = self.device_name(&request);
        let EndpointRequest {
            owner,
            netns,
            addresses,
            ask,
        } = request;
        let AddressSpec { network, pod, .. } = *ask;
        Ok(Decision::New(Endpoint {
            owner,
            netns,
            addresses,
            mtu: mtu.clamp(constants::MTU_MIN, constants::MTU_MAX),
            about: EndpointMeta {
                network,
                pod,
                device,
                since: Some(Addresses::now()),
                namespace: None,
                leases: Vec::new(),
            },
        }))
    }

    /// Name of the host-side device, where it follows from the pod's. The first attachment of a
    /// sandbox has it.
    fn device_name(&self, request: &EndpointRequest) -> Option<String> {
        let prefix = self.intent.settings.device_prefix.as_deref()?;
        let name = request.ask.pod.as_ref()?.device(prefix);
        let is_taken = |endpoint: &Endpoint| {
            endpoint.owner.container_id == request.owner.container_id
                && endpoint.about.device.as_deref() == Some(&name)
        };
        let mut endpoints = self.intent.endpoints.values();
        (!endpoints.any(is_taken)).then_some(name)
    }

    /// The device by which an address may be used.
    pub(crate) fn device_for(&self, address: IpAddr) -> Result<Option<&DeviceView>, ApiError> {
        let refuse = |code, message| Err(ApiError::new(code, message));
        if let Some(holder) = self
            .intent
            .endpoints
            .values()
            .find(|e| e.addresses.contains(&address))
        {
            return refuse(
                ErrorCode::AddressInUse,
                format!("{address} belongs to the endpoint of {}", holder.owner),
            );
        }
        if self.intent.settings.host.ingress.contains(&address) {
            return refuse(
                ErrorCode::AddressOfHost,
                format!("{address} is the agent's own (agent-addresses.ingress)"),
            );
        }
        if let Some(device) = self.facts.host.get(&address) {
            return refuse(
                ErrorCode::AddressOfHost,
                format!("{address} is on the host's device {device}"),
            );
        }
        if self.intent.settings.host.addresses.contains(&address) {
            return refuse(
                ErrorCode::AddressOfHost,
                format!("{address} is the host's by the setting host-addresses"),
            );
        }
        if let Some(eni) = self.intent.node.enis.values().find(|e| e.owns(address)) {
            return self.ready_device(eni, address);
        }
        if let Some(pool) = self.intent.plain_pool_of(address) {
            return self.primary_for(pool, address).map(Some);
        }
        refuse(
            ErrorCode::AddressNotOwned,
            format!(
                "no ENI of this node owns {address}; expected an address of the blocks in \
                 `towpath enis -o json`"
            ),
        )
    }

    /// The device of an ENI that is ready for new pods.
    fn ready_device(&self, eni: &Eni, address: IpAddr) -> Result<Option<&DeviceView>, ApiError> {
        let refuse = |code, message| Err(ApiError::new(code, message));
        let named = format!("ENI {} ({}), which owns {address}, is", eni.number, eni.id);
        let view = self.view.enis.get(&eni.number);
        match view.map(|view| (view, view.for_new_pods())) {
            Some((view, Readiness::Ready)) => Ok(view.device.as_ref()),
            Some((_, Readiness::Excluded { reason })) => refuse(
                ErrorCode::EniExcluded,
                format!("{named} excluded: {reason}"),
            ),
            Some((_, Readiness::NotReady { reason })) => refuse(
                ErrorCode::EniNotReady,
                format!("{named} not ready: {reason}"),
            ),
            None => refuse(
                ErrorCode::EniNotReady,
                format!("{named} not ready: it has not been checked yet"),
            ),
        }
    }

    /// The primary's device, by which the addresses of plain pools leave.
    fn primary_for(&self, pool: &str, address: IpAddr) -> Result<&DeviceView, ApiError> {
        let settings = &self.intent.settings;
        let family = Family::of(address);
        if !settings.plain_is_native && !settings.masquerade.is_on(family) {
            return Err(ApiError::new(
                ErrorCode::AddressNotOwned,
                format!(
                    "pool {pool} of {address} is a plain one, whose addresses leave masqueraded, and \
                     {family:?} is not masqueraded: set masquerade for it, or plain-pools.native"
                ),
            ));
        }
        self.view.primary.as_ref().ok_or_else(|| {
            ApiError::new(
                ErrorCode::EniNotReady,
                format!(
                    "the primary ENI, by which {address} of the plain pool {pool} leaves, is not ready"
                ),
            )
        })
    }
}

fn repeated(existing: &Endpoint, request: &EndpointRequest) -> Result<Decision, ApiError> {
    let conflict = |field: &str, is: String, requested: String| {
        let message = format!(
            "{} has an endpoint with {is}, not {requested}: delete it first",
            existing.owner
        );
        Err(ApiError::new(ErrorCode::OwnerConflict, message).at(field))
    };
    if existing.owner != request.owner {
        let message = format!(
            "{} has the same endpoint id as {}; let the runtime choose another container id",
            request.owner, existing.owner
        );
        return Err(ApiError::new(ErrorCode::OwnerConflict, message).at("owner"));
    }
    if existing.netns != request.netns {
        return conflict(
            "netns",
            existing.netns.display().to_string(),
            request.netns.display().to_string(),
        );
    }
    if existing.addresses != request.addresses {
        return conflict(
            "addresses",
            list(&existing.addresses),
            list(&request.addresses),
        );
    }
    Ok(Decision::Existing(existing.clone()))
}

/// The allocation result of an endpoint.
pub(crate) fn attachment(
    intent: &Intent,
    facts: Option<&Facts>,
    endpoint: &Endpoint,
) -> Result<Attachment, ApiError> {
    let id = endpoint.id();
    let addresses = endpoint.addresses.iter().map(|address| {
        // An allocated address stays valid even if its ENI has been excluded since.
        let eni = intent.node.enis.values().find(|eni| eni.owns(*address));
        let is_plain = eni.is_none() && intent.plain_pool_of(*address).is_some();
        if eni.is_none() && !is_plain {
            let message = format!("no ENI of this node owns {address} any more");
            return Err(ApiError::new(ErrorCode::AddressNotOwned, message).at("addresses"));
        }
        let family = Family::of(*address);
        let may_skip = !is_plain || intent.settings.plain_is_native;
        let named = intent.policy_of(endpoint, *address);
        let policy = intent.policy.pool(named, &intent.settings.masquerade);
        Ok(Allocation {
            pool: intent.given_by(endpoint, *address).map(str::to_owned),
            policy: Some(named.to_owned()),
            skip_masquerade: policy.map(|policy| policy.skip_masquerade && may_skip),
            address: *address,
            eni: eni.map(|eni| EniRef {
                number: eni.number,
                id: eni.id.clone(),
                mac: eni.mac,
            }),
            gateway: eni.and_then(|eni| eni.gateway(family)),
            subnet: eni.and_then(|eni| eni.subnet),
            vpc_cidrs: eni.map(|eni| eni.vpc_cidrs.clone()).unwrap_or_default(),
            pod_gateway: match family {
                Family::V4 => constants::POD_GATEWAY_V4.into(),
                Family::V6 => constants::POD_GATEWAY_V6.into(),
            },
        })
    });
    Ok(Attachment {
        owner: endpoint.owner.clone(),
        netns: endpoint.netns.clone(),
        host_device: host_device(facts, id),
        host_mac: id.host_mac(),
        pod_mac: id.pod_mac(),
        mtu: endpoint.mtu,
        addresses: addresses.collect::<Result<_, ApiError>>()?,
    })
}

/// The name that the kernel has for an endpoint's device.
pub(crate) fn host_device(facts: Option<&Facts>, id: EndpointId) -> String {
    let own = id.device();
    let links = facts.into_iter().flat_map(|facts| facts.links.values());
    // The last one that was made, where an earlier one is not forgotten yet.
    let link = links.rev().find(|link| link.name == own);
    link.map_or(own, |link| link.kernel_name().to_owned())
}

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests;
