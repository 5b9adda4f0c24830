//! Desired state: the objects of the intent on this kernel.
//!
//! The intent has MACs and addresses, the kernel has device indexes. Here the one is resolved to
//! the other. Pure: equal intents and kernels give equal results. An unresolved part yields no
//! objects, and a reason.

mod builder;
mod destinations;
mod devices;
mod endpoint;
mod eni;
mod host_networks;
mod ingress;
mod node;
mod translation;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::{EndpointId, EniNumber};
use api::types::Readiness;
use api::types::{MasqueradeView, PoolView};

use self::builder::Builder;
pub use self::destinations::left_out;
use crate::intent::Intent;
use crate::intent::masquerade::DEFAULT_POOL;
use crate::kernel::{Link, MapEntry, MapKey, Object, Observed, Scope};
use crate::observation::view::{DeviceView, EndpointView, EniView};

/// The objects that should be in the kernel, and how far the intent could be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Every object, and what it serves.
    pub objects: BTreeMap<Object, Scope>,
    /// Readiness of the node's part.
    pub node: Readiness,
    /// The primary ENI's device, where it is known.
    pub primary: Option<DeviceView>,
    /// The ENIs of the node document, ready as far as resolving them goes.
    pub enis: BTreeMap<EniNumber, EniView>,
    /// The endpoints, ready as far as resolving them goes.
    pub endpoints: BTreeMap<EndpointId, EndpointView>,
    /// The inputs of the masquerade decision.
    pub masquerade: MasqueradeView,
}

/// Resolves an intent against the kernel.
#[must_use]
pub fn desired(intent: &Intent, observed: &Observed) -> Desired {
    let primary = devices::primary(intent, observed);
    let enis = devices::enis(intent, observed, primary.as_ref().ok().copied());
    let lost = endpoint::lost_owners(intent, observed, &enis);

    let number_0_is_lost = number_0_is_lost(intent, observed, &lost);
    let device = primary.as_ref().ok().copied();
    // Packets of a lost number 0 have to stay fenced.
    let exit = device.filter(|_| !number_0_is_lost);
    let exits = translation::exits(intent, observed, &enis, exit);

    let mut builder = Builder::new(intent, observed);
    node::add(&mut builder, device, &exits);
    let networks = host_networks::host_networks(intent, observed);
    for resolved in enis.values() {
        eni::add(&mut builder, resolved, &exits, &networks);
    }
    for number in lost.values() {
        eni::add_fence(&mut builder, *number);
    }
    let ingress = ingress::add(&mut builder, &enis);
    let hosts = node::add_host_addresses(&mut builder, &exits, &ingress);
    let egress = endpoint::EgressEnis {
        enis: &enis,
        lost: &lost,
        primary: exits.device(EniNumber::PRIMARY),
    };
    let endpoints = endpoint::add(&mut builder, &egress, &hosts);
    let exempt = destinations::add(&mut builder, &networks);

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
        masquerade: MasqueradeView {
            exempt,
            pools: pools(intent),
            enis: exits.view(),
            left_out: networks.left_out,
        },
    }
}

/// True if a running pod has a former address of the primary that no ENI has now. Its packets by
/// number 0 must stay on the node.
fn number_0_is_lost(
    intent: &Intent,
    observed: &Observed,
    lost: &BTreeMap<IpAddr, EniNumber>,
) -> bool {
    let of_number_0 = lost.iter().filter(|(_, number)| number.is_primary());
    let mut holders = of_number_0.flat_map(|(address, _)| {
        let endpoints = intent.endpoints.iter();
        let entry = match observed.maps.get(&MapKey::Address(*address)) {
            Some(MapEntry::Address(_, entry)) => Some(entry.ifindex()),
            _ => None,
        };
        let device = entry.and_then(|ifindex| observed.links.get(&ifindex));
        endpoints
            .filter(|(_, endpoint)| endpoint.addresses.contains(address))
            .filter(move |(id, _)| device.is_some_and(|link| link.name == id.device()))
    });
    holders.next().is_some()
}

/// The pools that the node has blocks of, and those that have a document.
fn pools(intent: &Intent) -> Vec<PoolView> {
    let Intent { node, policy, .. } = intent;
    let documents = policy.pools.iter().flat_map(|pools| pools.names());
    let allocated = node.pools.values().map(String::as_str);
    let names: BTreeSet<&str> = documents.chain(allocated).chain([DEFAULT_POOL]).collect();
    let view = |name: &str| PoolView {
        name: name.to_owned(),
        policy: policy.pool(name, &intent.settings.masquerade),
        cidrs: node
            .pools
            .iter()
            .filter(|(_, pool)| *pool == name)
            .map(|(net, _)| *net)
            .collect(),
    };
    names.into_iter().map(view).collect()
}

fn device_view(link: &Link) -> DeviceView {
    DeviceView {
        name: link.kernel_name().to_owned(),
        ifindex: link.ifindex,
        mtu: link.mtu,
    }
}

#[cfg(test)]
mod tests;
