//! The objects that one endpoint needs in the kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::ids::{EndpointId, EniNumber};
use api::types::Readiness;
use datapath_common::abi::{AddressEntry, EndpointAddress};
use datapath_common::counter::Program;
use datapath_common::masquerade::PoolPolicy;
use ipam::Family;
use ipnet::IpNet;

use super::builder::Builder;
use super::devices::{EniState, ResolvedEni};
use super::node::HostAddress;
use crate::constants;
use crate::constants::highest_number;
use crate::intent::{Endpoint, Intent};
use crate::kernel::{
    Hook, Link, MapEntry, MapKey, Neighbour, NextHop, Object, Observed, Route, Scope, Sysctl,
};
use crate::observation::ownership::{default_metric, endpoint_device, finished_device};
use crate::observation::view::EndpointView;

type Enis<'a> = BTreeMap<EniNumber, ResolvedEni<'a>>;

/// The ENI that an endpoint's address had before the node document took the address away, as the
/// datapath still has it. Its number stays fenced as long as the endpoint lives, so that nothing
/// of it leaves by another ENI; a number that an ENI for pods has (again) cannot be.
pub(super) fn lost_owners(
    intent: &Intent,
    observed: &Observed,
    enis: &Enis<'_>,
) -> BTreeMap<IpAddr, EniNumber> {
    let addresses = intent.endpoints.values().flat_map(|e| &e.addresses);
    addresses
        .filter(|address| intent.node.owner_of(**address).is_none())
        .filter(|address| intent.plain_pool_of(**address).is_none())
        .filter_map(
            |address| match observed.maps.get(&MapKey::Address(*address)) {
                Some(MapEntry::Address(_, entry)) if entry.is_endpoint() => {
                    Some((*address, EniNumber(entry.eni())))
                }
                Some(_) | None => None,
            },
        )
        .filter(|(_, number)| {
            let taken = enis.get(number).is_some_and(|r| r.eni.excluded.is_none());
            !taken && number.0 <= highest_number(intent.settings.mark)
        })
        .collect()
}

/// The ENIs by which endpoints' packets can leave.
#[derive(Clone, Copy)]
pub(super) struct EgressEnis<'a> {
    /// The ENIs of the document.
    pub(super) enis: &'a Enis<'a>,
    /// The ENI that an address had before the document took it away.
    pub(super) lost: &'a BTreeMap<IpAddr, EniNumber>,
    /// The primary's device, where packets can leave by it.
    pub(super) primary: Option<u32>,
}

/// Adds everything of every endpoint, and says how each stands.
pub(super) fn add(
    builder: &mut Builder<'_>,
    egress: &EgressEnis<'_>,
    hosts: &BTreeMap<IpAddr, HostAddress>,
) -> BTreeMap<EndpointId, EndpointView> {
    let intent = builder.intent;
    let by_name: BTreeMap<&str, &Link> = builder
        .observed
        .links
        .values()
        .map(|link| (link.name.as_str(), link))
        .collect();
    let sources = node_addresses(builder);
    let mut holders: BTreeMap<IpAddr, EndpointId> = BTreeMap::new();
    let mut views = BTreeMap::new();
    for (&id, endpoint) in &intent.endpoints {
        let mut of = OneEndpoint {
            id,
            endpoint,
            egress: *egress,
            sources: &sources,
            problem: None,
        };
        let named = by_name.get(id.device().as_str()).copied();
        let device = of.add_device(builder, named);
        for &address in &endpoint.addresses {
            if let Some(HostAddress { place, yields }) = hosts.get(&address) {
                of.fail(format!("address {address} is the host's, {place}"));
                if !yields {
                    continue;
                }
            }
            let holder = *holders.entry(address).or_insert(id);
            if holder != id {
                of.fail(format!("address {address} is endpoint {holder}'s"));
                continue;
            }
            of.add_address(builder, address, device);
        }
        views.insert(id, of.view(builder.intent, device));
    }
    views
}

/// The node's addresses that are on a device of the host: what the host speaks to pods with.
fn node_addresses(builder: &Builder<'_>) -> BTreeMap<Family, IpAddr> {
    let on_host = |address: &IpAddr| {
        let mut all = builder.observed.addresses.iter();
        all.any(|a| a.net.addr() == *address)
    };
    let address = |family: &Family| {
        builder
            .intent
            .node
            .addresses
            .first_internal(*family)
            .filter(on_host)
    };
    builder
        .families()
        .iter()
        .filter_map(|family| address(family).map(|a| (*family, a)))
        .collect()
}

