//! Interfaces as XML, as listings of interfaces and of instances show them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::element::Element;
use super::{tags, time};
use crate::cloud::{Attachment, Cloud, Eni, Public};
use crate::family::Family;
use crate::space::is_single;

/// An interface of a listing of interfaces.
pub(super) fn interface(cloud: &Cloud, eni: &Eni) -> Vec<Element> {
    let mut elements = common(cloud, eni, true);
    elements.extend([
        Element::text("availabilityZone", &eni.placement.zone),
        Element::text("requesterManaged", eni.requester_managed),
        tags(&eni.tags),
    ]);
    let attachment = eni.attachment.as_ref().map(|attachment| {
        let mut shown = attached(attachment);
        shown.push(Element::text("instanceId", &attachment.instance));
        shown.push(Element::text("instanceOwnerId", &cloud.settings().account));
        Element::of("attachment", shown)
    });
    elements.extend(attachment);
    elements
}

/// An interface of an instance.
pub(super) fn of_instance(cloud: &Cloud, eni: &Eni) -> Vec<Element> {
    let mut elements = common(cloud, eni, false);
    let attachment = eni.attachment.as_ref().map(attached);
    elements.extend(attachment.map(|shown| Element::of("attachment", shown)));
    elements
}

/// The fields of both listings. Only the listing of interfaces has the ids of associations.
fn common(cloud: &Cloud, eni: &Eni, with_ids: bool) -> Vec<Element> {
    let mut elements = vec![
        Element::text("networkInterfaceId", &eni.id),
        Element::text("subnetId", &eni.placement.subnet),
        Element::text("vpcId", &eni.placement.vpc),
        Element::text("description", &eni.description),
        Element::text("ownerId", &cloud.settings().account),
        Element::text("status", eni.status()),
        Element::text("macAddress", &eni.mac),
        Element::text("sourceDestCheck", eni.source_dest_check),
        Element::text("interfaceType", &eni.kind),
        groups(cloud, &eni.groups),
    ];
    let public = |address| {
        let public = eni.addresses.public.get(&address)?;
        Some(association(cloud, public, with_ids))
    };
    elements.extend(Element::maybe("privateIpAddress", eni.addresses.primary));
    elements.extend(eni.addresses.primary.and_then(public));
    let nets = eni.addresses.nets().filter(is_single).map(|net| net.addr());
    let addresses = nets.filter_map(|address| match address {
        IpAddr::V4(address) => {
            let mut shown = vec![
                Element::text("privateIpAddress", address),
                Element::text("primary", eni.addresses.primary == Some(address)),
            ];
            shown.extend(public(address));
            Some(shown)
        }
        IpAddr::V6(_) => None,
    });
    let listed = |name, inner, nets: Vec<String>| {
        let items = nets.into_iter().map(|net| vec![Element::text(inner, net)]);
        Element::list(name, items)
    };
    let ipv6 = eni.addresses.of(Family::V6).filter(|net| is_single(net));
    let ipv6 = ipv6.map(|net| net.addr().to_string()).collect();
    let prefixes = |family| {
        let nets = eni.addresses.of(family).filter(|net| !is_single(net));
        nets.map(IpNet::to_string).collect()
    };
    elements.extend([
        Element::list("privateIpAddressesSet", addresses),
        listed("ipv6AddressesSet", "ipv6Address", ipv6),
        listed("ipv4PrefixSet", "ipv4Prefix", prefixes(Family::V4)),
        listed("ipv6PrefixSet", "ipv6Prefix", prefixes(Family::V6)),
    ]);
    elements
}

fn attached(attachment: &Attachment) -> Vec<Element> {
    vec![
        Element::text("attachmentId", &attachment.id),
        Element::text("deviceIndex", attachment.index),
        Element::text("networkCardIndex", attachment.card),
        Element::text("status", attachment.state.name()),
        time("attachTime", attachment.since),
        Element::text("deleteOnTermination", attachment.delete_on_termination),
    ]
}

fn association(cloud: &Cloud, public: &Public, with_ids: bool) -> Element {
    let mut shown = vec![
        Element::text("publicIp", public.ip),
        Element::text("ipOwnerId", &cloud.settings().account),
    ];
    if with_ids {
        shown.push(Element::text("allocationId", &public.allocation));
        shown.push(Element::text("associationId", &public.association));
    }
    Element::of("association", shown)
}

/// The security groups of an interface.
fn groups(cloud: &Cloud, ids: &[String]) -> Element {
    let group = |id: &String| {
        let mut shown = vec![Element::text("groupId", id)];
        shown.extend(Element::maybe("groupName", cloud.group_name(id)));
        shown
    };
    Element::list("groupSet", ids.iter().map(group))
}
