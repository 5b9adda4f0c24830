//! The networks that the host's own routes lead to, by no ENI or endpoint: a bridge, a tunnel, a
//! VPN, or the host itself. Only the host's stack can route to them, so pods' packets to them are
//! passed to it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::ids::MacAddr;
use ipam::Family;
use ipnet::IpNet;

use super::destinations::{LINK_LOCAL_V4, LINK_LOCAL_V6, METADATA};
use crate::intent::Intent;
use crate::kernel::{Link, LinkKind, Observed};
use crate::observation::ownership::{endpoint_device, may_be_eni};

/// Maximum number of networks whose packets are passed to the stack: each costs an entry of the map
/// of destinations, and a route in each ENI's table.
const MOST: usize = 1024;
/// Multicast goes to the stack whatever the routes say.
const MULTICAST: [&str; 2] = ["224.0.0.0/4", "ff00::/8"];

/// The networks behind the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostNetworks {
    /// Those whose packets the stack gets; none is part of another.
    pub(super) all: Vec<IpNet>,
    /// Those that are too many.
    pub(super) left_out: Vec<IpNet>,
}

/// True for the network of a route that counts. A shorter one is a default route by another name.
fn is_specific(net: &IpNet) -> bool {
    let shortest = match Family::of(net.addr()) {
        Family::V4 => 8,
        Family::V6 => 16,
    };
    net.prefix_len() >= shortest
}

/// Finds them. The VPC's CIDRs, native ones, blocks and services are what they are, whatever routes
/// say.
pub(super) fn host_networks(intent: &Intent, observed: &Observed) -> HostNetworks {
    let enis: BTreeSet<MacAddr> = macs(intent).collect();
    let is_passed_by = |link: &Link| match link.kind {
        LinkKind::Loopback => true,
        LinkKind::Physical | LinkKind::Veth | LinkKind::Stacked | LinkKind::Other => {
            let is_eni = may_be_eni(link) && link.mac.is_some_and(|mac| enis.contains(&mac));
            is_eni || endpoint_device(link).is_some()
        }
    };
    let counted = observed.host.routes.iter().filter_map(|(net, ifindex)| {
        let link = observed.links.get(ifindex)?;
        is_specific(net).then_some((net, link))
    });
    let (passed, routed): (Vec<_>, Vec<_>) = counted.partition(|(_, link)| is_passed_by(link));
    let passed: BTreeSet<IpNet> = passed.into_iter().map(|(net, _)| *net).collect();
    let routed = routed.into_iter();
    let routed = routed.flat_map(|(net, _)| without_longer(*net, &passed));
    let named = intent.settings.host.cidrs.iter().copied();
    let mut nets: Vec<IpNet> = routed.chain(local(observed)).chain(named).collect();
    for taken in taken(intent) {
        nets = nets
            .into_iter()
            .flat_map(|net| without(net, taken))
            .collect();
    }
    let mut all = IpNet::aggregate(&nets);
    let left_out = all.split_off(all.len().min(MOST));
    HostNetworks { all, left_out }
}

/// The networks whose addresses the host answers for, though no device has them. Devices' addresses
/// are known one by one, and pods must not reach loopback addresses.
fn local(observed: &Observed) -> impl Iterator<Item = IpNet> {
    let on_devices = observed.addresses.iter();
    let on_devices: BTreeSet<IpAddr> = on_devices.map(|address| address.net.addr()).collect();
    let is_of_device = move |net: &IpNet| {
        net.prefix_len() == net.max_prefix_len() && on_devices.contains(&net.addr())
    };
    let all = observed.host.local.iter().copied();
    all.filter(is_specific)
        .filter(move |net| !net.addr().is_loopback() && !is_of_device(net))
}

/// The MACs of the ENIs of the document, for pods or not.
fn macs(intent: &Intent) -> impl Iterator<Item = MacAddr> {
    let others = intent.node.others.iter().filter_map(|other| other.mac);
    let enis = intent.node.enis.values().map(|eni| eni.mac);
    enis.chain(others).chain(intent.node.primary_mac())
}

