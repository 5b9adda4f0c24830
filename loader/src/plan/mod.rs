//! The plan: the ordered steps from the observed state of the kernel to the desired one.
//!
//! The agent can die between any two steps, and programs run all the time. So every prefix of a
//! plan has to leave a kernel that loses no further packets, and that a new agent can continue
//! from. Additions come first and removals last, except for objects that would misroute packets
//! until then (`plan/turnover.rs`). The orders within are those of the variants of `Addition` and
//! `Removal` in `plan/order.rs`, with their reasons.
//!
//! Objects may vanish by themselves: a link that goes down takes its routes along, the last IPv4
//! address of a device all of the device's IPv4 routes, a device everything on it. The plan does
//! not foresee this; the next diff finds it.

mod dependency;
mod order;
mod turnover;

use std::collections::BTreeSet;

use api::ids::EndpointId;
use api::types::ObjectState;

pub(crate) use self::dependency::rests_on;
use self::order::{Addition, Removal};
use crate::desired::{Desired, desired};
use crate::intent::Intent;
use crate::kernel::{Attachment, Object, ObjectKey, Observed, Scope, Step, StepKind};
use crate::observation::ownership::{Owned, intact_device, recognise};
use crate::observation::view::{OwnedObjects, View};

/// The steps from the kernel as it is to the kernel as it should be, and how the two compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in the order in which they are carried out. None: the kernel is as it should be.
    pub steps: Vec<Planned>,
    /// Everything that should be there.
    pub objects: BTreeSet<Object>,
    /// The objects that are there, of scopes that lack nothing and have nothing to remove.
    pub settled: BTreeSet<Object>,
    /// The view of the node.
    pub view: View,
}

/// A step, and the object that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The step.
    pub step: Step,
    /// The object that it makes or removes.
    pub object: Object,
    /// True if the object is there after the step.
    pub adds: bool,
}

/// Compares what should be with what is. Pure.
#[must_use]
pub fn plan(intent: &Intent, observed: &Observed) -> Plan {
    let desired = desired(intent, observed);
    let owned = recognise(observed, intent.settings.protocol);
    let here = ObservedIndex::new(observed);
    let missing: Vec<(Object, Scope)> = desired
        .objects
        .iter()
        .filter(|(object, _)| !here.has(object))
        .map(|(object, scope)| (*object, *scope))
        .collect();
    let unexpected = unexpected(&desired, &owned, &missing);
    let view = view(&desired, &missing, &unexpected, observed);
    let settled = settled(&desired, &missing, &unexpected);
    let first = turnover::removed_first(&owned, &missing, &unexpected);
    let deferred = turnover::deferred(&desired, &missing, &first, observed);
    let last: Vec<&Owned> = unexpected
        .into_iter()
        .filter(|owned| !first.contains(owned))
        .collect();

    let mut additions: Vec<(Addition, Planned)> = missing
        .iter()
        .filter(|(object, _)| !deferred.contains(object))
        .filter_map(|(object, scope)| {
            let kind = addition(object, intent)?;
            let planned = Planned {
                step: Step {
                    scope: *scope,
                    kind,
                },
                object: *object,
                adds: true,
            };
            Some((Addition::of(object, observed), planned))
        })
        .collect();
    additions.sort_by_key(|(order, _)| *order);
    let additions = additions.into_iter().map(|(_, planned)| planned);
    Plan {
        steps: removals(&first)
            .chain(additions)
            .chain(removals(&last))
            .collect(),
        objects: desired.objects.into_keys().collect(),
        settled,
        view,
    }
}

/// The objects of the scopes in which nothing is missing or unexpected.
fn settled(
    desired: &Desired,
    missing: &[(Object, Scope)],
    unexpected: &[&Owned],
) -> BTreeSet<Object> {
    let missing = missing.iter().map(|(_, scope)| *scope);
    let unexpected = unexpected.iter().map(|owned| owned.scope());
    let open: BTreeSet<Scope> = missing.chain(unexpected).collect();
    let objects = desired.objects.iter();
    objects
        .filter(|(_, scope)| !open.contains(scope))
        .map(|(object, _)| *object)
        .collect()
}

/// Answers whether an object is there as it should be.
struct ObservedIndex<'a> {
    observed: &'a Observed,
    /// The rules by their key: a rule's protocol is no part of what it does, and the kernel
    /// refuses a second rule that differs in nothing else.
    rules: BTreeSet<ObjectKey>,
    /// The endpoints whose device is there and whole.
    devices: BTreeSet<EndpointId>,
}

impl<'a> ObservedIndex<'a> {
    fn new(observed: &'a Observed) -> Self {
        let rules = observed.rules.iter().map(|rule| Object::Rule(*rule).key());
        let finished = observed.links.values().filter_map(intact_device);
        Self {
            observed,
            rules: rules.collect(),
            devices: finished.collect(),
        }
    }

