//! Routes of our tables, and the networks that others' routes lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

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
use crate::constants;
use crate::kernel::{ForeignRoute, NextHop, Route};

/// Maximum number of foreign routes' networks that count for one device. A full table of the
/// Internet's routes has a million.
const PER_DEVICE: usize = 4_096;
/// Number of foreign routes from which tables are not read as a whole by each observation.
const MANY: usize = 16_384;
/// Rest after such tables were read, in multiples of the time that it took.
const REST: u32 = 50;

/// A network that a route of others leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Led {
    pub(super) table: u32,
    pub(super) net: IpNet,
    pub(super) metric: u32,
    pub(super) ifindex: u32,
    /// True if the host takes all of it for its own addresses.
    pub(super) is_local: bool,
}

/// The networks of others' unicast and local routes, by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Networks {
    by_device: BTreeMap<u32, BTreeSet<Led>>,
    /// Number of the routes that there were.
    routes: usize,
}

impl Networks {
    /// Takes a route. Of a device with very many, the first ones count.
    fn take(&mut self, led: Led) {
        self.routes += 1;
        let of_device = self.by_device.entry(led.ifindex).or_default();
        if of_device.len() < PER_DEVICE {
            of_device.insert(led);
        }
    }

    /// Each of them.
    pub(super) fn all(&self) -> impl Iterator<Item = Led> {
        self.by_device.values().flatten().copied()
    }
}

/// The reader of routes. If there are very many foreign routes, these are read seldom, and each
/// observation reads ours alone.
#[derive(Default)]
pub(in crate::netlink) struct Reader {
    /// The networks of others' routes.
    networks: Networks,
    /// The time from which on all tables may be read again, where that takes long.
    again: Option<Instant>,
}

impl Reader {
    /// The routes of our tables, and the networks of others' routes. Shapes that we never make are left
    /// out of ours.
    pub(super) async fn read(
        &mut self,
        socket: &mut Socket,
    ) -> Result<(BTreeSet<Route>, &Networks), RequestError> {
        let began = Instant::now();
        if self.again.is_some_and(|again| began < again) {
            return Ok((of_our_tables(socket).await?, &self.networks));
        }
        let mut ours = BTreeSet::new();
        let mut networks = Networks::default();
        // One dump for each family: asking for each table by itself is 128 requests, most of them for
        // tables that do not exist.
        for family in Family::ALL {
            let mut show = |message| take(&message, family, &mut ours, &mut networks);
            socket.dump_each(request(family), &mut show).await?;
        }
        let is_long = networks.routes >= MANY;
        self.again = is_long.then(|| Instant::now() + began.elapsed() * REST);
        self.networks = networks;
        Ok((ours, &self.networks))
    }
}

fn take(
    message: &RouteNetlinkMessage,
    family: Family,
    ours: &mut BTreeSet<Route>,
    networks: &mut Networks,
) {
    let RouteNetlinkMessage::NewRoute(message) = message else {
        return;
    };
    let table = table(message);
    if constants::is_our_table(table) {
        ours.extend(parse(message));
        return;
    }
    let is_local = message.header.kind == RouteType::Local;
    if !is_local && message.header.kind != RouteType::Unicast {
        return;
    }
    // A route that depends on more than the destination does not apply to a pod's packet.
    if message.header.tos != 0 || message.header.source_prefix_length != 0 {
        return;
    }
    for route in parse_foreign(message, family) {
        networks.take(Led {
            table,
            net: route.destination,
            metric: route.metric,
            ifindex: route.ifindex,
            is_local,
        });
    }
}

/// The routes of our tables, table by table.
async fn of_our_tables(socket: &mut Socket) -> Result<BTreeSet<Route>, RequestError> {
    let mut routes = BTreeSet::new();
    for table in constants::our_tables() {
        routes.extend(of_table(socket, table, None).await?);
    }
    Ok(routes)
}

/// The routes of one of our tables, or those on a device alone.
async fn of_table(
    socket: &mut Socket,
    table: u32,
    device: Option<u32>,
) -> Result<BTreeSet<Route>, RequestError> {
    let mut routes = BTreeSet::new();
    for family in Family::ALL {
        let mut request = message(family);
        request.attributes.push(RouteAttribute::Table(table));
        request.attributes.extend(device.map(RouteAttribute::Oif));
        let dumped = socket.dump(RouteNetlinkMessage::GetRoute(request)).await;
        // A table that never had a route is none.
        let is_missing = |error: &RequestError| error.errno() == Some(libc::ENOENT);
        let dumped = match dumped {
            Err(error) if is_missing(&error) => Vec::new(),
            other => other?,
        };
        routes.extend(dumped.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewRoute(route) => parse(route),
            _ => None,
        }));
    }
    Ok(routes)
}