/// The prefixes that routes of the host do not change.
fn taken(intent: &Intent) -> Vec<IpNet> {
    let special = [LINK_LOCAL_V4, LINK_LOCAL_V6].into_iter();
    let special = special.chain(METADATA).chain(MULTICAST);
    let mut taken: Vec<IpNet> = special.filter_map(|text| text.parse().ok()).collect();
    for eni in intent.node.enis.values() {
        taken.extend(&eni.vpc_cidrs);
        taken.extend(&eni.blocks);
    }
    taken.extend(intent.plain_blocks().map(|(net, _)| net));
    taken.extend(&intent.settings.masquerade.native);
    taken.extend(&intent.settings.services.configured);
    taken.extend(intent.settings.services.cluster.cidrs.iter().flatten());
    IpNet::aggregate(&taken)
}

/// A prefix without those that are part of it: longer routes by ENIs have their packets.
fn without_longer(net: IpNet, others: &BTreeSet<IpNet>) -> Vec<IpNet> {
    let longest = IpNet::new(net.broadcast(), net.max_prefix_len());
    let longer = IpNet::new(net.network(), net.prefix_len().saturating_add(1));
    let mut left = vec![net];
    if let (Ok(first), Ok(last)) = (longer, longest) {
        for other in others.range(first..=last) {
            left = left
                .into_iter()
                .flat_map(|net| without(net, *other))
                .collect();
        }
    }
    left
}

/// A prefix without what is of another one: the halves of it beside the other.
fn without(net: IpNet, taken: IpNet) -> Vec<IpNet> {
    if taken.contains(&net) {
        return Vec::new();
    }
    let mut left = Vec::new();
    let mut rest = net;
    while rest.contains(&taken) && rest != taken {
        let Ok(halves) = rest.subnets(rest.prefix_len() + 1) else {
            break;
        };
        let (within, beside): (Vec<_>, Vec<_>) = halves.partition(|half| half.contains(&taken));
        left.extend(beside);
        let Some(within) = within.first() else {
            break;
        };
        rest = *within;
    }
    if left.is_empty() { vec![net] } else { left }
}

#[cfg(test)]
mod tests {
    use datapath_common::abi::DestinationClass;

    use super::*;
    use crate::kernel::fixture;
    use crate::kernel::{Address, MapEntry, NextHop, Object, Route};

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// A host with routes by a device of its own, index 50.
    fn routed(texts: &[&str]) -> Observed {
        let mut observed = fixture::host();
        let mut link = fixture::link(50, "vpn0", fixture::mac(99));
        link.mac = None;
        link.kind = LinkKind::Other;
        fixture::plug(&mut observed, link);
        observed.host.routes = nets(texts).into_iter().map(|net| (net, 50)).collect();
        observed
    }

    #[test]
    fn routes_past_enis_and_endpoints_lead_to_networks_of_the_host() {
        let intent = fixture::intent();
        let mut observed = routed(&["10.8.0.0/24", "10.8.1.0/24", "fd08::/64"]);
        let expected = nets(&["10.8.0.0/23", "fd08::/64"]);
        assert_eq!(host_networks(&intent, &observed).all, expected);
        let is_eni = |link: &&Link| link.mac == Some(intent.node.enis.values().next().unwrap().mac);
        let eni = observed.links.values().find(is_eni).unwrap().ifindex;
        let pod = fixture::pod_link(51, "a");
        fixture::plug(&mut observed, pod);
        observed.host.routes = [eni, 51, 1, 77]
            .into_iter()
            .zip(nets(&[
                "10.9.0.0/24",
                "10.9.1.0/24",
                "10.9.2.0/24",
                "10.9.3.0/24",
            ]))
            .map(|(ifindex, net)| (net, ifindex))
            .collect();
        let found = host_networks(&intent, &observed).all;
        assert!(found.is_empty(), "an ENI, a pod, loopback, gone: {found:?}");
    }

    #[test]
    fn a_longer_route_by_an_eni_leads_out_and_a_still_longer_one_does_not() {
        let intent = fixture::intent();
        let mut observed = routed(&["10.8.0.0/22", "10.8.1.128/25", "10.9.0.7/32"]);
        let is_eni = |link: &&Link| link.mac == Some(intent.node.enis.values().next().unwrap().mac);
        let eni = observed.links.values().find(is_eni).unwrap().ifindex;
        let by_eni = nets(&["10.8.1.0/24", "10.8.0.0/16", "10.9.0.7/32"]);
        let by_eni = by_eni.into_iter().map(|net| (net, eni));
        observed.host.routes.extend(by_eni);
        let expected = nets(&["10.8.0.0/24", "10.8.1.128/25", "10.8.2.0/23", "10.9.0.7/32"]);
        assert_eq!(host_networks(&intent, &observed).all, expected);
    }

