//! Desired state: what the intent comes to on this kernel.
//!
//! The intent speaks of MACs and addresses, the kernel of device indexes; this is where the one
//! becomes the other. Pure: the same intent and the same kernel give the same value. What cannot
//! be resolved yields no objects and a reason.

mod builder;
mod destinations;
mod devices;
mod endpoint;
mod eni;
mod node;

use std::collections::BTreeMap;

use self::builder::Builder;
use crate::intent::Intent;
use crate::kernel::{Link, Observed, Scope};
use crate::object::Object;
use crate::types::{EndpointId, EniNumber};
use crate::view::{DeviceView, EndpointView, EniView, Readiness};

/// What should be in the kernel, and how far the intent could be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Every object, and what it serves.
    pub objects: BTreeMap<Object, Scope>,
    /// Whether the node's part could be resolved.
    pub node: Readiness,
    /// The primary ENI's device, where it is known.
    pub primary: Option<DeviceView>,
    /// The ENIs of the node document, ready as far as resolving them goes.
    pub enis: BTreeMap<EniNumber, EniView>,
    /// The endpoints, ready as far as resolving them goes.
    pub endpoints: BTreeMap<EndpointId, EndpointView>,
}

/// Resolves an intent against the kernel.
#[must_use]
pub fn desired(intent: &Intent, observed: &Observed) -> Desired {
    let primary = devices::primary(intent, observed);
    let enis = devices::enis(intent, observed, primary.as_ref().ok().copied());
    let lost = endpoint::lost_owners(intent, observed, &enis);

    let mut builder = Builder::new(intent, observed);
    node::add(&mut builder, primary.as_ref().ok().copied());
    for resolved in enis.values() {
        eni::add(&mut builder, resolved);
    }
    for number in lost.values() {
        eni::add_fence(&mut builder, *number);
    }
    let hosts = node::add_host_addresses(&mut builder);
    let endpoints = endpoint::add(&mut builder, &enis, &hosts, &lost);
    destinations::add(&mut builder);

    Desired {
        objects: builder.finish(),
        node: match &primary {
            Ok(_) => Readiness::Ready,
            Err(reason) => Readiness::not_ready(reason),
        },
        primary: primary.ok().map(device_view),
        enis: enis
            .into_iter()
            .map(|(number, resolved)| (number, resolved.view()))
            .collect(),
        endpoints,
    }
}

fn device_view(link: &Link) -> DeviceView {
    DeviceView {
        name: link.name.clone(),
        ifindex: link.ifindex,
        mtu: link.mtu,
    }
}

#[cfg(test)]
mod tests;