/// The masquerade policy of an address's pool. While it is unknown, the datapath's entry stays.
fn pool(builder: &Builder<'_>, endpoint: &Endpoint, address: IpAddr) -> PoolPolicy {
    let intent = builder.intent;
    if intent.plain_pool_of(address).is_some() && !intent.settings.plain_is_native {
        return PoolPolicy::Always;
    }
    let pool = intent.policy_of(endpoint, address);
    match intent.policy.pool(pool, &intent.settings.masquerade) {
        Some(policy) if policy.skip_masquerade => PoolPolicy::Skip,
        Some(_) => PoolPolicy::Masquerade,
        None => match builder.observed.maps.get(&MapKey::Address(address)) {
            Some(MapEntry::Address(_, entry)) => entry.pool(),
            _ => PoolPolicy::Masquerade,
        },
    }
}

/// True if an address's packets take the host's stack. Without an observation of the device, the
/// datapath's entry stays.
fn is_via_stack(builder: &Builder<'_>, address: IpAddr, ifindex: u32) -> bool {
    match builder.observed.via_stack.get(&ifindex) {
        Some(reason) => reason.is_some(),
        None => match builder.observed.maps.get(&MapKey::Address(address)) {
            Some(MapEntry::Address(_, entry)) => entry.ifindex() == ifindex && entry.is_via_stack(),
            _ => false,
        },
    }
}

struct OneEndpoint<'a> {
    id: EndpointId,
    endpoint: &'a Endpoint,
    egress: EgressEnis<'a>,
    sources: &'a BTreeMap<Family, IpAddr>,
    problem: Option<String>,
}