    #[test]
    fn packets_for_a_network_of_the_host_take_the_stack_and_look_on_in_its_tables() {
        let intent = fixture::intent();
        let observed = routed(&["10.8.0.0/24"]);
        let net = "10.8.0.0/24".parse().unwrap();
        let objects = super::super::desired(&intent, &observed).objects;
        let class = DestinationClass::SERVICE.union(DestinationClass::ROUTED);
        let entry = Object::MapEntry(MapEntry::Destination(net, class));
        assert!(objects.contains_key(&entry), "{objects:?}");
        for eni in intent.node.enis.values() {
            let route = Route {
                table: eni.table(),
                destination: net,
                metric: 0,
                next_hop: NextHop::Throw,
                source: None,
                protocol: intent.settings.protocol,
            };
            assert!(objects.contains_key(&Object::Route(route)), "{}", eni.id);
        }
    }

    #[test]
    fn default_routes_by_whatever_name_lead_to_none() {
        let intent = fixture::intent();
        let observed = routed(&["0.0.0.0/0", "0.0.0.0/1", "64.0.0.0/7", "::/0", "2000::/3"]);
        assert!(host_networks(&intent, &observed).all.is_empty());
        let kept = routed(&["64.0.0.0/8", "2a00::/16"]);
        let expected = nets(&["64.0.0.0/8", "2a00::/16"]);
        assert_eq!(host_networks(&intent, &kept).all, expected);
    }

    #[test]
    fn what_the_vpc_native_cidrs_services_and_the_link_have_is_left_to_them() {
        let mut intent = fixture::intent();
        intent.settings.masquerade.native = nets(&["192.168.0.0/16"]).into_iter().collect();
        intent.settings.services.configured = nets(&["172.20.0.0/16"]).into_iter().collect();
        let taken = [
            "10.0.0.0/16",
            "10.0.7.0/24",
            "192.168.3.0/24",
            "172.20.0.0/16",
        ];
        let link = [
            "169.254.0.0/16",
            "fe80::/64",
            "224.0.0.0/4",
            "fd00:ec2::254/128",
        ];
        let observed = routed(&[&taken[..], &link[..]].concat());
        let found = host_networks(&intent, &observed).all;
        assert!(found.is_empty(), "{found:?}");
        // A wider one is what is left of it.
        let observed = routed(&["10.0.0.0/13"]);
        let all = host_networks(&intent, &observed).all;
        let expected = nets(&["10.1.0.0/16", "10.2.0.0/15", "10.4.0.0/14"]);
        assert_eq!(all, expected);
    }

    #[test]
    fn networks_that_are_local_to_the_host_are_its_own_but_for_loopback_and_addresses_of_devices() {
        let mut observed = routed(&[]);
        let address = Address {
            ifindex: 50,
            net: "198.51.100.1/24".parse().unwrap(),
        };
        observed.addresses.insert(address);
        observed.host.local = nets(&[
            "127.0.0.0/8",
            "::1/128",
            "0.0.0.0/0",
            "198.51.100.1/32",
            "192.0.2.0/24",
            "203.0.113.9/32",
            "fd0a::/64",
            "10.0.7.0/24",
        ])
        .into_iter()
        .collect();
        let found = host_networks(&fixture::intent(), &observed);
        let expected = nets(&["192.0.2.0/24", "203.0.113.9/32", "fd0a::/64"]);
        assert_eq!(found.all, expected);
    }

    #[test]
    fn named_ones_are_networks_of_the_host_without_a_route() {
        let mut intent = fixture::intent();
        intent.settings.host.cidrs = nets(&["10.8.0.0/24", "10.0.3.0/24"]).into_iter().collect();
        let found = host_networks(&intent, &fixture::host());
        assert_eq!(found.all, nets(&["10.8.0.0/24"]), "not what is the VPC's");
    }

    #[test]
    fn more_than_the_map_is_to_hold_are_left_out_by_name() {
        let intent = fixture::intent();
        let mut observed = routed(&[]);
        // Every second /24, so that none joins another.
        let many = (0..1030_u32).map(|number| {
            let address = std::net::Ipv4Addr::from(0x0b00_0000 + number * 512);
            (ipnet::Ipv4Net::new(address, 24).unwrap().into(), 50)
        });
        observed.host.routes = many.collect();
        let found = host_networks(&intent, &observed);
        assert_eq!((found.all.len(), found.left_out.len()), (1024, 6));
    }
}
