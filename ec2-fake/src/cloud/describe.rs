//! Listings: ids, filters, pages, and how old what they see is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;

use super::filter::{Patterns, id_of, plain_values};
use super::{Cloud, Eni};
use crate::answer::{Item, Page};
use crate::call::{Describe, What};
use crate::error::{Failure, Result};
use crate::family::Family;

/// Items that a listing without pages may have.
const MOST_UNPAGED: usize = 1_000;
/// Ids of a call.
const MOST_IDS: usize = 1_000;
/// Values of all filters.
const MOST_VALUES: usize = 200;

impl Cloud {
    pub(super) fn describe(&mut self, describe: &Describe) -> Result<Page> {
        check(describe)?;
        let by_id = !describe.ids.is_empty() && describe.what != What::GroupsForVpc;
        let lag = if by_id {
            self.settings.lag_by_id
        } else {
            self.settings.lag_listing
        };
        let age = lag.draw(&mut self.random);
        let seen = self.time.now.checked_sub(age).unwrap_or(self.time.now);
        let mut items = match describe.what {
            What::Interfaces => self.interfaces_at(seen, describe),
            what => self.items(what, seen),
        };
        if by_id {
            let is_pending = |id: &str| self.interface(id).is_some_and(|eni| eni.is_pending);
            items.retain(|item| !matches!(item, Item::Interface(eni) if is_pending(&eni.id)));
            items = chosen(items, describe)?;
        } else if describe.what == What::GroupsForVpc {
            let vpc = describe.ids.first().map_or("", String::as_str);
            if !self.network.vpcs.contains_key(vpc) {
                return Err(not_found(What::Vpcs, vpc));
            }
            items.retain(|item| matches!(item, Item::Group(group) if group.vpc == vpc));
        }
        let patterns = Patterns::new(&describe.filters);
        items.retain(|item| patterns.match_item(item));
        paged(items, describe)
    }

    /// Every resource of a kind, as it was at a time, in the order of ids.
    fn items(&self, what: What, seen: Timestamp) -> Vec<Item> {
        match what {
            What::Addresses => self.addresses_at(seen),
            What::Instances => self.instances_at(seen),
            What::InstanceTypes => crate::settings::limits::all()
                .iter()
                .map(Item::Type)
                .collect(),
            What::Interfaces => self.enis_at(seen).map(interface).collect(),
            What::RouteTables => self
                .network
                .tables
                .values()
                .cloned()
                .map(Item::RouteTable)
                .collect(),
            What::Groups | What::GroupsForVpc => self
                .network
                .groups
                .values()
                .cloned()
                .map(Item::Group)
                .collect(),
            What::Subnets => {
                let item = |subnet: &super::Subnet| {
                    let free = subnet
                        .space(Family::V4)
                        .map_or(0, crate::space::Space::free);
                    Item::Subnet(subnet.spec.clone(), free)
                };
                self.network.subnets.values().map(item).collect()
            }
            What::Tags => self.tag_items(seen),
            What::Vpcs => self.network.vpcs.values().cloned().map(Item::Vpc).collect(),
        }
    }

    /// The interfaces that a listing has, as far as its page goes and one more. Filters by id come
    /// first, so that most interfaces need no look at their other values.
    fn interfaces_at(&self, seen: Timestamp, describe: &Describe) -> Vec<Item> {
        let filters = &describe.filters;
        if let Some(ids) = plain_values(filters, "network-interface-id") {
            let found = ids.into_iter().filter_map(|id| self.enis.get(id)?.at(seen));
            return found.map(interface).collect();
        }
        let instances = plain_values(filters, "attachment.instance-id");
        let is_left = |eni: &&Arc<Eni>| {
            let attachment = eni.attachment.as_ref();
            let is_of =
                |ids: &BTreeSet<_>| attachment.is_some_and(|it| ids.contains(it.instance.as_str()));
            instances.as_ref().is_none_or(is_of)
        };
        let after = describe.next.as_deref().and_then(last_of);
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let left = self.enis.range::<str, _>((after, Bound::Unbounded));
        let left = left.filter_map(|(_, past)| past.at(seen)).filter(is_left);
        let patterns = Patterns::new(filters);
        let matching = left.map(interface).filter(|item| patterns.match_item(item));
        matching
            .take(describe.max.map_or(usize::MAX, |max| max + 1))
            .collect()
    }

    fn enis_at(&self, seen: Timestamp) -> impl Iterator<Item = &Arc<Eni>> {
        self.enis.values().filter_map(move |past| past.at(seen))
    }

    /// Elastic IP addresses with their associations of that time.
    fn addresses_at(&self, seen: Timestamp) -> Vec<Item> {
        let mut associations = BTreeMap::new();
        for eni in self.enis_at(seen) {
            for (private, public) in &eni.addresses.public {
                let association = (public.association.clone(), eni.id.clone(), *private);
                associations.insert(public.allocation.as_str(), (association, eni));
            }
        }
        let addresses = self.addresses.values().cloned();
        addresses
            .map(|mut elastic| {
                let (association, eni) = associations.remove(elastic.id.as_str()).unzip();
                elastic.association = association;
                Item::Address(elastic, eni.map(Arc::clone))
            })
            .collect()
    }

    fn instances_at(&self, seen: Timestamp) -> Vec<Item> {
        let mut enis: BTreeMap<&str, Vec<Arc<Eni>>> = BTreeMap::new();
        for eni in self.enis_at(seen) {
            if let Some(attachment) = &eni.attachment {
                let list = enis.entry(&attachment.instance).or_default();
                list.push(Arc::clone(eni));
            }
        }
        let instances = self.instances.values().filter_map(|past| past.at(seen));
        instances
            .map(|instance| {
                let enis = enis.remove(instance.id.as_str()).unwrap_or_default();
                Item::Instance(Arc::clone(instance), enis)
            })
            .collect()
    }

