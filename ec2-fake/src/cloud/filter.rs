//! Filters of listings.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use wildmatch::WildMatch;

use super::{Elastic, Eni};
use crate::answer::Item;
use crate::call::{Filter, What};
use crate::error::{Failure, Result};
use crate::family::Family;
use crate::world::{self, Tags};

/// The id of an item, which listings are ordered by.
pub(super) fn id_of(item: &Item) -> String {
    match item {
        Item::Address(elastic, _) => elastic.id.clone(),
        Item::Group(group) => group.id.clone(),
        Item::Instance(instance, _) => instance.id.clone(),
        Item::Interface(eni) => eni.id.clone(),
        Item::RouteTable(table) => table.id.clone(),
        Item::Subnet(subnet, _) => subnet.id.clone(),
        Item::Tag { resource, key, .. } => format!("{resource}/{key}"),
        Item::Type(limits) => limits.name.to_owned(),
        Item::Vpc(vpc) => vpc.id.clone(),
    }
}

/// The tags of an item, if such items have tags.
pub(super) fn tags_of(item: &Item) -> Option<&Tags> {
    match item {
        Item::Address(elastic, _) => Some(&elastic.tags),
        Item::Group(group) => Some(&group.tags),
        Item::Instance(instance, _) => Some(&instance.tags),
        Item::Interface(eni) => Some(&eni.tags),
        Item::RouteTable(table) => Some(&table.tags),
        Item::Subnet(subnet, _) => Some(&subnet.tags),
        Item::Vpc(vpc) => Some(&vpc.tags),
        Item::Tag { .. } | Item::Type(_) => None,
    }
}

/// The filters of a listing, ready to be matched with many items.
pub(super) struct Patterns<'a>(Vec<(&'a str, Values<'a>)>);

/// The values of a filter.
struct Values<'a> {
    /// Those without a wildcard. Filters by id have many.
    plain: BTreeSet<&'a str>,
    wild: Vec<WildMatch>,
}

impl<'a> Values<'a> {
    fn new(values: &'a [String]) -> Self {
        let has_wildcard = |it: &&str| it.contains(['*', '?']);
        let all = values.iter().map(String::as_str);
        let wild = all.clone().filter(has_wildcard);
        Self {
            wild: wild.map(WildMatch::new).collect(),
            plain: all.filter(|it| !has_wildcard(it)).collect(),
        }
    }

    fn has(&self, value: &str) -> bool {
        self.plain.contains(value) || self.wild.iter().any(|it| it.matches(value))
    }
}

impl<'a> Patterns<'a> {
    pub(super) fn new(filters: &'a [Filter]) -> Self {
        let all = filters.iter();
        Self(
            all.map(|it| (it.name.as_str(), Values::new(&it.values)))
                .collect(),
        )
    }

    /// True if the item has a value of each filter.
    pub(super) fn match_item(&self, item: &Item) -> bool {
        self.0.iter().all(|(name, wanted)| {
            let found = values(item, name).unwrap_or_default();
            found.iter().any(|value| wanted.has(value))
        })
    }
}

/// The values of a filter that has no wildcard, in order; none if there is no such filter.
pub(super) fn plain_values<'a>(filters: &'a [Filter], name: &str) -> Option<BTreeSet<&'a str>> {
    let mut of_name = filters.iter().filter(|it| it.name == name);
    let Values { plain, wild } = Values::new(&of_name.next()?.values);
    wild.is_empty().then_some(plain)
}

/// Refuses filters that a listing does not have.
pub(super) fn check(what: What, filters: &[Filter]) -> Result<()> {
    let has_tags = !matches!(what, What::InstanceTypes | What::Tags);
    for filter in filters {
        let name = filter.name.as_str();
        let of_tags = has_tags && (name.starts_with("tag:") || name == "tag-key");
        if !of_tags && !names(what).contains(&name) {
            return Err(Failure::value(format!("The filter '{name}' is invalid")));
        }
    }
    Ok(())
}