fn message(family: Family) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family);
    message
}

fn request(family: Family) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetRoute(message(family))
}

/// Those of the pod table on devices: no other one of ours has routes to pods.
pub(super) async fn on(
    socket: &mut Socket,
    devices: &BTreeSet<u32>,
) -> Result<BTreeSet<Route>, RequestError> {
    let mut routes = BTreeSet::new();
    for device in each(devices) {
        routes.extend(of_present(
            of_table(socket, constants::TABLE_PODS, device).await,
        )?);
    }
    routes.retain(|route| match route.next_hop {
        NextHop::Device(ifindex) | NextHop::Gateway(_, ifindex) => devices.contains(&ifindex),
        NextHop::Unreachable | NextHop::Throw => false,
    });
    Ok(routes)
}

/// Every unicast route out of these devices in tables that are not ours, both families.
pub(in crate::netlink) async fn foreign(
    socket: &mut Socket,
    devices: &BTreeSet<u32>,
) -> Result<BTreeSet<ForeignRoute>, RequestError> {
    let mut routes = BTreeSet::new();
    for family in Family::ALL {
        for message in dump(socket, family).await? {
            let is_unicast = message.header.kind == RouteType::Unicast;
            if is_unicast && !constants::is_our_table(table(&message)) {
                let found = parse_foreign(&message, family).into_iter();
                routes.extend(found.filter(|route| devices.contains(&route.ifindex)));
            }
        }
    }
    Ok(routes)
}

async fn dump(socket: &mut Socket, family: Family) -> Result<Vec<RouteMessage>, RequestError> {
    let messages = socket.dump(request(family)).await?;
    let routes = messages.into_iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    Ok(routes.collect())
}

/// A route of others, once for each of its devices.
fn parse_foreign(message: &RouteMessage, family: Family) -> Vec<ForeignRoute> {
    let header = &message.header;
    if header.flags.contains(RouteFlags::Cloned) {
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

/// The route as we would have requested it; `None` if it has a shape that we never use.
///
/// The `onlink` flag is ignored: it only waives the check of the gateway when a route is added. It
/// does not affect the path of packets, and not every kernel reports it for IPv6.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn led(net: IpNet, ifindex: u32) -> Led {
        Led {
            table: 254,
            net,
            metric: 0,
            ifindex,
            is_local: false,
        }
    }

    #[test]
    fn a_route_that_asks_for_a_source_or_a_service_type_says_nothing_of_a_pods_packet() {
        let networks = |change: &dyn Fn(&mut RouteMessage)| {
            let mut route = message(Family::V4);
            route.header.kind = RouteType::Unicast;
            route.header.table = 254;
            route.header.destination_prefix_length = 24;
            let net = RouteAddress::Inet([10, 8, 0, 0].into());
            route.attributes = vec![RouteAttribute::Destination(net), RouteAttribute::Oif(7)];
            change(&mut route);
            let mut networks = Networks::default();
            let message = RouteNetlinkMessage::NewRoute(route);
            take(&message, Family::V4, &mut BTreeSet::new(), &mut networks);
            networks.all().collect::<Vec<_>>()
        };
        let expected = led("10.8.0.0/24".parse().unwrap(), 7);
        assert_eq!(networks(&|_| {}), [expected]);
        let local = Led {
            is_local: true,
            ..expected
        };
        let of_kind = |kind| move |route: &mut RouteMessage| route.header.kind = kind;
        assert_eq!(networks(&of_kind(RouteType::Local)), [local]);
        assert!(networks(&of_kind(RouteType::Broadcast)).is_empty());
        assert!(networks(&|route| route.header.tos = 0x10).is_empty());
        assert!(networks(&|route| route.header.source_prefix_length = 64).is_empty());
    }

    #[test]
    fn of_a_device_with_a_full_table_some_networks_count_and_all_of_the_others() {
        let mut networks = Networks::default();
        for number in 0..900_000_u32 {
            let address = std::net::Ipv4Addr::from(0x0100_0000 + number * 256);
            let net = ipnet::Ipv4Net::new(address, 24).unwrap();
            networks.take(led(net.into(), 2));
        }
        networks.take(led("10.8.0.0/24".parse().unwrap(), 9));
        assert_eq!(networks.routes, 900_001);
        let of = |device| networks.all().filter(|led| led.ifindex == device).count();
        assert_eq!((of(2), of(9)), (PER_DEVICE, 1));
    }
}