    fn tag_items(&self, seen: Timestamp) -> Vec<Item> {
        let kinds = [
            (What::Interfaces, "network-interface"),
            (What::Instances, "instance"),
            (What::Subnets, "subnet"),
            (What::Groups, "security-group"),
            (What::Vpcs, "vpc"),
            (What::RouteTables, "route-table"),
            (What::Addresses, "elastic-ip"),
        ];
        let mut found = Vec::new();
        for (what, kind) in kinds {
            for item in self.items(what, seen) {
                let resource = id_of(&item);
                for (key, value) in super::filter::tags_of(&item).into_iter().flatten() {
                    found.push(Item::Tag {
                        resource: resource.clone(),
                        kind,
                        key: key.clone(),
                        value: value.clone(),
                    });
                }
            }
        }
        found.sort_by_cached_key(id_of);
        found
    }
}

fn interface(eni: &Arc<Eni>) -> Item {
    Item::Interface(Arc::clone(eni))
}

/// The id that a token of a page names.
fn last_of(token: &str) -> Option<&str> {
    token.strip_prefix("after:")
}

/// Refuses what EC2 accepts in no listing.
fn check(describe: &Describe) -> Result<()> {
    let action = describe.what.action();
    super::filter::check(describe.what, &describe.filters)?;
    if let (Some(max), Some(bounds)) = (describe.max, describe.what.page())
        && !bounds.contains(&max)
    {
        return Err(Failure::value(format!(
            "Value ( {max} ) for parameter maxResults is invalid. Expected {} to {}.",
            bounds.start(),
            bounds.end()
        )));
    }
    let pages = describe.max.is_some() || describe.next.is_some();
    if pages && !describe.ids.is_empty() && describe.what != What::GroupsForVpc {
        return Err(Failure::combination(format!(
            "{action}: ids cannot be used with the parameter maxResults"
        )));
    }
    if describe.ids.len() > MOST_IDS {
        return Err(Failure::value(format!("{action}: at most {MOST_IDS} ids")));
    }
    let values = describe.filters.iter().map(|filter| filter.values.len());
    if values.sum::<usize>() > MOST_VALUES {
        return Err(Failure::new(
            "FilterLimitExceeded",
            format!("The maximum number of filter values is {MOST_VALUES}"),
        ));
    }
    Ok(())
}

/// The items of the ids; each has to be there.
fn chosen(items: Vec<Item>, describe: &Describe) -> Result<Vec<Item>> {
    let wanted: BTreeSet<&str> = describe.ids.iter().map(String::as_str).collect();
    let found: Vec<Item> = items
        .into_iter()
        .filter(|item| {
            let address = match item {
                Item::Address(elastic, _) => Some(elastic.ip.to_string()),
                _ => None,
            };
            wanted.contains(id_of(item).as_str())
                || address.is_some_and(|address| wanted.contains(address.as_str()))
        })
        .collect();
    let ids: BTreeSet<String> = found.iter().map(id_of).collect();
    match wanted.iter().find(|id| !ids.contains(**id)) {
        Some(id) if describe.what != What::Addresses || found.is_empty() => {
            Err(not_found(describe.what, id))
        }
        _ => Ok(found),
    }
}

fn not_found(what: What, id: &str) -> Failure {
    let (code, prefix) = match what {
        What::Addresses => ("InvalidAllocationID.NotFound", "eipalloc-"),
        What::Instances => ("InvalidInstanceID", "i-"),
        What::InstanceTypes => ("InvalidInstanceType", ""),
        What::Interfaces => ("InvalidNetworkInterfaceID", "eni-"),
        What::RouteTables => ("InvalidRouteTableID.NotFound", "rtb-"),
        What::Groups | What::GroupsForVpc => ("InvalidGroup.NotFound", "sg-"),
        What::Subnets => ("InvalidSubnetID.NotFound", "subnet-"),
        What::Tags => ("InvalidID", ""),
        What::Vpcs => ("InvalidVpcID.NotFound", "vpc-"),
    };
    let malformed = !id.starts_with(prefix) || id.len() == prefix.len();
    let code = match what {
        What::Instances | What::Interfaces if malformed => format!("{code}.Malformed"),
        What::Instances | What::Interfaces => format!("{code}.NotFound"),
        What::Addresses
        | What::InstanceTypes
        | What::RouteTables
        | What::Groups
        | What::GroupsForVpc
        | What::Subnets
        | What::Tags
        | What::Vpcs => code.to_owned(),
    };
    Failure::new(&code, format!("The ID '{id}' does not exist"))
}

/// A page; its token names the last id of it.
fn paged(mut items: Vec<Item>, describe: &Describe) -> Result<Page> {
    if let Some(token) = &describe.next {
        let after = last_of(token)
            .ok_or_else(|| Failure::value(format!("Unable to parse pagination token {token:?}")))?;
        items.retain(|item| id_of(item).as_str() > after);
    }
    let Some(max) = describe.max else {
        if items.len() > MOST_UNPAGED && describe.what.page().is_some() {
            return Err(Failure::new(
                "OperationNotPermitted",
                format!("more than {MOST_UNPAGED} items: use MaxResults"),
            ));
        }
        return Ok(Page { items, next: None });
    };
    let more = items.len() > max;
    items.truncate(max);
    let last = items.last().filter(|_| more);
    let next = last.map(|item| format!("after:{}", id_of(item)));
    Ok(Page { items, next })
}