/// The filters of a listing, without those by tag.
pub(super) fn names(what: What) -> &'static [&'static str] {
    match what {
        What::Addresses => &[
            "allocation-id",
            "public-ip",
            "association-id",
            "network-interface-id",
            "private-ip-address",
            "instance-id",
        ],
        What::Groups | What::GroupsForVpc => &["group-id", "group-name", "vpc-id"],
        What::Instances => &[
            "instance-id",
            "instance-type",
            "instance-state-name",
            "vpc-id",
            "subnet-id",
            "availability-zone",
            "private-ip-address",
        ],
        What::Interfaces => INTERFACE_FILTERS,
        What::RouteTables => &[
            "route-table-id",
            "vpc-id",
            "association.subnet-id",
            "association.main",
        ],
        What::Subnets => &[
            "subnet-id",
            "vpc-id",
            "availability-zone",
            "availabilityZone",
            "state",
            "cidr-block",
            "cidr",
            "available-ip-address-count",
        ],
        What::Tags => &["resource-id", "resource-type", "key", "value"],
        What::InstanceTypes => &["instance-type", "hypervisor", "bare-metal"],
        What::Vpcs => &[
            "vpc-id",
            "cidr",
            "cidr-block-association.cidr-block",
            "state",
        ],
    }
}

const INTERFACE_FILTERS: &[&str] = &[
    "attachment.instance-id",
    "attachment.attachment-id",
    "attachment.device-index",
    "attachment.status",
    "attachment.delete-on-termination",
    "network-interface-id",
    "subnet-id",
    "vpc-id",
    "availability-zone",
    "status",
    "description",
    "interface-type",
    "mac-address",
    "group-id",
    "private-ip-address",
    "addresses.private-ip-address",
    "ipv6-addresses.ipv6-address",
    "ipv4-prefix.ipv4-prefix",
    "ipv6-prefix.ipv6-prefix",
    "requester-managed",
    "source-dest-check",
    "association.public-ip",
];

/// The values of a filter, `None` for one that such items do not have.
pub(super) fn values(item: &Item, name: &str) -> Option<Vec<String>> {
    if let Some(tags) = tags_of(item) {
        if let Some(key) = name.strip_prefix("tag:") {
            return Some(tags.get(key).cloned().into_iter().collect());
        }
        if name == "tag-key" {
            return Some(tags.keys().cloned().collect());
        }
    }
    match item {
        Item::Address(elastic, eni) => address_values(elastic, eni.as_deref(), name),
        Item::Group(group) => match name {
            "group-id" => Some(vec![group.id.clone()]),
            "group-name" => Some(vec![group.name.clone()]),
            "vpc-id" => Some(vec![group.vpc.clone()]),
            _ => None,
        },
        Item::Instance(instance, enis) => instance_values(instance, enis, name),
        Item::Interface(eni) => eni_values(eni, name),
        Item::RouteTable(table) => match name {
            "route-table-id" => Some(vec![table.id.clone()]),
            "vpc-id" => Some(vec![table.vpc.clone()]),
            "association.subnet-id" => Some(table.subnets.clone()),
            "association.main" => Some(vec![table.main.to_string()]),
            _ => None,
        },
        Item::Subnet(subnet, free) => subnet_values(subnet, *free, name),
        Item::Tag {
            resource,
            kind,
            key,
            value,
        } => match name {
            "resource-id" => Some(vec![resource.clone()]),
            "resource-type" => Some(vec![(*kind).to_owned()]),
            "key" => Some(vec![key.clone()]),
            "value" => Some(vec![value.clone()]),
            _ => None,
        },
        Item::Type(limits) => match name {
            "instance-type" => Some(vec![limits.name.to_owned()]),
            "hypervisor" => Some(texts(limits.hypervisor)),
            "bare-metal" => Some(vec![limits.hypervisor.is_none().to_string()]),
            _ => None,
        },
        Item::Vpc(vpc) => match name {
            "vpc-id" => Some(vec![vpc.id.clone()]),
            "cidr" => Some(texts(vpc.cidrs.first())),
            "cidr-block-association.cidr-block" => Some(texts(&vpc.cidrs)),
            "state" => Some(vec!["available".to_owned()]),
            _ => None,
        },
    }
}

fn address_values(elastic: &Elastic, eni: Option<&Eni>, name: &str) -> Option<Vec<String>> {
    let association = elastic.association.as_ref();
    let of_eni = |eni: &Eni| {
        let attachment = eni.attachment.as_ref();
        attachment.map(|attachment| attachment.instance.clone())
    };
    let value = match name {
        "allocation-id" => Some(elastic.id.clone()),
        "public-ip" => Some(elastic.ip.to_string()),
        "association-id" => association.map(|(id, ..)| id.clone()),
        "network-interface-id" => association.map(|(_, eni, _)| eni.clone()),
        "private-ip-address" => association.map(|(_, _, ip)| ip.to_string()),
        "instance-id" => eni.and_then(of_eni),
        _ => return None,
    };
    Some(value.into_iter().collect())
}

