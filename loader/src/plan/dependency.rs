//! Dependencies between the steps of a plan: the steps that must be skipped once another one has
//! failed.
//!
//! The kernel would refuse a step that depends on a failed one, or it would let packets in where
//! nothing guards them yet. All other steps go on. So an object that cannot be created affects only
//! the objects that need it. The order of the steps is in `plan/order.rs`.

use std::net::IpAddr;

use datapath_common::counter::Program;
use ipam::Family;

use super::Planned;
use crate::kernel::{
    Action, Address, Attachment, Hook, MapEntry, NextHop, Object, Observed, Route, Rule, Selector,
    SysctlScope,
};
use crate::observation::ownership::is_fence;

/// True if a step must wait because another one of its scope failed, or had to wait itself.
pub(crate) fn rests_on(step: &Planned, failed: &Planned, observed: &Observed) -> bool {
    let (object, other) = (&step.object, &failed.object);
    match (step.adds, failed.adds) {
        (true, true) => object.key() == other.key() || addition(object, other, observed),
        (false, false) => object.key() == other.key() || removal(object, other),
        (false, true) => is_replaced_by(object, other),
        // A misleading object is removed before its replacement is added.
        (true, false) => object.key() == other.key(),
    }
}

fn addition(object: &Object, failed: &Object, observed: &Observed) -> bool {
    match (object, failed) {
        // The host would lose its default route, or take another one from a secondary ENI.
        (Object::Sysctl(sysctl, _), Object::Sysctl(other, _)) => {
            sysctl.family == Family::V6 && sysctl.name == "forwarding" && other.name == "accept_ra"
        }
        (Object::Up(ifindex), Object::Sysctl(sysctl, _)) => {
            sysctl.name == "accept_ra" && sysctl.scope == SysctlScope::Device(*ifindex)
        }
        // The pod's packets would bypass the program.
        (Object::Up(ifindex), Object::Attachment(hook)) => {
            hook.program == Program::FromEndpoint && is_unguarded(*hook, *ifindex, observed)
        }
        (Object::Route(route), Object::Up(ifindex)) => device(route) == Some(*ifindex),
        // The kernel would ask for the gateway with another ENI's address.
        (Object::Route(route), Object::Address(address)) => asks_with(route, address),
        (Object::Rule(rule), Object::Route(route)) => is_end_of(route, rule),
        (Object::Address(address), Object::Rule(rule)) => is_rule_of(rule, address.net.addr()),
        (Object::MapEntry(MapEntry::Eni(_, entry)), failed) => {
            serves_eni(failed, entry.ifindex(), observed)
        }
        _independent => false,
    }
}

/// True if an ENI must not carry pods' packets without this object.
fn serves_eni(object: &Object, ifindex: u32, observed: &Observed) -> bool {
    match object {
        Object::Up(other) | Object::MapEntry(MapEntry::EniDevice(other, _)) => *other == ifindex,
        Object::Address(address) => address.ifindex == ifindex,
        Object::Attachment(hook) => is_unguarded(*hook, ifindex, observed),
        _independent => false,
    }
}

/// True if nothing of ours runs at a hook of the device.
fn is_unguarded(hook: Hook, ifindex: u32, observed: &Observed) -> bool {
    let runs = match observed.attachments.get(&hook) {
        Some(Attachment::Current | Attachment::Stale) => true,
        Some(Attachment::Dead) | None => false,
    };
    hook.ifindex == ifindex && !runs && !observed.unpinned.contains(&hook)
}

fn removal(object: &Object, failed: &Object) -> bool {
    match (object, failed) {
        // A redirect to a deleted device drops packets without a counter.
        (Object::Device(_), Object::MapEntry(MapEntry::Address(_, entry))) => entry.is_endpoint(),
        // Packets that the pod still sends would bypass the program.
        (Object::Attachment(hook), Object::Device(_)) => hook.program == Program::FromEndpoint,
        // As long as pods send by the ENI, the kernel resolves its gateway from this address.
        (Object::Address(address), Object::MapEntry(MapEntry::Eni(_, entry))) => {
            entry.ifindex() == address.ifindex
        }
        (Object::Address(address), Object::Route(route)) => asks_with(route, address),
        (Object::Attachment(hook), Object::MapEntry(MapEntry::Eni(_, entry))) => {
            entry.ifindex() == hook.ifindex
        }
        // The program marks by the entry.
        (Object::MapEntry(MapEntry::EniDevice(ifindex, _)), Object::Attachment(hook)) => {
            *ifindex == hook.ifindex
        }
        // The rule marks the address as ours.
        (Object::Rule(rule), Object::Address(address)) => is_rule_of(rule, address.net.addr()),
        (Object::Route(route), Object::Rule(rule)) => is_end_of(route, rule),
        _independent => false,
    }
}

/// True if an object that goes is what another one takes the place of.
fn is_replaced_by(object: &Object, other: &Object) -> bool {
    match (object, other) {
        (Object::Address(old), Object::Address(new)) => {
            old.ifindex == new.ifindex && old.net.addr().is_ipv4() == new.net.addr().is_ipv4()
        }
        // The addresses of the longer prefix would have no class.
        (
            Object::MapEntry(MapEntry::Destination(old, _)),
            Object::MapEntry(MapEntry::Destination(new, _)),
        ) => old.contains(new) || new.contains(old),
        _independent => false,
    }
}

/// True if the kernel resolves a route's gateway from an address.
fn asks_with(route: &Route, address: &Address) -> bool {
    let same_family = |gateway: IpAddr| gateway.is_ipv4() == address.net.addr().is_ipv4();
    matches!(
        route.next_hop,
        NextHop::Gateway(gateway, ifindex) if ifindex == address.ifindex && same_family(gateway)
    )
}

fn device(route: &Route) -> Option<u32> {
    match route.next_hop {
        NextHop::Device(ifindex) | NextHop::Gateway(_, ifindex) => Some(ifindex),
        NextHop::Unreachable | NextHop::Throw => None,
    }
}

/// True if a rule leads into the table that this fence ends.
fn is_end_of(fence: &Route, rule: &Rule) -> bool {
    is_fence(fence)
        && rule.action == Action::Table(fence.table)
        && fence.destination == rule.family.default_route()
}

/// True if a rule is the one for what is sent from an address.
fn is_rule_of(rule: &Rule, address: IpAddr) -> bool {
    matches!(rule.selector, Selector::Source(net) if net.addr() == address)
}
