//! Answers and errors as XML elements.

mod element;
mod instance;
mod interface;
mod network;
#[cfg(test)]
mod tests;

use ipnet::IpNet;
use jiff::Timestamp;

use self::element::Element;
use super::model::MODEL;
use crate::answer::{Answer, Item, Page};
use crate::call::{Call, What};
use crate::cloud::Cloud;
use crate::error::Failure;
use crate::family::Family;
use crate::space::is_single;
use crate::world::Tags;

/// The answer of a call that succeeded.
pub(super) fn answer(cloud: &Cloud, call: &Call, answer: &Answer, request: &str) -> Element {
    let mut elements = vec![Element::text("requestId", request)];
    elements.extend(content(cloud, call, answer));
    let name = format!("{}Response", call.action());
    Element::of(&name, elements).with_namespace(&MODEL.namespace)
}

/// An error.
pub(super) fn failure(failure: &Failure, request: &str) -> Element {
    let error = vec![
        Element::text("Code", &failure.code),
        Element::text("Message", &failure.message),
    ];
    let errors = Element::of("Errors", vec![Element::of("Error", error)]);
    Element::of(
        "Response",
        vec![errors, Element::text("RequestID", request)],
    )
}

fn content(cloud: &Cloud, call: &Call, answer: &Answer) -> Vec<Element> {
    match answer {
        Answer::Page(page) => {
            let what = match call {
                Call::Describe(describe) => Some(describe.what),
                _ => None,
            };
            what.map_or_else(Vec::new, |what| listing(cloud, what, page))
        }
        Answer::Created { eni, token } => {
            let shown = interface::interface(cloud, eni);
            let token = Element::maybe("clientToken", token.as_ref());
            let elements = [Some(Element::of("networkInterface", shown)), token];
            elements.into_iter().flatten().collect()
        }
        Answer::Attached { attachment, card } => vec![
            Element::text("attachmentId", attachment),
            Element::text("networkCardIndex", card),
        ],
        Answer::Assigned {
            family,
            eni,
            blocks,
        } => assigned(*family, eni, blocks),
        Answer::Unassigned {
            family,
            eni,
            blocks,
        } => unassigned(*family, eni, blocks),
        Answer::Associated(association) => {
            vec![succeeded(), Element::text("associationId", association)]
        }
        Answer::Done => vec![succeeded()],
    }
}

/// EC2's word for success. The model lacks it, as clients have no use for it.
fn succeeded() -> Element {
    Element::text("return", true)
}

fn listing(cloud: &Cloud, what: What, page: &Page) -> Vec<Element> {
    let name = match what {
        What::Addresses => "addressesSet",
        What::Instances => "reservationSet",
        What::InstanceTypes => "instanceTypeSet",
        What::Interfaces => "networkInterfaceSet",
        What::RouteTables => "routeTableSet",
        What::Groups => "securityGroupInfo",
        What::GroupsForVpc => "securityGroupForVpcSet",
        What::Subnets => "subnetSet",
        What::Tags => "tagSet",
        What::Vpcs => "vpcSet",
    };
    let items = page.items.iter().map(|item| shown(cloud, what, item));
    let next = Element::maybe("nextToken", page.next.as_ref());
    [Some(Element::list(name, items)), next]
        .into_iter()
        .flatten()
        .collect()
}

fn shown(cloud: &Cloud, what: What, item: &Item) -> Vec<Element> {
    match item {
        Item::Address(elastic, eni) => network::address(cloud, elastic, eni.as_deref()),
        Item::Group(group) if what == What::GroupsForVpc => network::group_of_vpc(cloud, group),
        Item::Group(group) => network::group(cloud, group),
        Item::Instance(instance, enis) => instance::reservation(cloud, instance, enis),
        Item::Interface(eni) => interface::interface(cloud, eni),
        Item::RouteTable(table) => network::route_table(cloud, table),
        Item::Subnet(subnet, free) => network::subnet(cloud, subnet, *free),
        Item::Tag {
            resource,
            kind,
            key,
            value,
        } => vec![
            Element::text("resourceId", resource),
            Element::text("resourceType", kind),
            Element::text("key", key),
            Element::text("value", value),
        ],
        Item::Type(limits) => instance::kind(limits),
        Item::Vpc(vpc) => network::vpc(cloud, vpc),
    }
}

fn assigned(family: Family, eni: &str, blocks: &[IpNet]) -> Vec<Element> {
    let (singles, prefixes) = parted(blocks);
    let lists = match family {
        Family::V4 => {
            let single = |net: &&IpNet| vec![Element::text("privateIpAddress", net.addr())];
            let prefix = |net: &&IpNet| vec![Element::text("ipv4Prefix", net)];
            let (singles, prefixes) = (singles.iter().map(single), prefixes.iter().map(prefix));
            [
                Element::list("assignedPrivateIpAddressesSet", singles),
                Element::list("assignedIpv4PrefixSet", prefixes),
            ]
        }
        Family::V6 => [
            Element::texts(
                "assignedIpv6Addresses",
                singles.iter().map(|net| net.addr()),
            ),
            Element::texts("assignedIpv6PrefixSet", prefixes),
        ],
    };
    let mut elements = vec![Element::text("networkInterfaceId", eni)];
    elements.extend(lists);
    elements
}

fn unassigned(family: Family, eni: &str, blocks: &[IpNet]) -> Vec<Element> {
    let (singles, prefixes) = parted(blocks);
    match family {
        Family::V4 => vec![succeeded()],
        Family::V6 => vec![
            Element::text("networkInterfaceId", eni),
            Element::texts(
                "unassignedIpv6Addresses",
                singles.iter().map(|net| net.addr()),
            ),
            Element::texts("unassignedIpv6PrefixSet", prefixes),
        ],
    }
}

/// Single addresses, and prefixes.
fn parted(blocks: &[IpNet]) -> (Vec<&IpNet>, Vec<&IpNet>) {
    blocks.iter().partition(|net| is_single(net))
}

/// The tags of a resource.
fn tags(tags: &Tags) -> Element {
    let pair = |(key, value)| vec![Element::text("key", key), Element::text("value", value)];
    Element::list("tagSet", tags.iter().map(pair))
}

/// A time as EC2 writes it, in milliseconds.
fn time(name: &str, time: Timestamp) -> Element {
    Element::text(name, time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ"))
}
