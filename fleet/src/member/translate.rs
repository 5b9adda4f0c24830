//! A document as a node that can be planned for.

use std::collections::BTreeMap;

use cloud::elastic::Wish;
use cloud::groups;
use cloud::node::{EniRules, Node, Release};
use cloud::object::subnet::Location;
use cloud::want::{Demand, Requested, Watermarks, pre_allocate};
use cloud::{EniId, GroupId, InstanceId, SubnetId, VpcId};
use kubernetes::operation::node::{DEFAULT_POOL, NodeDocument};

use crate::Settings;

pub(super) fn node(document: &NodeDocument, pending: u32, settings: &Settings) -> Node {
    let rules = &document.rules;
    let bounds = &document.bounds;
    let ids = document.rules.groups.iter();
    Node {
        instance: document.instance.id.as_deref().and_then(InstanceId::parse),
        instance_type: document.instance.kind.clone(),
        location: location(document),
        is_ignored: document.meta.is_ignored,
        rules: EniRules {
            first_index: rules.first_index,
            exclude_tags: rules.exclude_tags.clone(),
            prefixes: settings.enis.prefixes && rules.prefixes,
            use_primary: rules.use_primary,
            delete_on_termination: rules.delete_on_termination,
            static_ip: Wish {
                tags: document.static_ip.tags.clone(),
                last: document.static_ip.assigned,
            },
        },
        groups: groups::Wish {
            ids: ids.filter_map(|id| GroupId::parse(id)).collect(),
            tags: rules.group_tags.clone(),
            or_primary: settings.enis.primary_groups,
        },
        demand: demand(document),
        pools: pools(document),
        marks: Watermarks {
            pre: pre_allocate(bounds.pre),
            min: bounds.min,
            max: bounds.max,
            above: bounds.above,
        },
        release: Release::default(),
        published: document
            .published
            .iter()
            .filter_map(|id| EniId::parse(id))
            .collect(),
        pending: if settings.surge { pending } else { 0 },
    }
}

fn location(document: &NodeDocument) -> Option<Location> {
    let place = &document.place;
    let ids = place.subnet_ids.iter();
    // With ids, the tags of subnets do not count.
    let has_ids = !place.subnet_ids.is_empty();
    let tags = Some(&place.subnet_tags).filter(|_| !has_ids);
    Some(Location {
        vpc: place.vpc.as_deref().and_then(VpcId::parse)?,
        zone: place.zone.clone()?,
        own: place.own_subnet.as_deref().and_then(SubnetId::parse),
        ids: ids.filter_map(|id| SubnetId::parse(id)).collect(),
        tags: tags.cloned().unwrap_or_default(),
    })
}

fn demand(document: &NodeDocument) -> Demand {
    let requested = document.demand.requested.get(DEFAULT_POOL);
    Demand {
        requested: requested.map(|it| Requested {
            ipv4: it.ipv4,
            ipv6: it.ipv6,
        }),
        used: document.demand.used,
    }
}

/// The demand for other pools. While the agent shows each address that it uses, it is stale.
fn pools(document: &NodeDocument) -> BTreeMap<String, Requested> {
    if document.demand.used > 0 {
        return BTreeMap::new();
    }
    let others = document.demand.requested.iter();
    let others = others.filter(|(pool, _)| *pool != DEFAULT_POOL);
    others
        .map(|(pool, needed)| {
            let requested = Requested {
                ipv4: needed.ipv4,
                ipv6: needed.ipv6,
            };
            (pool.clone(), requested)
        })
        .collect()
}
