//! The steps of a plan.

use std::fmt;

use api::ids::{EndpointId, EniNumber};

use super::{Address, Hook, MapEntry, MapKey, Neighbour, Route, Rule, Sysctl};
use crate::intent::Endpoint;
use crate::intent::masquerade::SharedPorts;

/// The scope of a step. A step that fails holds back only what rests on it in its own scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The node as a whole.
    Node,
    /// One ENI.
    Eni(EniNumber),
    /// One endpoint.
    Endpoint(EndpointId),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Eni(number) => write!(f, "eni {number}"),
            Self::Endpoint(id) => write!(f, "endpoint {id}"),
        }
    }
}

/// One change to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Write a sysctl.
    SetSysctl(Sysctl, &'static str),
    /// Set a device's MTU, in bytes.
    SetMtu {
        /// The device.
        ifindex: u32,
        /// The MTU.
        mtu: u32,
    },
    /// Set a device up.
    SetUp(u32),
    /// Make an endpoint's devices and everything inside its namespace.
    CreateEndpointDevice(Box<Endpoint>),
    /// Remove a device of ours.
    DeleteDevice(u32),
    /// Add an address to a device.
    AddAddress(Address),
    /// Remove an address from a device.
    DeleteAddress(Address),
    /// Add a route, or replace the one with the same key.
    AddRoute(Route),
    /// Remove a route.
    DeleteRoute(Route),
    /// Add a rule.
    AddRule(Rule),
    /// Remove a rule.
    DeleteRule(Rule),
    /// Add a permanent neighbour entry, or replace the one with the same key.
    AddNeighbour(Neighbour),
    /// Remove a neighbour entry.
    DeleteNeighbour(Neighbour),
    /// Write a map entry.
    PutMapEntry(MapEntry),
    /// Remove a map entry.
    DeleteMapEntry(MapKey),
    /// Attach our program, or put it in the place of the one that is there.
    Attach(Hook),
    /// Take our program off.
    Detach(Hook),
    /// Have the host's automatic ports keep off these, and off no others for our sake.
    ReservePorts(SharedPorts),
}

/// A change and what it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its scope.
    pub scope: Scope,
    /// The change.
    pub kind: StepKind,
}
