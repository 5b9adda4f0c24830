//! Configuration that network managers leave on ENIs: a DHCP client's address and its routes, a
//! second default route, rules of their own, another MAC. Pure: from what is seen in the kernel.
//! Nothing of it is ours to remove, and most of it does pods no harm; who runs the node has to know
//! of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::types::ForeignConfig;
use api::types::ForeignConfigKind;
use ipnet::IpNet;

use crate::constants;
use crate::intent::Eni;
use crate::kernel::{Action, ForeignRoute, Link, Rule, Selector};

/// The kernel's table for routes that name none (`RT_TABLE_MAIN`, `include/uapi/linux/rtnetlink.h`).
const TABLE_MAIN: u32 = 254;
/// `RTPROT_KERNEL` there: what comes with an address.
const PROTOCOL_KERNEL: u8 = 2;

/// The observed state of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The devices, by index.
    pub links: &'a BTreeMap<u32, Link>,
    /// The addresses, each with its device's index.
    pub addresses: &'a BTreeSet<(u32, IpNet)>,
    /// Routes of tables that are not ours.
    pub routes: &'a BTreeSet<ForeignRoute>,
    /// Rules.
    pub rules: &'a BTreeSet<Rule>,
}

/// An ENI in use, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// The ENI.
    pub eni: &'a Eni,
    /// Its device; none while no device has its MAC.
    pub ifindex: Option<u32>,
    /// The device that had its MAC last.
    pub last: Option<u32>,
}

/// Foreign configuration of these ENIs, in the order of ENIs and kinds.
#[must_use]
pub fn foreign_config(enis: &[Placed<'_>], seen: Seen<'_>) -> Vec<ForeignConfig> {
    let mut found = BTreeSet::new();
    for placed in enis {
        found.extend(changed_mac(*placed, seen.links));
        let Some(link) = placed.ifindex.and_then(|index| seen.links.get(&index)) else {
            continue;
        };
        let on = |kind, object, protocol: Option<u8>| ForeignConfig {
            eni: placed.eni.number,
            device: link.name.clone(),
            kind,
            object,
            protocol: protocol.map(protocol_name),
            hint: kind.hint().to_owned(),
        };
        if lacks_link_local(placed.eni, link.ifindex, seen.addresses) {
            let object = "no IPv6 link-local address".to_owned();
            found.insert(on(ForeignConfigKind::NoLinkLocal, object, None));
        }
        for net in foreign_addresses(placed.eni, link.ifindex, seen.addresses) {
            found.insert(on(ForeignConfigKind::Address, net.to_string(), None));
        }
        if !placed.eni.number.is_primary() {
            let routes = seen.routes.iter();
            for route in routes.filter(|route| route.ifindex == link.ifindex) {
                if let Some(kind) = route_kind(route) {
                    found.insert(on(kind, route_text(route), Some(route.protocol)));
                }
            }
        }
        for rule in seen.rules {
            if let Some(object) = foreign_rule(rule, placed.eni) {
                found.insert(on(ForeignConfigKind::Rule, object, Some(rule.protocol)));
            }
        }
    }
    found.extend(claims(enis, seen));
    found.into_iter().collect()
}

/// Addresses on a secondary ENI's device that are not its own and no pod's. Link-local ones are
/// everywhere, and an IPv6 address without a subnet is what `DHCPv6` gives: translation may use it.
fn foreign_addresses<'a>(
    eni: &'a Eni,
    ifindex: u32,
    addresses: &'a BTreeSet<(u32, IpNet)>,
) -> impl Iterator<Item = IpNet> + 'a {
    let own = eni.own_address().map(IpNet::from);
    let there = addresses.iter().filter(move |(at, _)| *at == ifindex);
    there
        .map(|(_, net)| *net)
        .filter(|_| !eni.number.is_primary())
        .filter(move |net| Some(*net) != own && !eni.owns(net.addr()))
        .filter(|net| match net {
            IpNet::V4(_) => true,
            IpNet::V6(net) => !net.addr().is_unicast_link_local() && net.prefix_len() < 128,
        })
}

