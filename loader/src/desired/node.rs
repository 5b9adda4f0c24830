//! The objects that the node needs in the kernel, whatever ENIs and endpoints it has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::EniNumber;
use datapath_common::abi::AddressEntry;
use ipam::Family;
use ipnet::IpNet;

use super::builder::Builder;
use super::eni;
use super::translation::Exits;
use crate::constants;
use crate::intent::masquerade::{NO_SLICES, SharedPorts};
use crate::kernel::{
    Action, Address, Link, MapEntry, NextHop, Object, Route, Rule, Scope, Selector, Sysctl,
    SysctlScope,
};
use crate::observation::ownership::is_ingress;

/// Adds forwarding, the rules that every packet meets, the unreachable routes of the blocks, and
/// the primary's device.
pub(super) fn add(builder: &mut Builder<'_>, primary: Option<&Link>, exits: &Exits) {
    add_sysctls(builder);
    add_reserved_ports(builder);
    if let Some(device) = primary {
        add_primary(builder, device);
    }
    if let Some(entry) = exits.extra_entry() {
        let entry = MapEntry::Eni(EniNumber::PRIMARY, entry);
        builder.put(Scope::Node, Object::MapEntry(entry));
    }
    let skip = Selector::Mark {
        value: 0,
        mask: builder.intent.settings.mark.field_mask(),
    };
    for &family in builder.families() {
        for (priority, selector, action) in [
            (
                constants::RULE_PODS,
                Selector::All,
                Action::Table(constants::TABLE_PODS),
            ),
            (
                constants::RULE_SKIP,
                skip,
                Action::Goto(constants::RULE_OWN_ADDRESS),
            ),
            (constants::RULE_OWN_ADDRESS, Selector::All, Action::Nop),
        ] {
            let rule = Rule {
                family,
                priority,
                selector,
                action,
                protocol: builder.intent.settings.protocol,
            };
            builder.put(Scope::Node, Object::Rule(rule));
        }
    }
    add_blocks(builder);
}

fn add_sysctls(builder: &mut Builder<'_>) {
    for (family, scope, name, value) in [
        (Family::V4, SysctlScope::Family, "ip_forward", "1"),
        // The kernel sends redirects where either this or the device's own says so.
        (Family::V4, SysctlScope::All, "send_redirects", "0"),
        (Family::V6, SysctlScope::All, "forwarding", "1"),
    ] {
        let sysctl = Sysctl {
            family,
            scope,
            name,
        };
        builder.sysctl(Scope::Node, sysctl, value);
    }
}

/// Reserves the ports of translation, so that the host's automatic ports exclude them and few of
/// its own packets need a look-up. It never reserves so many that the host lacks ports. Without
/// translation none are reserved.
fn add_reserved_ports(builder: &mut Builder<'_>) {
    let settings = &builder.intent.settings;
    let is_some = settings.masquerade.is_on_at_all() && settings.ports != NO_SLICES;
    if let Some(host) = builder.observed.host.ports.as_ref().filter(|_| is_some) {
        let ports = SharedPorts::new(settings.ports, &host.usable());
        builder.put(Scope::Node, Object::ReservedPorts(ports));
    }
}

/// The primary's addresses, routes, MTU and router advertisements belong to the host. A host that
/// forwards ignores advertisements unless `accept_ra` is 2, so where the host had them on, they
/// stay on.
fn add_primary(builder: &mut Builder<'_>, device: &Link) {
    eni::add_sysctls(builder, Scope::Node, device);
    let accept_ra = Sysctl::of_device(Family::V6, device.ifindex, "accept_ra");
    let on = |value: &String| value == "1" || value == "2";
    if builder.observed.sysctls.get(&accept_ra).is_some_and(on) {
        builder.sysctl(Scope::Node, accept_ra, "2");
    }
    eni::add_programs(builder, Scope::Node, device);
}

/// An address of a block that no endpoint has is answered as unreachable; without the route its
/// packets would be forwarded back to the VPC.
fn add_blocks(builder: &mut Builder<'_>) {
    let intent = builder.intent;
    let enis = intent.node.enis.values();
    let of_enis = enis.filter(|eni| eni.excluded.is_none());
    let of_enis = of_enis.flat_map(|eni| eni.blocks.iter().copied());
    let plain = intent.plain_blocks().map(|(block, _)| block);
    for block in of_enis.chain(plain) {
        if builder.families().contains(&Family::of(block.addr())) {
            builder.put(
                Scope::Node,
                Object::Route(Route {
                    table: constants::TABLE_PODS,
                    destination: block,
                    metric: constants::METRIC_UNREACHABLE,
                    next_hop: NextHop::Unreachable,
                    source: None,
                    protocol: intent.settings.protocol,
                }),
            );
        }
    }
}

