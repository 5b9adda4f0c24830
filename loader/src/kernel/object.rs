//! The objects that we own, of whatever kind, as one type: what the diff, the view and the repair
//! counts go by.

use std::net::IpAddr;

use api::ids::EndpointId;
use api::types::ObjectKind;
use ipam::Family;
use ipnet::IpNet;

use super::{Action, Address, Hook, MapEntry, MapKey, Neighbour, Route, Rule, Selector, Sysctl};
use crate::intent::masquerade::SharedPorts;

/// One thing that should be so in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// A sysctl has a value.
    Sysctl(Sysctl, &'static str),
    /// The host's automatic ports keep off these, whatever else they keep off.
    ReservedPorts(SharedPorts),
    /// A device has an MTU, in bytes.
    Mtu {
        /// The device.
        ifindex: u32,
        /// The MTU.
        mtu: u32,
    },
    /// A device is up.
    Up(u32),
    /// An endpoint's devices are there.
    Device(EndpointId),
    /// A device has an address.
    Address(Address),
    /// A route is there.
    Route(Route),
    /// A rule is there.
    Rule(Rule),
    /// A permanent neighbour entry is there.
    Neighbour(Neighbour),
    /// A map holds an entry.
    MapEntry(MapEntry),
    /// Our current program hangs at a hook.
    Attachment(Hook),
}

/// The identity of an object, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKey {
    /// A sysctl.
    Sysctl(Sysctl),
    /// The ports that the host's automatic ports keep off.
    ReservedPorts,
    /// A device's MTU.
    Mtu(u32),
    /// A device's administrative state.
    Up(u32),
    /// An endpoint's devices.
    Device(EndpointId),
    /// An address on a device.
    Address(Address),
    /// A route: table, destination and metric, as the kernel keys it.
    Route(u32, IpNet, u32),
    /// A rule: everything but its protocol, as the kernel keys it.
    Rule(Family, u32, Selector, Action),
    /// A neighbour entry: device and address.
    Neighbour(u32, IpAddr),
    /// A map entry.
    MapEntry(MapKey),
    /// A hook.
    Attachment(Hook),
}

impl Object {
    /// The object's identity, without its value.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        match *self {
            Self::Sysctl(sysctl, _) => ObjectKey::Sysctl(sysctl),
            Self::ReservedPorts(_) => ObjectKey::ReservedPorts,
            Self::Mtu { ifindex, .. } => ObjectKey::Mtu(ifindex),
            Self::Up(ifindex) => ObjectKey::Up(ifindex),
            Self::Device(id) => ObjectKey::Device(id),
            Self::Address(address) => ObjectKey::Address(address),
            Self::Route(route) => ObjectKey::Route(route.table, route.destination, route.metric),
            Self::Rule(rule) => {
                ObjectKey::Rule(rule.family, rule.priority, rule.selector, rule.action)
            }
            Self::Neighbour(neighbour) => {
                ObjectKey::Neighbour(neighbour.ifindex, neighbour.address)
            }
            Self::MapEntry(entry) => ObjectKey::MapEntry(entry.key()),
            Self::Attachment(hook) => ObjectKey::Attachment(hook),
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::Sysctl(..) | Self::ReservedPorts(_) => ObjectKind::Sysctl,
            Self::Mtu { .. } => ObjectKind::Mtu,
            Self::Up(_) => ObjectKind::LinkState,
            Self::Device(_) => ObjectKind::Device,
            Self::Address(_) => ObjectKind::Address,
            Self::Route(_) => ObjectKind::Route,
            Self::Rule(_) => ObjectKind::Rule,
            Self::Neighbour(_) => ObjectKind::Neighbour,
            Self::MapEntry(_) => ObjectKind::MapEntry,
            Self::Attachment(_) => ObjectKind::Attachment,
        }
    }
}
