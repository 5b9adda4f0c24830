//! Routes.

use anyhow::Context;
use ipam::Family;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteScope, RouteType,
};

use super::super::address_family;
use super::super::errno::deleted;
use super::super::socket::Socket;
use crate::kernel::{NextHop, Route};

/// Adds a route, or puts it in the place of the one with the same destination and metric.
pub(in crate::netlink) async fn replace(socket: &mut Socket, route: &Route) -> anyhow::Result<()> {
    replace_with_mtu(socket, route, None).await
}

/// Adds or replaces a route with an MTU, in bytes; `None` for that of its device.
pub(in crate::netlink) async fn replace_with_mtu(
    socket: &mut Socket,
    route: &Route,
    mtu: Option<u32>,
) -> anyhow::Result<()> {
    let request = RouteNetlinkMessage::NewRoute(with_mtu(route, mtu));
    match socket.change(request, NLM_F_CREATE | NLM_F_REPLACE).await {
        // IPv4 gives this error if this very route is there, after another one of the same key
        // (`fib_table_insert` in net/ipv4/fib_trie.c).
        Err(error) if error.is_exists() => Ok(()),
        other => other.with_context(|| format!("add the route {}", text(route))),
    }
}

/// Adds a route where none with the same destination and metric may be.
pub(in crate::netlink) async fn add_new(
    socket: &mut Socket,
    route: &Route,
    mtu: Option<u32>,
) -> anyhow::Result<()> {
    let request = RouteNetlinkMessage::NewRoute(with_mtu(route, mtu));
    socket
        .change(request, NLM_F_CREATE | NLM_F_EXCL)
        .await
        .with_context(|| format!("add the route {}", text(route)))
}

/// Removes a route.
pub(in crate::netlink) async fn delete(socket: &mut Socket, route: &Route) -> anyhow::Result<()> {
    let mut message = message(route);
    // Any scope: it is no part of what we observe.
    message.header.scope = RouteScope::NoWhere;
    let request = RouteNetlinkMessage::DelRoute(message);
    deleted(socket.change(request, 0).await)
        .with_context(|| format!("delete the route {}", text(route)))
}

/// The message for a route with an MTU of its own, if it has one.
fn with_mtu(route: &Route, mtu: Option<u32>) -> RouteMessage {
    let mut message = message(route);
    let metrics = mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
    message.attributes.extend(metrics);
    message
}

/// The message for a route. Everything that `rtnetlink`'s builder would choose by default (main
/// table, protocol static) is given.
fn message(route: &Route) -> RouteMessage {
    let family = Family::of(route.destination.addr());
    let mut message = RouteMessage::default();
    let header = &mut message.header;
    header.address_family = address_family(family);
    header.destination_prefix_length = route.destination.prefix_len();
    // The header has eight bits for the table; the attribute below holds for any number.
    header.table = u8::try_from(route.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
    header.protocol = route.protocol.into();
    header.kind = RouteType::Unicast;
    header.scope = RouteScope::Universe;
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Table(route.table));
    if route.destination.prefix_len() != 0 {
        attributes.push(RouteAttribute::Destination(route.destination.addr().into()));
    }
    if route.metric != 0 {
        attributes.push(RouteAttribute::Priority(route.metric));
    }
    if let Some(source) = route.source {
        attributes.push(RouteAttribute::PrefSource(source.into()));
    }
    match route.next_hop {
        NextHop::Device(ifindex) => {
            // IPv6 has no scopes here and ignores it.
            header.scope = RouteScope::Link;
            attributes.push(RouteAttribute::Oif(ifindex));
        }
        NextHop::Gateway(gateway, ifindex) => {
            header.flags = RouteFlags::Onlink;
            attributes.push(RouteAttribute::Gateway(gateway.into()));
            attributes.push(RouteAttribute::Oif(ifindex));
        }
        NextHop::Unreachable => header.kind = RouteType::Unreachable,
        NextHop::Throw => header.kind = RouteType::Throw,
    }
    message
}

fn text(route: &Route) -> String {
    let Route {
        table,
        destination,
        metric,
        ..
    } = route;
    let next_hop = match route.next_hop {
        NextHop::Device(ifindex) => format!("device {ifindex}"),
        NextHop::Gateway(gateway, ifindex) => format!("{gateway} on device {ifindex}"),
        NextHop::Unreachable => "unreachable".to_owned(),
        NextHop::Throw => "throw".to_owned(),
    };
    let source = route
        .source
        .map(|source| format!(" from {source}"))
        .unwrap_or_default();
    format!("{destination} -> {next_hop}{source}, table {table}, metric {metric}")
}