impl OneEndpoint<'_> {
    /// Notes the first thing that keeps the endpoint from being ready.
    fn fail(&mut self, reason: String) {
        self.problem.get_or_insert(reason);
    }

    fn put(&self, builder: &mut Builder<'_>, object: Object) {
        builder.put(Scope::Endpoint(self.id), object);
    }

    /// Adds the device and what hangs on it; gives it back when it is there and finished.
    fn add_device<'l>(
        &mut self,
        builder: &mut Builder<'_>,
        named: Option<&'l Link>,
    ) -> Option<&'l Link> {
        let device = match named {
            Some(link) if finished_device(link) == Some(self.id) => link,
            Some(link) if endpoint_device(link) != Some(self.id) => {
                self.fail(format!(
                    "device {} is not ours: it is no veth with MAC {}",
                    link.name,
                    self.id.host_mac()
                ));
                return None;
            }
            Some(_) | None => {
                self.put(builder, Object::Device(self.id));
                return None;
            }
        };
        let ifindex = device.ifindex;
        self.put(builder, Object::Device(self.id));
        let mtu = self.endpoint.mtu;
        self.put(builder, Object::Mtu { ifindex, mtu });
        self.put(builder, Object::Up(ifindex));
        let scope = Scope::Endpoint(self.id);
        let sysctl = |family, name| Sysctl::of_device(family, ifindex, name);
        builder.sysctl(scope, sysctl(Family::V4, "send_redirects"), "0");
        builder.checks_sources(scope, ifindex);
        builder.forwards(scope, ifindex);
        builder.sysctl(scope, sysctl(Family::V6, "accept_ra"), "0");
        if self.endpoint.addresses.iter().any(IpAddr::is_ipv6) {
            builder.sysctl(scope, sysctl(Family::V6, "disable_ipv6"), "0");
        }
        let notes = builder.intent.settings.service_nat;
        let programs = [Program::FromEndpoint]
            .into_iter()
            .chain(notes.then_some(Program::ToEndpoint));
        for program in programs {
            self.put(builder, Object::Attachment(Hook { ifindex, program }));
        }
        Some(device)
    }

    fn add_address(&mut self, builder: &mut Builder<'_>, address: IpAddr, device: Option<&Link>) {
        let family = Family::of(address);
        if !builder.families().contains(&family) {
            self.fail(format!("address {address}: the host has no IPv6"));
            return;
        }
        let owner = self.owner(builder.intent, address);
        if let Some((EniNumber::PRIMARY, eni_ifindex)) = owner
            && !builder.is_on(family, eni_ifindex)
        {
            self.fail(format!(
                "address {address}: IPv6 is off on the primary ENI's device (disable_ipv6)"
            ));
        }
        let Some(device) = device else { return };
        let ifindex = device.ifindex;
        let mac = self.id.pod_mac();
        self.put(
            builder,
            Object::Neighbour(Neighbour {
                ifindex,
                address,
                mac,
            }),
        );
        self.put(
            builder,
            Object::Route(Route {
                table: constants::TABLE_PODS,
                destination: IpNet::from(address),
                metric: default_metric(family),
                next_hop: NextHop::Device(ifindex),
                source: self.sources.get(&family).copied(),
                protocol: builder.intent.settings.protocol,
            }),
        );
        if let Some((number, eni_ifindex)) = owner {
            let entry = AddressEntry::endpoint(EndpointAddress {
                eni: number.0,
                eni_ifindex,
                pool: pool(builder, self.endpoint, address),
                via_stack: is_via_stack(builder, address, ifindex),
                ifindex,
                mtu: self.endpoint.mtu,
                pod_mac: mac.0,
                host_mac: self.id.host_mac().0,
                namespace: device.peer_namespace,
            });
            self.put(builder, Object::MapEntry(MapEntry::Address(address, entry)));
        }
    }

    /// The ENI that owns an address, and its device: 0 where there is none. Without an ENI whose
    /// number the mark can carry the address gets no entry, and what the pod sends is dropped.
    fn owner(&mut self, intent: &Intent, address: IpAddr) -> Option<(EniNumber, u32)> {
        let mut enis = self.egress.enis.values();
        let owning = enis.find(|r| r.eni.excluded.is_none() && r.eni.owns(address));
        let Some(resolved) = owning else {
            if let Some(pool) = intent.plain_pool_of(address) {
                if self.egress.primary.is_none() {
                    let waits = "waits for the primary ENI, by which plain pools leave";
                    self.fail(format!("address {address} of pool {pool} {waits}"));
                }
                return Some((EniNumber::PRIMARY, self.egress.primary.unwrap_or(0)));
            }
            self.fail(self.why_no_owner(address));
            let lost = self.egress.lost.get(&address);
            return lost.map(|number| (*number, 0));
        };
        let number = resolved.eni.number;
        match &resolved.state {
            EniState::Usable(device) => Some((number, device.link.ifindex)),
            EniState::Fenced(_) => Some((number, 0)),
            EniState::Excluded { .. } => None,
        }
    }

    /// Why no ENI for pods owns an address: the ENI that has it is excluded, or there is none.
    fn why_no_owner(&self, address: IpAddr) -> String {
        let mut enis = self.egress.enis.values().map(|resolved| resolved.eni);
        let excluded = enis.find_map(|eni| {
            let reason = eni.excluded.as_ref().filter(|_| eni.owns(address))?;
            Some((eni, reason))
        });
        match excluded {
            Some((eni, reason)) => format!(
                "ENI {} ({}), which owns {address}, is excluded: {reason}",
                eni.number, eni.id
            ),
            None => format!("no ENI of the node document owns {address}"),
        }
    }

    fn view(self, intent: &Intent, device: Option<&Link>) -> EndpointView {
        let owner = |address: &IpAddr| {
            let mut enis = self.egress.enis.values();
            let owning = enis.find(|r| r.eni.excluded.is_none() && r.eni.owns(*address));
            let plain = || intent.plain_pool_of(*address).map(|_| EniNumber::PRIMARY);
            owning.map(|r| r.eni.number).or_else(plain)
        };
        EndpointView {
            owner: self.endpoint.owner.clone(),
            netns: self.endpoint.netns.clone(),
            device: self.id.device(),
            ifindex: device.map(|link| link.ifindex),
            mtu: self.endpoint.mtu,
            addresses: self
                .endpoint
                .addresses
                .iter()
                .map(|address| (*address, owner(address)))
                .collect(),
            readiness: self
                .problem
                .map_or(Readiness::Ready, |reason| Readiness::NotReady { reason }),
        }
    }
}