fn subnet_values(subnet: &world::Subnet, free: u128, name: &str) -> Option<Vec<String>> {
    match name {
        "subnet-id" => Some(vec![subnet.id.clone()]),
        "vpc-id" => Some(vec![subnet.vpc.clone()]),
        "availability-zone" | "availabilityZone" => Some(vec![subnet.zone.clone()]),
        "state" => Some(vec!["available".to_owned()]),
        "cidr-block" | "cidr" => Some(texts(subnet.ipv4)),
        "available-ip-address-count" => Some(vec![free.to_string()]),
        _ => None,
    }
}

fn instance_values(
    instance: &super::Instance,
    enis: &[std::sync::Arc<Eni>],
    name: &str,
) -> Option<Vec<String>> {
    let primary = || {
        let first = |eni: &&std::sync::Arc<Eni>| {
            let attachment = eni.attachment.as_ref();
            attachment.is_some_and(|found| found.index == 0 && found.card == 0)
        };
        enis.iter()
            .find(first)
            .and_then(|eni| eni.addresses.primary)
    };
    match name {
        "instance-id" => Some(vec![instance.id.clone()]),
        "instance-type" => Some(vec![instance.kind.clone()]),
        "instance-state-name" => Some(vec![instance.state.wire().1.to_owned()]),
        "vpc-id" => Some(vec![instance.vpc.clone()]),
        "subnet-id" => Some(vec![instance.subnet.clone()]),
        "availability-zone" => Some(vec![instance.zone.clone()]),
        "private-ip-address" => Some(texts(primary())),
        _ => None,
    }
}

fn eni_values(eni: &Eni, name: &str) -> Option<Vec<String>> {
    let attachment = eni.attachment.as_ref();
    let of_attachment = match name {
        "attachment.instance-id" => Some(attachment.map(|found| found.instance.clone())),
        "attachment.attachment-id" => Some(attachment.map(|found| found.id.clone())),
        "attachment.device-index" => Some(attachment.map(|found| found.index.to_string())),
        "attachment.status" => Some(attachment.map(|found| found.state.name().to_owned())),
        "attachment.delete-on-termination" => {
            Some(attachment.map(|found| found.delete_on_termination.to_string()))
        }
        _ => None,
    };
    if let Some(value) = of_attachment {
        return Some(value.into_iter().collect());
    }
    let is_address = |net: &IpNet| crate::space::is_single(net);
    let singles = |family: Family| {
        let nets = eni
            .addresses
            .nets()
            .filter(is_address)
            .map(|net| net.addr());
        texts(nets.filter(move |address: &IpAddr| Family::of(address) == family))
    };
    let prefixes = |family: Family| texts(eni.addresses.of(family).filter(|net| !is_address(net)));
    match name {
        "network-interface-id" => Some(vec![eni.id.clone()]),
        "subnet-id" => Some(vec![eni.placement.subnet.clone()]),
        "vpc-id" => Some(vec![eni.placement.vpc.clone()]),
        "availability-zone" => Some(vec![eni.placement.zone.clone()]),
        "status" => Some(vec![eni.status().to_owned()]),
        "description" => Some(vec![eni.description.clone()]),
        "interface-type" => Some(vec![eni.kind.clone()]),
        "mac-address" => Some(vec![eni.mac.clone()]),
        "group-id" => Some(eni.groups.clone()),
        "private-ip-address" => Some(texts(eni.addresses.primary)),
        "addresses.private-ip-address" => Some(singles(Family::V4)),
        "ipv6-addresses.ipv6-address" => Some(singles(Family::V6)),
        "ipv4-prefix.ipv4-prefix" => Some(prefixes(Family::V4)),
        "ipv6-prefix.ipv6-prefix" => Some(prefixes(Family::V6)),
        "requester-managed" => Some(vec![eni.requester_managed.to_string()]),
        "source-dest-check" => Some(vec![eni.source_dest_check.to_string()]),
        "association.public-ip" => {
            Some(texts(eni.addresses.public.values().map(|public| public.ip)))
        }
        _ => None,
    }
}

fn texts<T: ToString>(values: impl IntoIterator<Item = T>) -> Vec<String> {
    values.into_iter().map(|value| value.to_string()).collect()
}
