//! Looking at an endpoint's end inside the pod, and repairing nothing of it.

use anyhow::Context as _;
use ipam::Family;
use ipnet::IpNet;

use super::pod_routes::Maker;
use crate::intent::Endpoint;
use crate::intent::pod_routes::PodRoutes;
use crate::kernel::{Address, Neighbour, NextHop};
use crate::netlink::endpoint::{addresses, gateway};
use crate::netlink::netns::NetNs;
use crate::netlink::observe;
use crate::netlink::socket::{self, Socket};

/// The differences from how it was made, in words.
pub(in crate::netlink) async fn inspect(
    endpoint: &Endpoint,
    routes: &PodRoutes,
    protocol: u8,
) -> Vec<String> {
    let mut problems = Vec::new();
    if let Err(error) = look(endpoint, (routes, protocol), &mut problems).await {
        problems.push(format!("cannot inspect the pod: {error:#}"));
    }
    problems
}

async fn look(
    endpoint: &Endpoint,
    (routes, protocol): (&PodRoutes, u8),
    problems: &mut Vec<String>,
) -> anyhow::Result<()> {
    let netns = NetNs::open(&endpoint.netns)?;
    let inner = netns.run(socket::connect)?;
    let mut pod = inner
        .and_then(Socket::new)
        .context("open a netlink socket in the pod")?;
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
    let has_addresses = observe::addresses(&mut pod).await?;
    let has_neighbours = observe::neighbours(&mut pod).await?.permanent;
    let has_routes = observe::foreign_routes(&mut pod, &[device].into()).await?;
    for family in Family::ALL {
        let addresses = addresses(endpoint, family);
        if addresses.is_empty() {
            continue;
        }
        for address in addresses {
            let net = IpNet::new(address, family.host_length())?;
            let ifindex = device;
            if !has_addresses.contains(&Address { ifindex, net }) {
                problems.push(format!("the pod's {name} does not have {address}"));
            }
        }
        let neighbour = Neighbour {
            ifindex: device,
            address: gateway(family),
            mac: endpoint.id().host_mac(),
        };
        if !has_neighbours.contains(&neighbour) {
            let Neighbour { address, mac, .. } = neighbour;
            problems.push(format!(
                "the pod does not know {mac} as its gateway {address}"
            ));
        }
        let maker = Maker {
            routes,
            mtu: endpoint.mtu,
            device,
            protocol,
        };
        // Those that keep packets to the VPC at their full size follow the document a moment later.
        let needed = maker.all(family)?.into_iter().take(2);
        for (route, _mtu) in needed {
            let gateway = match route.next_hop {
                NextHop::Gateway(gateway, _) => Some(gateway),
                NextHop::Device(_) | NextHop::Unreachable | NextHop::Throw => None,
            };
            let is_it = |found: &&crate::kernel::ForeignRoute| {
                found.table == route.table
                    && found.destination == route.destination
                    && found.gateway == gateway
            };
            if !has_routes.iter().any(|found| is_it(&found)) {
                let to = route.destination;
                problems.push(format!("the pod has no route to {to} by {name}"));
            }
        }
    }
    Ok(())
}