    fn has(&self, object: &Object) -> bool {
        let here = self.observed;
        match object {
            Object::Sysctl(sysctl, value) => here.sysctls.get(sysctl).is_some_and(|v| v == value),
            Object::ReservedPorts(ports) => {
                let wanted = ports.reserved();
                let host = here.host.ports.as_ref();
                host.is_some_and(|host| {
                    host.reserved.contains(&wanted) && wanted.contains(&host.ours)
                })
            }
            Object::Mtu { ifindex, mtu } => here.links.get(ifindex).is_some_and(|l| l.mtu == *mtu),
            Object::Up(ifindex) => here.links.get(ifindex).is_some_and(|l| l.up),
            Object::Device(id) => self.devices.contains(id),
            Object::Rule(_) => self.rules.contains(&object.key()),
            Object::Address(address) => here.addresses.contains(address),
            Object::Route(route) => here.routes.contains(route),
            Object::Neighbour(neighbour) => here.neighbours.contains(neighbour),
            Object::MapEntry(entry) => here.maps.get(&entry.key()) == Some(entry),
            Object::Attachment(hook) => here.attachments.get(hook) == Some(&Attachment::Current),
        }
    }
}

/// Our objects that should not be there. An object that a missing one replaces in place is left to
/// it: removing it would remove the new one.
fn unexpected<'o>(
    desired: &Desired,
    owned: &'o BTreeSet<Owned>,
    missing: &[(Object, Scope)],
) -> Vec<&'o Owned> {
    let replaced: BTreeSet<ObjectKey> = missing.iter().map(|(object, _)| object.key()).collect();
    let rules: BTreeSet<ObjectKey> = desired
        .objects
        .keys()
        .filter(|object| matches!(object, Object::Rule(_)))
        .map(Object::key)
        .collect();
    owned
        .iter()
        .filter(|owned| {
            let object = owned.object();
            let key = object.key();
            !desired.objects.contains_key(&object)
                && !replaced.contains(&key)
                && !rules.contains(&key)
        })
        .collect()
}

/// The step that brings an object about.
fn addition(object: &Object, intent: &Intent) -> Option<StepKind> {
    Some(match *object {
        Object::Sysctl(sysctl, value) => StepKind::SetSysctl(sysctl, value),
        Object::ReservedPorts(ports) => StepKind::ReservePorts(ports),
        Object::Mtu { ifindex, mtu } => StepKind::SetMtu { ifindex, mtu },
        Object::Up(ifindex) => StepKind::SetUp(ifindex),
        Object::Device(id) => {
            let endpoint = intent.endpoints.get(&id);
            // The configuration inside the pod is unknown, so its device cannot be recreated.
            let endpoint = endpoint.filter(|endpoint| !endpoint.is_orphan())?;
            StepKind::CreateEndpointDevice(Box::new(endpoint.clone()))
        }
        Object::Address(address) => StepKind::AddAddress(address),
        Object::Route(route) => StepKind::AddRoute(route),
        Object::Rule(rule) => StepKind::AddRule(rule),
        Object::Neighbour(neighbour) => StepKind::AddNeighbour(neighbour),
        Object::MapEntry(entry) => StepKind::PutMapEntry(entry),
        Object::Attachment(hook) => StepKind::Attach(hook),
    })
}

fn removals(unexpected: &[&Owned]) -> impl Iterator<Item = Planned> + use<> {
    let mut removals: Vec<(Removal, Planned)> = unexpected
        .iter()
        .filter_map(|owned| {
            let planned = Planned {
                step: Step {
                    scope: owned.scope(),
                    kind: owned.removal()?,
                },
                object: owned.object(),
                adds: false,
            };
            Some((Removal::of(&owned.object()), planned))
        })
        .collect();
    removals.sort_by_key(|(order, _)| *order);
    removals.into_iter().map(|(_, planned)| planned)
}

fn view(
    desired: &Desired,
    missing: &[(Object, Scope)],
    unexpected: &[&Owned],
    observed: &Observed,
) -> View {
    let absent: BTreeSet<Object> = missing.iter().map(|(object, _)| *object).collect();
    let should_be = desired.objects.iter().map(|(object, scope)| {
        let state = if absent.contains(object) {
            ObjectState::Missing
        } else {
            ObjectState::Present
        };
        (*object, *scope, state)
    });
    let should_not = unexpected
        .iter()
        .map(|owned| (owned.object(), owned.scope(), ObjectState::Unexpected));
    let mut view = View {
        node: desired.node.clone(),
        primary: desired.primary.clone(),
        enis: desired.enis.clone(),
        endpoints: desired.endpoints.clone(),
        masquerade: desired.masquerade.clone(),
        objects: OwnedObjects::new(should_be.chain(should_not), &observed.links),
    };
    for (object, scope) in missing {
        let reason = format!("missing: {}", object.describe(&observed.links));
        view.note_missing(*scope, &reason);
    }
    view.spread();
    view
}

#[cfg(test)]
mod tests;