/// An address that the host's stack answers for.
pub(super) struct HostAddress {
    /// Where it comes from.
    pub(super) place: String,
    /// True if an endpoint has the address nevertheless.
    pub(super) yields: bool,
}

/// The addresses that devices are to have.
fn desired_addresses<'a>(builder: &'a Builder<'_>) -> Vec<&'a Address> {
    let desired = builder.objects().filter_map(|object| match object {
        Object::Address(address) => Some(address),
        Object::Sysctl(..)
        | Object::ReservedPorts(_)
        | Object::Mtu { .. }
        | Object::Up(_)
        | Object::Device(_)
        | Object::Route(_)
        | Object::Rule(_)
        | Object::Neighbour(_)
        | Object::MapEntry(_)
        | Object::Attachment(_) => None,
    });
    desired.collect()
}

/// The addresses on devices, present and desired ones, and the place of each. Addresses of `ours`
/// are desired.
fn on_devices(
    builder: &Builder<'_>,
    desired: &[&Address],
    ours: &BTreeSet<IpAddr>,
) -> BTreeMap<IpAddr, String> {
    let is_local = |net: &IpNet| match net {
        IpNet::V4(net) => net.addr().is_loopback(),
        IpNet::V6(net) => net.addr().is_loopback() || net.addr().is_unicast_link_local(),
    };
    let present = builder.observed.addresses.iter();
    present
        .chain(desired.iter().copied())
        .filter(|address| !is_local(&address.net))
        .filter(|address| {
            ours.contains(&address.net.addr()) || !is_ingress(address, builder.observed)
        })
        .map(|address| {
            let link = builder.observed.links.get(&address.ifindex);
            let device = link.map_or("a device of the host", |link| &link.name);
            (address.net.addr(), format!("on {device}"))
        })
        .collect()
}

/// Adds the addresses that the host's stack answers for, and returns the source of each.
///
/// Addresses that are about to be added to a device count already. So do those on the loopback
/// device, except for the agent's own that are about to be removed. Loopback addresses do not
/// count: they are the host's alone, and with `route_localnet` its stack would take a pod's packet.
/// IPv6 link-local addresses do not count either, since they mean nothing without their link.
///
/// An endpoint's address that a foreign program adds to a device stays the endpoint's. Programs
/// such as amazon-ec2-net-utils, which copy an ENI's addresses to its device, must not cut off
/// running pods.
pub(super) fn add_host_addresses(
    builder: &mut Builder<'_>,
    exits: &Exits,
    ingress: &BTreeMap<IpAddr, EniNumber>,
) -> BTreeMap<IpAddr, HostAddress> {
    let desired = desired_addresses(builder);
    let ours: BTreeSet<IpAddr> = desired.iter().map(|address| address.net.addr()).collect();
    let mut hosts = on_devices(builder, &desired, &ours);
    for address in &builder.intent.settings.host.addresses {
        let setting = || "one of host-addresses in the configuration".to_owned();
        hosts.entry(*address).or_insert_with(setting);
    }
    let translation: BTreeMap<_, _> = exits.translation_addresses().collect();
    for (address, number) in &translation {
        let name = || format!("the translation address of ENI {number}");
        hosts.entry(*address).or_insert_with(name);
    }
    let intent = builder.intent;
    let of_endpoints = intent.endpoints.values().flat_map(|e| &e.addresses);
    let of_endpoints: BTreeSet<&IpAddr> = of_endpoints.collect();
    let is_the_hosts = |address: &IpAddr| {
        ours.contains(address)
            || translation.contains_key(address)
            || intent.settings.host.addresses.contains(address)
            || intent.node.addresses.internal.contains(address)
    };
    let hosts: BTreeMap<IpAddr, HostAddress> = hosts
        .into_iter()
        .map(|(address, place)| {
            let yields = of_endpoints.contains(&address) && !is_the_hosts(&address);
            (address, HostAddress { place, yields })
        })
        .collect();
    for (address, _) in hosts.iter().filter(|(_, host)| !host.yields) {
        // Packets from the agent's own address leave by its ENI as well, whatever its source.
        let number = translation.get(address).or(ingress.get(address));
        let entry = number.map_or(AddressEntry::host(), |number| {
            AddressEntry::translation(number.0)
        });
        let entry = MapEntry::Address(*address, entry);
        builder.put(Scope::Node, Object::MapEntry(entry));
    }
    hosts
}
