//! Routes of our tables.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType,
};

use super::super::errno::RequestError;
use super::super::socket::Socket;
use super::super::{address_family, family};
use crate::intent::Family;
use crate::kernel::{NextHop, Route};
use crate::numbers;

/// Whether a table is one of ours: the pod table, or that of an ENI number that we use.
pub(in crate::netlink) fn is_ours(table: u32) -> bool {
    let last = numbers::TABLE_ENI_BASE + u32::from(numbers::ENI_MAX);
    table == numbers::TABLE_PODS || (numbers::TABLE_ENI_BASE..=last).contains(&table)
}

/// Every route of our tables in both families; shapes that we never make are left out.
///
/// One dump for each family: asking for each table by itself would be 128 requests, most of them
/// for tables that do not exist.
pub(super) async fn list(socket: &mut Socket) -> Result<BTreeSet<Route>, RequestError> {
    let mut routes = BTreeSet::new();
    for family in Family::ALL {
        let mut request = RouteMessage::default();
        request.header.address_family = address_family(family);
        for message in socket.dump(RouteNetlinkMessage::GetRoute(request)).await? {
            if let RouteNetlinkMessage::NewRoute(message) = message
                && is_ours(table(&message))
                && let Some(route) = parse(&message)
            {
                routes.insert(route);
            }
        }
    }
    Ok(routes)
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
