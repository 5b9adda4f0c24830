//! The kernel's state, as far as it concerns us.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::EndpointId;
use datapath_common::counter::Program;
use ipnet::IpNet;

use crate::intent::masquerade::HostPorts;

use super::{
    Address, Hook, Link, MapEntry, MapKey, Neighbour, NextHop, Resolved, Route, Rule, Sysctl,
    SysctlScope,
};

/// An attachment at a hook of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attachment {
    /// The program that this agent loaded.
    Current,
    /// A program of ours that an earlier agent loaded; it works until it is replaced.
    Stale,
    /// A leftover of ours that does not run, such as the pin of a link whose device went.
    Dead,
}

/// The kernel's state, as far as it concerns us. Ordered, so that it compares and prints
/// the same every time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every device of the host's namespace, by index.
    pub links: BTreeMap<u32, Link>,
    /// Every address on them.
    pub addresses: BTreeSet<Address>,
    /// Every route of the tables that are ours; foreign shapes among them are left out.
    pub routes: BTreeSet<Route>,
    /// Networks and ports of the host.
    pub host: HostState,
    /// Every rule of both families.
    pub rules: BTreeSet<Rule>,
    /// Every permanent neighbour entry.
    pub neighbours: BTreeSet<Neighbour>,
    /// Every neighbour with an Ethernet address, by device and address: resolved ones and permanent
    /// ones.
    pub resolved: BTreeMap<(u32, IpAddr), Resolved>,
    /// The sysctls that we set, where they exist.
    pub sysctls: BTreeMap<Sysctl, String>,
    /// Every entry of the datapath's maps.
    pub maps: BTreeMap<MapKey, MapEntry>,
    /// Every attachment of ours; a hook without an entry has none.
    pub attachments: BTreeMap<Hook, Attachment>,
    /// Hooks whose program runs, but only as long as the agent does: it has lost its pin.
    pub unpinned: BTreeSet<Hook>,
    /// For each checked device of an endpoint, the foreign program, if any, that gets packets only
    /// from the host's stack.
    pub via_stack: BTreeMap<u32, Option<String>>,
}

/// Networks and ports of the host, which are not ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    /// Networks and devices of foreign routes, only of those that depend on nothing but a packet's
    /// destination.
    pub routes: BTreeSet<(IpNet, u32)>,
    /// The networks of the same routes whose addresses are all the host's. Each address of a device
    /// is one of them.
    pub local: BTreeSet<IpNet>,
    /// The host's automatic ports; none if they are unknown.
    pub ports: Option<HostPorts>,
}

impl Observed {
    /// Takes out the devices and what hangs on them; the endpoint addresses among it, and the names
    /// of the devices that had them.
    pub fn take_devices(&mut self, devices: &BTreeSet<u32>) -> BTreeMap<IpAddr, String> {
        let Self {
            links,
            addresses,
            routes,
            rules: _,
            host: _,
            neighbours,
            resolved,
            sysctls,
            maps,
            attachments,
            unpinned,
            via_stack,
        } = self;
        let stays = |ifindex: u32| !devices.contains(&ifindex);
        let name = |ifindex: u32| links.get(&ifindex).map(|link| link.name.clone());
        let mut holders = BTreeMap::new();
        maps.retain(|_, entry| match entry {
            MapEntry::Address(address, value) if !stays(value.ifindex()) => {
                holders.insert(*address, name(value.ifindex()).unwrap_or_default());
                false
            }
            MapEntry::Address(..)
            | MapEntry::Destination(..)
            | MapEntry::Eni(..)
            | MapEntry::EniDevice(..) => true,
        });
        routes.retain(|route| match route.next_hop {
            NextHop::Device(ifindex) | NextHop::Gateway(_, ifindex) => {
                let keep = stays(ifindex);
                if !keep {
                    holders.insert(route.destination.addr(), name(ifindex).unwrap_or_default());
                }
                keep
            }
            NextHop::Unreachable | NextHop::Throw => true,
        });
        sysctls.retain(|sysctl, _| match sysctl.scope {
            SysctlScope::Device(ifindex) => stays(ifindex),
            SysctlScope::All | SysctlScope::Family => true,
        });
        addresses.retain(|address| stays(address.ifindex));
        neighbours.retain(|neighbour| stays(neighbour.ifindex));
        resolved.retain(|(ifindex, _), _| stays(*ifindex));
        attachments.retain(|hook, _| stays(hook.ifindex));
        unpinned.retain(|hook| stays(hook.ifindex));
        links.retain(|ifindex, _| stays(*ifindex));
        via_stack.retain(|ifindex, _| stays(*ifindex));
        holders
    }

    /// The devices whose names are those of these endpoints.
    pub fn devices_of(&self, mut is_one: impl FnMut(EndpointId) -> bool) -> BTreeSet<u32> {
        let links = self.links.values();
        links
            .filter(|link| EndpointId::from_device(&link.name).is_some_and(&mut is_one))
            .map(|link| link.ifindex)
            .collect()
    }

    /// The objects of the node and its ENIs, without those of endpoints.
    #[must_use]
    pub fn without_endpoints(mut self) -> Self {
        let devices = self.devices_of(|_| true);
        self.take_devices(&devices);
        // These entries and attachments have outlived their device.
        self.maps.retain(
            |_, entry| !matches!(entry, MapEntry::Address(_, value) if value.is_endpoint()),
        );
        self.attachments.retain(|hook, _| match hook.program {
            Program::FromNetwork | Program::ToNetwork => true,
            Program::FromEndpoint | Program::ToEndpoint => false,
        });
        self
    }

    /// The observation with a newer one of a part of it.
    #[must_use]
    pub fn with(&self, part: Self) -> Self {
        let mut whole = self.clone();
        whole.links.extend(part.links);
        whole.addresses.extend(part.addresses);
        whole.routes.extend(part.routes);
        whole.neighbours.extend(part.neighbours);
        whole.sysctls.extend(part.sysctls);
        whole.maps.extend(part.maps);
        whole.attachments.extend(part.attachments);
        whole.unpinned.extend(part.unpinned);
        whole.via_stack.extend(part.via_stack);
        whole
    }
}
