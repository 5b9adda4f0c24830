//! The agent's own addresses that the host's stack answers for.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::builder::Builder;
use super::devices::{EniState, ResolvedEni};
use super::eni::add_own_address;
use crate::kernel::{Address, LinkKind, Object, Scope};
use api::ids::EniNumber;
use ipam::Family;

/// Adds each address to the loopback device, where listeners can bind to it and the kernel does not
/// select it as a source. Packets from it leave by the ENI that owns it. Returns the addresses
/// whose ENI is usable, with its number.
pub(super) fn add(
    builder: &mut Builder<'_>,
    enis: &BTreeMap<EniNumber, ResolvedEni<'_>>,
) -> BTreeMap<IpAddr, EniNumber> {
    let links = builder.observed.links.values();
    let loopback = links.filter(|link| link.kind == LinkKind::Loopback);
    let Some(ifindex) = loopback.map(|link| link.ifindex).next() else {
        return BTreeMap::new();
    };
    let mut owners = BTreeMap::new();
    for address in &builder.intent.settings.host.ingress {
        if !builder.families().contains(&Family::of(*address)) {
            continue;
        }
        let net = IpNet::from(*address);
        builder.put(Scope::Node, Object::Address(Address { ifindex, net }));
        let Some(owner) = builder.intent.node.owner_of(*address) else {
            continue;
        };
        let resolved = enis.get(&owner.number);
        if resolved.is_none_or(|eni| !matches!(eni.state, EniState::Usable(_))) {
            continue;
        }
        owners.insert(*address, owner.number);
        if !owner.number.is_primary() {
            add_own_address(builder, owner, net);
        }
    }
    owners
}
