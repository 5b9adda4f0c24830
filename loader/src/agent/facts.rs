//! What the agent itself needs to know of an observation.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::kernel::{Address, Link, Observed};
use crate::masquerade::HostPorts;
use crate::types::EndpointId;

/// Addresses and the names of the devices that have them.
pub(super) type Holders = BTreeMap<IpAddr, String>;

/// What the agent itself needs to know of an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Every device of the host's namespace, hidden ones included.
    pub(super) links: BTreeMap<u32, Link>,
    /// The addresses of the host's devices.
    pub(super) host: Holders,
    /// The same with prefix lengths, each with its device's index.
    pub(super) nets: BTreeSet<(u32, IpNet)>,
    /// The addresses of hidden endpoints.
    pub(super) hidden: Holders,
    /// What makes the packets of endpoints' devices take the host's stack, if anything.
    pub(super) via_stack: BTreeMap<u32, Option<String>>,
    /// The host's automatic ports.
    pub(super) ports: Option<HostPorts>,
}

impl Facts {
    /// Reads the facts, and takes out of the observation what belongs to hidden endpoints.
    pub(super) fn take(observed: &mut Observed, hidden: &BTreeSet<EndpointId>) -> Self {
        let links = observed.links.clone();
        let devices = observed.devices_of(|id| hidden.contains(&id));
        let mut facts = Self {
            links,
            via_stack: observed.via_stack.clone(),
            ports: observed.host_ports.clone(),
            ..Self::default()
        };
        facts.take_addresses(&observed.addresses);
        if !devices.is_empty() {
            facts.hidden = observed.take_devices(&devices);
        }
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

#[cfg(test)]
mod tests {
    use datapath_common::abi::{AddressEntry, EndpointAddress};
    use datapath_common::counter::Program;
    use datapath_common::masquerade::PoolPolicy;

    use super::*;
    use crate::kernel::{Attachment, Hook, LinkKind, MapEntry, MapKey, Neighbour, NextHop, Route};
    use crate::types::{MacAddr, Owner};

    fn id(container: &str) -> EndpointId {
        EndpointId::of(&Owner {
            container_id: container.into(),
            interface: "eth0".into(),
        })
    }

    /// A device with one object of each kind on it.
    fn add_endpoint(observed: &mut Observed, ifindex: u32, id: EndpointId, address: &str) {
        let address: IpAddr = address.parse().unwrap();
        let link = Link {
            ifindex,
            name: id.device(),
            alias: None,
            mac: Some(id.host_mac()),
            mtu: 1500,
            up: true,
            group: 0,
            kind: LinkKind::Veth,
            master: None,
        };
        let entry = AddressEntry::endpoint(EndpointAddress {
            eni: 1,
            eni_ifindex: 2,
            pool: PoolPolicy::Masquerade,
            via_stack: false,
            ifindex,
            mtu: 1500,
            pod_mac: [0; 6],
            host_mac: [0; 6],
        });
        let link_local: IpAddr = "fe80::1".parse().unwrap();
        observed.links.insert(ifindex, link);
        observed.addresses.insert(Address {
            ifindex,
            net: link_local.into(),
        });
        observed.routes.insert(Route {
            table: 220,
            destination: address.into(),
            metric: 0,
            next_hop: NextHop::Device(ifindex),
            source: None,
            protocol: 2,
        });
        observed.neighbours.insert(Neighbour {
            ifindex,
            address,
            mac: MacAddr([2; 6]),
        });
        let entry = MapEntry::Address(address, entry);
        observed.maps.insert(MapKey::Address(address), entry);
        let hook = Hook {
            ifindex,
            program: Program::FromEndpoint,
        };
        observed.attachments.insert(hook, Attachment::Current);
    }

    #[test]
    fn nothing_of_a_hidden_endpoint_is_seen_and_nothing_else_is_lost() {
        let mut observed = Observed::default();
        add_endpoint(&mut observed, 7, id("seen"), "10.0.1.7");
        let without = observed.clone();
        add_endpoint(&mut observed, 8, id("hidden"), "10.0.1.8");
        let facts = Facts::take(&mut observed, &[id("hidden")].into());
        assert_eq!(observed, without);
        assert_eq!(
            facts.hidden,
            Holders::from([("10.0.1.8".parse().unwrap(), id("hidden").device())])
        );
        assert!(facts.devices().contains(id("hidden").device().as_str()));
        assert!(!facts.devices().contains(id("other").device().as_str()));
    }
}
