//! Ownership of observed objects.
//!
//! An object is ours if it has one of our exact shapes: selector kind, mask, priority, table, name.
//! Some shapes are also used by foreign programs: Cilium, too, adds a default route to an ENI's
//! table. For these a second object has to be there that only we create. The protocol number is a
//! hint only: the default, `kernel`, is shared with the kernel.
//!
//! Only objects that are recognised here can be removed: [`Owned`] is created in this file, and the
//! removing steps are built from it. An unrecognised leftover of ours is a leak. A removed foreign
//! object is an outage.

use std::collections::BTreeSet;

use api::ids::{EndpointId, EniNumber};
use datapath_common::mark::MarkLayout;
use ipam::Family;
use ipnet::IpNet;

use crate::constants;
use crate::kernel::{
    Action, Address, Link, LinkKind, MapEntry, MapKey, NextHop, Object, Observed, Route, Rule,
    Scope, Selector, StepKind,
};

/// An object that is there and ours, so that it may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owned {
    object: Object,
    ifindex: u32,
    scope: Scope,
}

impl Owned {
    /// The object.
    #[must_use]
    pub fn object(&self) -> Object {
        self.object
    }

    /// Its scope, or its former one.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The step that removes it; none for what is a property of something else.
    #[must_use]
    pub fn removal(&self) -> Option<StepKind> {
        match self.object {
            Object::Sysctl(..) | Object::ReservedPorts(_) | Object::Mtu { .. } | Object::Up(_) => {
                None
            }
            Object::Device(_) => Some(StepKind::DeleteDevice(self.ifindex)),
            Object::Address(address) => Some(StepKind::DeleteAddress(address)),
            Object::Route(route) => Some(StepKind::DeleteRoute(route)),
            Object::Rule(rule) => Some(StepKind::DeleteRule(rule)),
            Object::Neighbour(neighbour) => Some(StepKind::DeleteNeighbour(neighbour)),
            Object::MapEntry(entry) => Some(StepKind::DeleteMapEntry(entry.key())),
            Object::Attachment(hook) => Some(StepKind::Detach(hook)),
        }
    }
}

/// Everything that is there and ours. `protocol` is the routing protocol number in use.
#[must_use]
pub fn recognise(observed: &Observed, protocol: u8) -> BTreeSet<Owned> {
    let tables = eni_tables(observed);
    let mut owned = BTreeSet::new();
    let mut add = |object, ifindex, scope| {
        owned.insert(Owned {
            object,
            ifindex,
            scope,
        });
    };
    for link in observed.links.values() {
        if let Some(id) = endpoint_device(link) {
            add(Object::Device(id), link.ifindex, Scope::Endpoint(id));
        }
    }
    for address in &observed.addresses {
        if let Some(number) = eni_address(address, observed, &tables) {
            add(Object::Address(*address), 0, Scope::Eni(number));
        } else if is_ingress(address, observed) {
            add(Object::Address(*address), 0, Scope::Node);
        }
    }
    for route in &observed.routes {
        if let Some(scope) = route_scope(route, observed, &tables, protocol) {
            add(Object::Route(*route), 0, scope);
        }
    }
    for rule in &observed.rules {
        if let Some(scope) = rule_scope(rule) {
            add(Object::Rule(*rule), 0, scope);
        }
    }
    for neighbour in &observed.neighbours {
        if let Some(id) = device_endpoint(neighbour.ifindex, observed)
            && neighbour.mac == id.pod_mac()
        {
            add(Object::Neighbour(*neighbour), 0, Scope::Endpoint(id));
        }
    }
    for entry in observed.maps.values() {
        add(Object::MapEntry(*entry), 0, entry_scope(entry, observed));
    }
    for hook in observed.attachments.keys().chain(&observed.unpinned) {
        add(
            Object::Attachment(*hook),
            0,
            device_scope(hook.ifindex, observed),
        );
    }
    owned
}

/// The endpoint whose host-side device this is: by kind and name, and by MAC or, if that was
/// changed, by group.
#[must_use]
pub fn endpoint_device(link: &Link) -> Option<EndpointId> {
    EndpointId::from_device(&link.name).filter(|id| {
        let ours = link.mac == Some(id.host_mac()) || link.group == constants::DEVICE_GROUP;
        link.kind == LinkKind::Veth && ours
    })
}

/// The endpoint whose host-side device this is, if the device is finished and has the MAC that the
/// pod sends to.
#[must_use]
pub fn intact_device(link: &Link) -> Option<EndpointId> {
    finished_device(link).filter(|id| link.mac == Some(id.host_mac()))
}

