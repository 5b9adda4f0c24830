//! The order of a plan's steps.

use std::cmp::Reverse;

use datapath_common::abi::{Addr, DestinationClass};
use datapath_common::counter::Program;

use crate::constants;
use crate::kernel::{Attachment, LinkKind, MapEntry, NextHop, Object, Observed, Rule};
use crate::observation::ownership::{endpoint_device, is_fence};

/// The order of what is added: what others rest on first, and what lets packets in last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Addition {
    /// The primary's `accept_ra` has to be 2 before forwarding goes on (devices sort before
    /// `all`), or the kernel throws the host's default route away. A secondary's has to be 0
    /// before the device is up.
    Sysctl,
    /// Before any map entry has the new MTU.
    Mtu,
    /// An ENI's. Routes need a device that is up.
    Up,
    /// Its index is known to the next plan only, so nothing else of the endpoint is in this one.
    Device,
    /// Before the route that would have the kernel ask for the address. The device may be down.
    Neighbour,
    /// First in an ENI's table: a marked packet must never fall through to the main table.
    Fence,
    /// A gateway's, or that of an endpoint whose device is up.
    DeviceRoute,
    /// After the routes of the endpoints in it, as far as their devices are up.
    BlockRoute,
    /// The nop that the skip jumps to, and what an ENI's own address sends.
    OwnAddressRule,
    /// After the fence of its table.
    EniRule,
    /// After the pod table is complete.
    PodsRule,
    /// After its rule, which is there to say who put the address there, and so that what the
    /// host sends from it takes the ENI's table from the start.
    Address,
    /// After the route to its gateway. After the ENI's address: without, the kernel would ask for
    /// the gateway with another ENI's, which the cloud takes for a foreign source.
    DefaultRoute,
    /// Before any program marks by it.
    EniDevice,
    /// Before any pod can send to it, and before any ENI has it for translation: until it is known
    /// as that, the host's stack would answer what is for a pod.
    HostAddress,
    /// One of the agent's own, after its entry, which is there to say who put the address there.
    IngressAddress,
    /// Services and VPC: a pod that may send before they are known sends to the wrong place. The
    /// longest prefix first, for the reason given at [`Removal::Destination`].
    Destination(Reverse<u32>),
    /// Where no program runs. Before any flow is translated by the ENI: one turns the answers
    /// back, the other keeps the host's own flows off the translated ones' ports.
    EniAttachment,
    /// After the ENI is up and routed.
    Eni,
    /// Where no program runs, one comes before the endpoint's entry: without the entry it drops
    /// what the pod sends, without the program the stack would route it by the primary.
    EndpointAttachment,
    /// After everything that a packet from or to it needs.
    EndpointAddress,
    /// After the program and the entries, so that no packet of the pod bypasses them. The stack
    /// would send it by the primary, whichever ENI owns its source.
    EndpointUp,
    /// The kernel takes no route to a device that is down. Until now the block's route keeps what
    /// the host sends to the endpoint from leaving the node.
    EndpointRoute,
    /// After the endpoints in it: an address of a block without an endpoint is dropped.
    Block,
    /// A program of ours that runs is replaced when the maps hold all that the new one reads. An
    /// ENI's comes first: an older one does not know the answers to what a pod's new one
    /// translates.
    EniReplacement,
    /// As the ENI's.
    EndpointReplacement,
    /// After the nop: a jump to nowhere is none. After every program marks by the rule's mask:
    /// packets with another mask's mark would skip the ENI rules.
    SkipRule,
}

impl Addition {
    pub(super) fn of(object: &Object, observed: &Observed) -> Self {
        match object {
            Object::Sysctl(..) | Object::ReservedPorts(_) => Self::Sysctl,
            Object::Mtu { .. } => Self::Mtu,
            Object::Up(ifindex) if endpoint_is_down(*ifindex, observed) => Self::EndpointUp,
            Object::Up(_) => Self::Up,
            Object::Device(_) => Self::Device,
            Object::Address(address) if is_loopback(address.ifindex, observed) => {
                Self::IngressAddress
            }
            Object::Address(_) => Self::Address,
            Object::Route(route) if is_fence(route) => Self::Fence,
            Object::Route(route) => match route.next_hop {
                NextHop::Device(ifindex) if endpoint_is_down(ifindex, observed) => {
                    Self::EndpointRoute
                }
                // Before the entry that has pods' packets take it.
                NextHop::Device(_) | NextHop::Throw => Self::DeviceRoute,
                NextHop::Gateway(..) => Self::DefaultRoute,
                NextHop::Unreachable => Self::BlockRoute,
            },
            Object::Rule(rule) => Self::of_rule(rule),
            Object::Neighbour(_) => Self::Neighbour,
            Object::MapEntry(entry) => Self::of_entry(entry),
            Object::Attachment(hook) => {
                let runs = match observed.attachments.get(hook) {
                    Some(Attachment::Current | Attachment::Stale) => true,
                    Some(Attachment::Dead) | None => false,
                };
                match (hook.program, runs) {
                    (Program::FromEndpoint | Program::ToEndpoint, false) => {
                        Self::EndpointAttachment
                    }
                    (Program::FromEndpoint | Program::ToEndpoint, true) => {
                        Self::EndpointReplacement
                    }
                    (Program::FromNetwork | Program::ToNetwork, false) => Self::EniAttachment,
                    (Program::FromNetwork | Program::ToNetwork, true) => Self::EniReplacement,
                }
            }
        }
    }

