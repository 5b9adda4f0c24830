//! Looking at an endpoint's end inside the pod, and repairing nothing of it.

use std::collections::BTreeSet;

use ipam::Family;
use ipnet::IpNet;

use super::pod_routes::Maker;
use crate::intent::Endpoint;
use crate::intent::pod_routes::PodRoutes;
use crate::kernel::{Address, ForeignRoute, Neighbour, NextHop, Route};
use crate::netlink::endpoint::{addresses, connect, gateway};
use crate::netlink::netns::NetNs;
use crate::netlink::observe;

/// The differences from how it was made, in words.
pub(in crate::netlink) async fn inspect(
    endpoint: &Endpoint,
    routes: &PodRoutes,
    protocol: u8,
) -> Vec<String> {
    let mut problems = Vec::new();
    if let Err(error) = look(endpoint, routes, protocol, &mut problems).await {
        problems.push(format!("cannot inspect the pod: {error:#}"));
    }
    problems
}

async fn look(
    endpoint: &Endpoint,
    routes: &PodRoutes,
    protocol: u8,
    problems: &mut Vec<String>,
) -> anyhow::Result<()> {
    let netns = NetNs::open(&endpoint.netns)?;
    let mut pod = connect(&netns)?;
    let name = &endpoint.owner.interface;
    let Some(link) = observe::by_name(&mut pod, name).await? else {
        problems.push(format!("the pod has no device {name}"));
        return Ok(());
    };
    let mac = endpoint.id().pod_mac();
    if link.mac != Some(mac) {
        let has = link.mac.map_or("none".to_owned(), |mac| mac.to_string());
        problems.push(format!("the pod's {name} has the MAC {has}, not {mac}"));
    }
    if !link.up {
        problems.push(format!("the pod's {name} is down"));
    }
    let device = link.ifindex;
    let end = PodEnd {
        endpoint,
        device,
        addresses: observe::addresses(&mut pod).await?,
        neighbours: observe::neighbours(&mut pod).await?.permanent,
        routes: observe::foreign_routes(&mut pod, &[device].into()).await?,
    };
    let maker = Maker::new(endpoint, routes, device, protocol);
    for family in Family::ALL {
        if !addresses(endpoint, family).is_empty() {
            end.check_addresses(family, problems)?;
            end.check_gateway(family, problems);
            end.check_routes(maker.all(family)?, problems);
        }
    }
    Ok(())
}

/// An endpoint's device inside the pod, as the kernel has it.
struct PodEnd<'a> {
    endpoint: &'a Endpoint,
    device: u32,
    addresses: BTreeSet<Address>,
    neighbours: BTreeSet<Neighbour>,
    routes: BTreeSet<ForeignRoute>,
}

impl PodEnd<'_> {
    fn name(&self) -> &str {
        &self.endpoint.owner.interface
    }

    fn check_addresses(&self, family: Family, problems: &mut Vec<String>) -> anyhow::Result<()> {
        for address in addresses(self.endpoint, family) {
            let net = IpNet::new(address, family.host_length())?;
            let ifindex = self.device;
            if !self.addresses.contains(&Address { ifindex, net }) {
                let name = self.name();
                problems.push(format!("the pod's {name} does not have {address}"));
            }
        }
        Ok(())
    }

    fn check_gateway(&self, family: Family, problems: &mut Vec<String>) {
        let neighbour = Neighbour {
            ifindex: self.device,
            address: gateway(family),
            mac: self.endpoint.id().host_mac(),
        };
        if !self.neighbours.contains(&neighbour) {
            let Neighbour { address, mac, .. } = neighbour;
            problems.push(format!(
                "the pod does not know {mac} as its gateway {address}"
            ));
        }
    }

    fn check_routes(&self, all: Vec<(Route, Option<u32>)>, problems: &mut Vec<String>) {
        // Those that keep packets to the VPC at their full size follow the document a moment later.
        for (route, _mtu) in all.into_iter().take(2) {
            let gateway = match route.next_hop {
                NextHop::Gateway(gateway, _) => Some(gateway),
                NextHop::Device(_) | NextHop::Unreachable | NextHop::Throw => None,
            };
            let is_it = |found: &ForeignRoute| {
                found.table == route.table
                    && found.destination == route.destination
                    && found.gateway == gateway
            };
            if !self.routes.iter().any(is_it) {
                let (to, name) = (route.destination, self.name());
                problems.push(format!("the pod has no route to {to} by {name}"));
            }
        }
    }
}