/// The endpoint whose host-side device this is, if the device is finished.
///
/// A pair is created by many requests to the kernel, and the agent can die between any two. Its
/// host end is created down. It gets [`constants::DEVICE_GROUP`] when everything else of the pair
/// is done. A later plan sets it up, after the program and the entries that guard it. So:
///
/// | host-side device | cause | next steps |
/// |---|---|---|
/// | none | not created yet, or deleted | the pair is created |
/// | down, of another group | its creation was interrupted | the pair is created again |
/// | down, of our group | it is new, or was set down | program and entries, then it is set up; the pod keeps its interface |
/// | up | it is in use | none |
///
/// A device that is up is finished, whatever its group, because we set up no unfinished one. A
/// change of the group of a device in use has no effect, unless the device is set down after that.
#[must_use]
pub fn finished_device(link: &Link) -> Option<EndpointId> {
    endpoint_device(link).filter(|_| link.up || link.group == constants::DEVICE_GROUP)
}

fn device_endpoint(ifindex: u32, observed: &Observed) -> Option<EndpointId> {
    observed.links.get(&ifindex).and_then(endpoint_device)
}

fn device_scope(ifindex: u32, observed: &Observed) -> Scope {
    let key = MapKey::EniDevice(ifindex);
    match observed.maps.get(&key) {
        Some(MapEntry::EniDevice(_, number)) => Scope::Eni(*number),
        _ => device_endpoint(ifindex, observed).map_or(Scope::Node, Scope::Endpoint),
    }
}

fn entry_scope(entry: &MapEntry, observed: &Observed) -> Scope {
    match entry {
        MapEntry::Address(_, value) if value.is_endpoint() => {
            device_endpoint(value.ifindex(), observed).map_or(Scope::Node, Scope::Endpoint)
        }
        MapEntry::Address(..) | MapEntry::Destination(..) => Scope::Node,
        MapEntry::Eni(number, _) | MapEntry::EniDevice(_, number) => Scope::Eni(*number),
    }
}

/// The number of the ENI whose table this is, if it is one.
#[must_use]
pub fn table_number(table: u32) -> Option<EniNumber> {
    let number = table.checked_sub(constants::TABLE_ENI_BASE)?;
    u8::try_from(number)
        .ok()
        .filter(|n| *n <= constants::ENI_MAX)
        .map(EniNumber)
}

/// The ENI tables that we use. Only our rules look into one by a masked mark that matches the
/// table's number, and only we add an unreachable default of our metric to one.
fn eni_tables(observed: &Observed) -> BTreeSet<u32> {
    let by_rule = observed.rules.iter().filter_map(|rule| {
        let number = mark_rule_number(rule)?;
        Some(constants::TABLE_ENI_BASE + u32::from(number.0))
    });
    let by_fence = observed
        .routes
        .iter()
        .filter(|r| is_fence(r))
        .map(|r| r.table);
    by_rule.chain(by_fence).collect()
}

/// True if the route is the unreachable default of an ENI's table.
#[must_use]
pub fn is_fence(route: &Route) -> bool {
    table_number(route.table).is_some()
        && route.destination.prefix_len() == 0
        && route.metric == constants::METRIC_UNREACHABLE
        && route.next_hop == NextHop::Unreachable
}

/// The number of the ENI that a rule 111 sends to. The mask may be an earlier setting's, so any
/// mask goes that a layout can have; value and table have to agree.
fn mark_rule_number(rule: &Rule) -> Option<EniNumber> {
    let (Selector::Mark { value, mask }, Action::Table(table)) = (rule.selector, rule.action)
    else {
        return None;
    };
    let number = table_number(table)?;
    let layout = layout_of_field(mask)?;
    (rule.priority == constants::RULE_ENI && layout.eni(u32::from(number.0)) == Some(value))
        .then_some(number)
}

/// The layout that has this mask as its ENI field: two flags lie above it.
fn layout_of_field(mask: u32) -> Option<MarkLayout> {
    let flags = mask
        .checked_shl(2)
        .filter(|_| mask.leading_zeros() >= 2)
        .map(|shifted| mask | shifted)?;
    MarkLayout::new(flags)
        .ok()
        .filter(|layout| layout.field_mask() == mask)
}

fn rule_scope(rule: &Rule) -> Option<Scope> {
    if let Some(number) = mark_rule_number(rule) {
        return Some(Scope::Eni(number));
    }
    if let Some((_, number)) = own_address_rule(rule) {
        return Some(Scope::Eni(number));
    }
    let ours = match (rule.priority, rule.selector, rule.action) {
        (constants::RULE_PODS, Selector::All, Action::Table(table)) => {
            table == constants::TABLE_PODS
        }
        (constants::RULE_SKIP, Selector::Mark { value: 0, mask }, Action::Goto(priority)) => {
            priority == constants::RULE_OWN_ADDRESS && layout_of_field(mask).is_some()
        }
        (constants::RULE_OWN_ADDRESS, Selector::All, Action::Nop) => true,
        _ => false,
    };
    ours.then_some(Scope::Node)
}

/// The address and the ENI of a rule 112 for a secondary ENI's own address.
fn own_address_rule(rule: &Rule) -> Option<(IpNet, EniNumber)> {
    let (Selector::Source(net), Action::Table(table)) = (rule.selector, rule.action) else {
        return None;
    };
    let number = table_number(table).filter(|number| !number.is_primary())?;
    (rule.priority == constants::RULE_OWN_ADDRESS && is_single(&net)).then_some((net, number))
}