    fn of_rule(rule: &Rule) -> Self {
        match rule.priority {
            constants::RULE_PODS => Self::PodsRule,
            constants::RULE_SKIP => Self::SkipRule,
            constants::RULE_ENI => Self::EniRule,
            _ => Self::OwnAddressRule,
        }
    }

    fn of_entry(entry: &MapEntry) -> Self {
        match entry {
            MapEntry::Address(_, value) if value.is_endpoint() => Self::EndpointAddress,
            MapEntry::Address(..) => Self::HostAddress,
            MapEntry::Destination(_, class) if class.contains(DestinationClass::BLOCK) => {
                Self::Block
            }
            MapEntry::Destination(net, _) => Self::Destination(Reverse(Addr::prefix(*net).0)),
            MapEntry::Eni(..) => Self::Eni,
            MapEntry::EniDevice(..) => Self::EniDevice,
        }
    }
}

fn is_loopback(ifindex: u32, observed: &Observed) -> bool {
    let link = observed.links.get(&ifindex);
    link.is_some_and(|link| link.kind == LinkKind::Loopback)
}

/// True if a device is an endpoint's, and down.
fn endpoint_is_down(ifindex: u32, observed: &Observed) -> bool {
    let link = observed.links.get(&ifindex);
    link.is_some_and(|link| !link.up && endpoint_device(link).is_some())
}

/// The order of what is removed: what lets packets in first, and what others rest on last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Removal {
    /// From here on what is for the endpoint is dropped and counted. A packet that is redirected
    /// to a device that is gone would be lost uncounted.
    EndpointAddress,
    /// This and the next while the device has its address: without, the kernel would ask for the
    /// gateway with another ENI's, as long as pods send.
    Eni,
    /// From here on marked packets end at the fence.
    DefaultRoute,
    /// While its rule and the device's entry still mark it as ours.
    Address,
    /// An ENI's program marks by entries that go next.
    EniAttachment,
    /// The shortest prefix first. So the addresses of a removed longer prefix match their final
    /// prefix at once, and never one that is about to be removed. The latter may have other
    /// classes: an exempt destination that stays exempt would be masqueraded in between.
    Destination(u32),
    /// No program looks them up any more.
    MapEntry,
    /// Nothing leads to them any more.
    Route,
    /// Removed while the fence is still there.
    Rule,
    /// Removed after the rules that lead to it. Until then it marks the table as ours.
    Fence,
    /// No route leads to it any more.
    Neighbour,
    /// With its program: a pod that still sends must not get past it.
    Device,
    /// The rest of an attachment when its device is gone.
    EndpointAttachment,
}

impl Removal {
    pub(super) fn of(object: &Object) -> Self {
        match object {
            Object::MapEntry(MapEntry::Address(_, value)) if value.is_endpoint() => {
                Self::EndpointAddress
            }
            Object::MapEntry(MapEntry::Eni(..)) => Self::Eni,
            Object::MapEntry(MapEntry::Destination(net, _)) => {
                Self::Destination(Addr::prefix(*net).0)
            }
            // Properties are never removed; they go with their device.
            Object::MapEntry(_)
            | Object::Sysctl(..)
            | Object::ReservedPorts(_)
            | Object::Mtu { .. }
            | Object::Up(_) => Self::MapEntry,
            Object::Device(_) => Self::Device,
            Object::Address(_) => Self::Address,
            Object::Route(route) if is_fence(route) => Self::Fence,
            Object::Route(route) => match route.next_hop {
                NextHop::Gateway(..) => Self::DefaultRoute,
                NextHop::Device(_) | NextHop::Unreachable | NextHop::Throw => Self::Route,
            },
            Object::Rule(_) => Self::Rule,
            Object::Neighbour(_) => Self::Neighbour,
            Object::Attachment(hook) => match hook.program {
                Program::FromEndpoint | Program::ToEndpoint => Self::EndpointAttachment,
                Program::FromNetwork | Program::ToNetwork => Self::EniAttachment,
            },
        }
    }
}
