//! Routes of our tables.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::Family;
use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType,
};

use super::super::errno::RequestError;
use super::super::socket::Socket;
use super::super::{address_family, family};
use super::{each, of_present};
use crate::kernel::{ForeignRoute, NextHop, Route};
use crate::numbers;

/// The routes of all tables.
#[derive(Default)]
pub(super) struct Tables {
    /// The routes of our tables; shapes that we never make are left out.
    pub(super) ours: BTreeSet<Route>,
    /// The networks of others' unicast routes, with their tables and devices.
    pub(super) others: Vec<(u32, IpNet, u32)>,
}

/// Every route of both families.
///
/// One dump for each family: asking for each table by itself would be 128 requests, most of them
/// for tables that do not exist.
pub(super) async fn list(socket: &mut Socket) -> Result<Tables, RequestError> {
    let mut tables = Tables::default();
    for family in Family::ALL {
        for message in dump(socket, family, None).await? {
            let table = table(&message);
            if numbers::is_our_table(table) {
                tables.ours.extend(parse(&message));
            } else {
                let routes = parse_foreign(&message, family).into_iter();
                let nets = routes.map(|route| (table, route.destination, route.ifindex));
                tables.others.extend(nets);
            }
        }
    }
    Ok(tables)
}

/// Those on devices.
pub(super) async fn on(
    socket: &mut Socket,
    devices: &BTreeSet<u32>,
) -> Result<BTreeSet<Route>, RequestError> {
    let mut routes = BTreeSet::new();
    for device in each(devices) {
        routes.extend(of_present(ours(socket, device).await)?);
    }
    routes.retain(|route| match route.next_hop {
        NextHop::Device(ifindex) | NextHop::Gateway(_, ifindex) => devices.contains(&ifindex),
        NextHop::Unreachable | NextHop::Throw => false,
    });
    Ok(routes)
}

async fn ours(socket: &mut Socket, device: Option<u32>) -> Result<BTreeSet<Route>, RequestError> {
    let mut routes = BTreeSet::new();
    for family in Family::ALL {
        for message in dump(socket, family, device).await? {
            if numbers::is_our_table(table(&message))
                && let Some(route) = parse(&message)
            {
                routes.insert(route);
            }
        }
    }
    Ok(routes)
}

/// Every unicast route out of these devices in tables that are not ours, both families.
pub(in crate::netlink) async fn foreign(
    socket: &mut Socket,
    devices: &BTreeSet<u32>,
) -> Result<BTreeSet<ForeignRoute>, RequestError> {
    let mut routes = BTreeSet::new();
    for family in Family::ALL {
        for message in dump(socket, family, None).await? {
            if !numbers::is_our_table(table(&message)) {
                let found = parse_foreign(&message, family).into_iter();
                routes.extend(found.filter(|route| devices.contains(&route.ifindex)));
            }
        }
    }
    Ok(routes)
}

async fn dump(
    socket: &mut Socket,
    family: Family,
    device: Option<u32>,
) -> Result<Vec<RouteMessage>, RequestError> {
    let mut request = RouteMessage::default();
    request.header.address_family = address_family(family);
    request.attributes.extend(device.map(RouteAttribute::Oif));
    let messages = socket.dump(RouteNetlinkMessage::GetRoute(request)).await?;
    let routes = messages.into_iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    Ok(routes.collect())
}

/// A route of others, once for each device that it leads out of; empty where it is not unicast, as
/// the kernel's own of table local.
fn parse_foreign(message: &RouteMessage, family: Family) -> Vec<ForeignRoute> {
    let header = &message.header;
    if header.kind != RouteType::Unicast || header.flags.contains(RouteFlags::Cloned) {
        return Vec::new();
    }
    let mut destination = family.default_route();
    let mut metric = 0;
    let (mut gateway, mut device, mut mtu) = (None, None, None);
    let mut hops = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => {
                let net = ip(address)
                    .and_then(|address| IpNet::new(address, header.destination_prefix_length).ok());
                destination = net.unwrap_or(destination);
            }
            RouteAttribute::Priority(value) => metric = *value,
            RouteAttribute::Oif(ifindex) => device = Some(*ifindex),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            RouteAttribute::MultiPath(list) => hops.extend(list.iter().map(|hop| {
                let gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Gateway(address) => ip(address),
                    _ => None,
                });
                (gateway, hop.interface_index)
            })),
            _ => {}
        }
    }
    hops.extend(device.map(|ifindex| (gateway, ifindex)));
    let route = |(gateway, ifindex)| ForeignRoute {
        table: table(message),
        destination,
        metric,
        gateway,
        ifindex,
        protocol: header.protocol.into(),
        mtu,
    };
    hops.into_iter().map(route).collect()
}

/// The route's table. The header has eight bits for it; the attribute, where there is one, has all.
pub(in crate::netlink) fn table(message: &RouteMessage) -> u32 {
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        })
        .unwrap_or_else(|| u32::from(message.header.table))
}

/// The route as we would have asked for it; `None` when it is of a shape that we never make.
///
/// The `onlink` flag is not looked at: it waives the check of the gateway when a route is added,
/// says nothing about where packets go, and not every kernel reports it for IPv6.
fn parse(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    let family = family(header.address_family)?;
    if header.tos != 0
        || header.source_prefix_length != 0
        || header.flags.contains(RouteFlags::Cloned)
    {
        return None;
    }
    let mut destination = None;
    let mut metric = 0;
    let mut device = None;
    let mut gateway = None;
    let mut source = None;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = Some(ip(address)?),
            RouteAttribute::Priority(value) => metric = *value,
            RouteAttribute::Oif(ifindex) => device = Some(*ifindex),
            RouteAttribute::Gateway(address) => gateway = Some(ip(address)?),
            RouteAttribute::PrefSource(address) => source = Some(ip(address)?),
            RouteAttribute::CacheInfo(info) if info.expires == 0 => {}
            RouteAttribute::Table(_) | RouteAttribute::Preference(_) => {}
            _ => return None,
        }
    }
    let destination = match destination {
        Some(address) => IpNet::new(address, header.destination_prefix_length).ok()?,
        None if header.destination_prefix_length == 0 => family.default_route(),
        None => return None,
    };
    let next_hop = match (header.kind, gateway, device) {
        (RouteType::Unicast, Some(gateway), Some(device)) => NextHop::Gateway(gateway, device),
        (RouteType::Unicast, None, Some(device)) => NextHop::Device(device),
        // IPv6 reports the loopback device here.
        (RouteType::Unreachable, None, _) => NextHop::Unreachable,
        (RouteType::Throw, None, _) => NextHop::Throw,
        _ => return None,
    };
    Some(Route {
        table: table(message),
        destination,
        metric,
        next_hop,
        source,
        protocol: header.protocol.into(),
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}
