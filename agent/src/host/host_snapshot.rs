//! Facts of an observation that the agent itself needs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use loader::intent::masquerade::HostPorts;
use loader::kernel::{Address, Link, Observed};

/// Addresses and the names of the devices that have them.
pub(crate) type Holders = BTreeMap<IpAddr, String>;

/// Facts of an observation that the agent itself needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Every device of the host's namespace.
    pub(crate) links: BTreeMap<u32, Link>,
    /// The addresses of the host's devices.
    pub(crate) host: Holders,
    /// The addresses of the host's devices with prefix lengths, each with its device's index.
    pub(crate) nets: BTreeSet<(u32, IpNet)>,
    /// Reasons why the packets of endpoints' devices take the host's stack, if there are any.
    pub(crate) via_stack: BTreeMap<u32, Option<String>>,
    /// The host's automatic ports.
    pub(crate) ports: Option<HostPorts>,
}

impl Facts {
    /// Reads the facts.
    pub(crate) fn of(observed: &Observed) -> Self {
        let mut facts = Self {
            links: observed.links.clone(),
            via_stack: observed.via_stack.clone(),
            ports: observed.host.ports.clone(),
            ..Self::default()
        };
        facts.take_addresses(&observed.addresses);
        facts
    }

    /// Updates the snapshot from a later observation of the addresses of the host's devices.
    pub(crate) fn take_addresses(&mut self, addresses: &BTreeSet<Address>) {
        let links = &self.links;
        let name = |ifindex| links.get(&ifindex).map_or("?", |link| link.name.as_str());
        let host = addresses
            .iter()
            .map(|address| (address.net.addr(), name(address.ifindex).to_owned()));
        self.host = host.collect();
        self.nets = addresses.iter().map(|a| (a.ifindex, a.net)).collect();
    }

    /// The names of all devices.
    pub(crate) fn devices(&self) -> HashSet<&str> {
        self.links.values().map(|link| link.name.as_str()).collect()
    }
}