/// True if a secondary ENI that has IPv6 for pods has lost its link-local address: the kernel gives
/// every device that is up one, unless a manager does so itself.
fn lacks_link_local(eni: &Eni, ifindex: u32, addresses: &BTreeSet<(u32, IpNet)>) -> bool {
    let is_link_local = |net: &IpNet| match net {
        IpNet::V4(_) => false,
        IpNet::V6(net) => net.addr().is_unicast_link_local(),
    };
    let mut there = addresses.iter().filter(|(at, _)| *at == ifindex);
    let has_v6 = eni.blocks.iter().any(|block| block.addr().is_ipv6());
    has_v6 && !eni.number.is_primary() && !there.any(|(_, net)| is_link_local(net))
}

/// Addresses that the VPC gives to an ENI or its pods, where they should not be: pods' on any
/// device, an ENI's own on another device.
fn claims(enis: &[Placed<'_>], seen: Seen<'_>) -> Vec<ForeignConfig> {
    let mut found = Vec::new();
    for (ifindex, net) in seen.addresses {
        let Some(link) = seen.links.get(ifindex) else {
            continue;
        };
        let address = net.addr();
        let own = |placed: &&Placed<'_>| placed.eni.own_address() == Some(address);
        let claimed = match enis.iter().find(own) {
            Some(owner) => (owner.ifindex != Some(*ifindex)).then_some(owner),
            None => enis.iter().find(|placed| placed.eni.owns(address)),
        };
        if let Some(owner) = claimed {
            found.push(ForeignConfig {
                eni: owner.eni.number,
                device: link.name.clone(),
                kind: ForeignConfigKind::Claim,
                object: net.to_string(),
                protocol: None,
                hint: ForeignConfigKind::Claim.hint().to_owned(),
            });
        }
    }
    found
}

fn changed_mac(placed: Placed<'_>, links: &BTreeMap<u32, Link>) -> Option<ForeignConfig> {
    let last = links.get(&placed.last?)?;
    let mac = last.mac.filter(|mac| *mac != placed.eni.mac)?;
    placed.ifindex.is_none().then(|| ForeignConfig {
        eni: placed.eni.number,
        device: last.name.clone(),
        kind: ForeignConfigKind::Mac,
        object: format!("MAC {mac}, which was {}", placed.eni.mac),
        protocol: None,
        hint: ForeignConfigKind::Mac.hint().to_owned(),
    })
}

/// The kind of foreign configuration that a route is; none for a route that the kernel makes for
/// each device or address.
fn route_kind(route: &ForeignRoute) -> Option<ForeignConfigKind> {
    let net = route.destination;
    if net.prefix_len() == 0 {
        return Some(ForeignConfigKind::DefaultRoute);
    }
    if route.protocol != PROTOCOL_KERNEL || route.gateway.is_some() {
        return Some(ForeignConfigKind::Route);
    }
    let of_every_device = match net.addr() {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    };
    let of_the_address = net.prefix_len() == net.max_prefix_len();
    (!of_every_device && !of_the_address).then_some(ForeignConfigKind::ConnectedRoute)
}

fn route_text(route: &ForeignRoute) -> String {
    let destination = match route.destination.prefix_len() {
        0 => "default".to_owned(),
        _ => route.destination.to_string(),
    };
    let gateway = route.gateway.map(|gateway| format!("via {gateway}"));
    let table = (route.table != TABLE_MAIN).then(|| format!("table {}", route.table));
    let metric = (route.metric != 0).then(|| format!("metric {}", route.metric));
    let rest = [gateway, table, metric].into_iter().flatten();
    let words: Vec<_> = [destination].into_iter().chain(rest).collect();
    words.join(" ")
}

/// A foreign rule for packets from an address of an ENI or its pods, as text.
fn foreign_rule(rule: &Rule, eni: &Eni) -> Option<String> {
    let (Selector::Source(source), Action::Table(table)) = (rule.selector, rule.action) else {
        return None;
    };
    let of_eni = eni.own_address() == Some(source.addr()) || eni.owns(source.addr());
    let foreign = of_eni && !constants::is_our_table(table);
    foreign.then(|| format!("rule {}: from {source} lookup {table}", rule.priority))
}

/// A routing protocol's name as `ip` shows it (`include/uapi/linux/rtnetlink.h`).
fn protocol_name(number: u8) -> String {
    let name = match number {
        1 => "redirect",
        PROTOCOL_KERNEL => "kernel",
        3 => "boot",
        4 => "static",
        9 => "ra",
        16 => "dhcp",
        _ => return number.to_string(),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests;