/// The secondary ENI that an address is on a device for: our rule for this very address leads to
/// the ENI's table, and the device is the ENI's by the table or by the map. IPv6 addresses of ENIs
/// are the host's, which has rules of ours too.
fn eni_address(
    address: &Address,
    observed: &Observed,
    tables: &BTreeSet<u32>,
) -> Option<EniNumber> {
    if Family::of(address.net.addr()) == Family::V6 {
        return None;
    }
    let device = observed.links.get(&address.ifindex)?;
    if !may_be_eni(device) {
        return None;
    }
    observed
        .rules
        .iter()
        .filter_map(own_address_rule)
        .filter(|(net, _)| *net == address.net)
        .map(|(_, number)| number)
        .find(|number| is_device_of(address.ifindex, *number, observed, tables))
}

/// True for one of the agent's own addresses: it is on the loopback device alone, and its datapath
/// entry has an ENI.
pub(crate) fn is_ingress(address: &Address, observed: &Observed) -> bool {
    let is_loopback = |address: &Address| {
        let device = observed.links.get(&address.ifindex);
        device.is_some_and(|device| device.kind == LinkKind::Loopback)
    };
    let entry = observed.maps.get(&MapKey::Address(address.net.addr()));
    // The translation address of an ENI has the same entry, and is on its device.
    let is_elsewhere =
        |other: &Address| other.net.addr() == address.net.addr() && !is_loopback(other);
    is_single(&address.net)
        && is_loopback(address)
        && matches!(entry, Some(MapEntry::Address(_, entry)) if entry.is_translation())
        && !observed.addresses.iter().any(is_elsewhere)
}

/// True if the table or the map of an ENI leads to a device. The route to the gateway is made
/// before the address, and is all that an agent that was killed may leave; it counts in a table of
/// ours.
fn is_device_of(
    ifindex: u32,
    number: EniNumber,
    observed: &Observed,
    tables: &BTreeSet<u32>,
) -> bool {
    let entry = MapEntry::EniDevice(ifindex, number);
    observed.maps.get(&entry.key()) == Some(&entry)
        || observed.routes.iter().any(|route| {
            table_number(route.table) == Some(number)
                && match route.next_hop {
                    NextHop::Gateway(_, dev) => dev == ifindex,
                    NextHop::Device(dev) => dev == ifindex && tables.contains(&route.table),
                    NextHop::Unreachable | NextHop::Throw => false,
                }
        })
}

/// True if a device can be an ENI's at all.
#[must_use]
pub fn may_be_eni(link: &Link) -> bool {
    match link.kind {
        LinkKind::Loopback | LinkKind::Stacked => false,
        LinkKind::Physical | LinkKind::Veth | LinkKind::Other => endpoint_device(link).is_none(),
    }
}

fn route_scope(
    route: &Route,
    observed: &Observed,
    tables: &BTreeSet<u32>,
    protocol: u8,
) -> Option<Scope> {
    if route.table == constants::TABLE_PODS {
        return pod_route_scope(route, observed);
    }
    let number = table_number(route.table).filter(|_| tables.contains(&route.table))?;
    let plain = route.source.is_none() && route.metric == default_metric(family(route));
    let ours = match route.next_hop {
        NextHop::Unreachable => is_fence(route),
        NextHop::Gateway(gateway, _) => {
            plain
                && route.destination.prefix_len() == 0
                && (gateway.is_ipv4() || gateway == constants::GATEWAY_V6)
        }
        // Others hold up their own tables with such routes, so here the hint has to hold too.
        NextHop::Throw => plain && route.protocol == protocol,
        // A subnet's gateway can be any address, so here the hint has to hold too.
        NextHop::Device(_) => {
            plain
                && route.protocol == protocol
                && is_single(&route.destination)
                && match family(route) {
                    Family::V4 => true,
                    Family::V6 => route.destination.addr() == constants::GATEWAY_V6,
                }
        }
    };
    ours.then_some(Scope::Eni(number))
}

fn pod_route_scope(route: &Route, observed: &Observed) -> Option<Scope> {
    match route.next_hop {
        NextHop::Unreachable => {
            (route.metric == constants::METRIC_UNREACHABLE).then_some(Scope::Node)
        }
        NextHop::Device(ifindex) => {
            let ours =
                is_single(&route.destination) && route.metric == default_metric(family(route));
            device_endpoint(ifindex, observed)
                .filter(|_| ours)
                .map(Scope::Endpoint)
        }
        NextHop::Gateway(..) | NextHop::Throw => None,
    }
}

/// The metric that the kernel reports for a route without a requested one.
#[must_use]
pub fn default_metric(family: Family) -> u32 {
    match family {
        Family::V4 => 0,
        Family::V6 => constants::METRIC_V6_DEFAULT,
    }
}

fn family(route: &Route) -> Family {
    Family::of(route.destination.addr())
}

fn is_single(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

#[cfg(test)]
mod tests;
