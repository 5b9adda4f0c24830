//! Addresses without an owner that the kernel still has objects of.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::kernel::{MapEntry, Object};
use crate::plan::Planned;

/// The addresses of objects that are still to be removed. They must not be allocated before that.
/// An endpoint's device alone does not matter: it is removed last, and without an entry it carries
/// no packets.
pub(super) fn addresses(left: &[Planned]) -> BTreeSet<IpAddr> {
    let removals = left.iter().filter(|planned| !planned.adds);
    removals
        .filter_map(|planned| address(&planned.object))
        .collect()
}

fn address(object: &Object) -> Option<IpAddr> {
    match object {
        Object::MapEntry(MapEntry::Address(address, entry)) if entry.is_endpoint() => {
            Some(*address)
        }
        Object::Route(route) => {
            let net = route.destination;
            (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
        }
        Object::Neighbour(neighbour) => Some(neighbour.address),
        Object::Sysctl(..)
        | Object::ReservedPorts(_)
        | Object::Mtu { .. }
        | Object::Up(_)
        | Object::Device(_)
        | Object::Address(_)
        | Object::Rule(_)
        | Object::MapEntry(_)
        | Object::Attachment(_) => None,
    }
}
