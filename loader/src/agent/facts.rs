//! What the agent itself needs to know of an observation.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::kernel::{Address, Link, Observed};
use crate::masquerade::HostPorts;

/// Addresses and the names of the devices that have them.
pub(super) type Holders = BTreeMap<IpAddr, String>;

/// What the agent itself needs to know of an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Every device of the host's namespace.
    pub(super) links: BTreeMap<u32, Link>,
    /// The addresses of the host's devices.
    pub(super) host: Holders,
    /// The same with prefix lengths, each with its device's index.
    pub(super) nets: BTreeSet<(u32, IpNet)>,
    /// What makes the packets of endpoints' devices take the host's stack, if anything.
    pub(super) via_stack: BTreeMap<u32, Option<String>>,
    /// The host's automatic ports.
    pub(super) ports: Option<HostPorts>,
}

impl Facts {
    /// Reads the facts.
    pub(super) fn of(observed: &Observed) -> Self {
        let mut facts = Self {
            links: observed.links.clone(),
            via_stack: observed.via_stack.clone(),
            ports: observed.host_ports.clone(),
            ..Self::default()
        };
        facts.take_addresses(&observed.addresses);
        facts
    }

    /// Takes what a later look at the addresses of the host's devices saw.
    pub(super) fn take_addresses(&mut self, addresses: &BTreeSet<Address>) {
        let links = &self.links;
        let name = |ifindex| links.get(&ifindex).map_or("?", |link| link.name.as_str());
        let host = addresses
            .iter()
            .map(|address| (address.net.addr(), name(address.ifindex).to_owned()));
        self.host = host.collect();
        self.nets = addresses.iter().map(|a| (a.ifindex, a.net)).collect();
    }

    /// The names of all devices.
    pub(super) fn devices(&self) -> HashSet<&str> {
        self.links.values().map(|link| link.name.as_str()).collect()
    }
}
