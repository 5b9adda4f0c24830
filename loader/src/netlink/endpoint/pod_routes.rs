//! A pod's routes: its gateway on the device, everything else by the gateway.
//!
//! Running pods follow a change of the MTU for what leaves the VPC. Only routes that carry our protocol
//! and lead to the pod's gateway are touched: a later plugin of the chain, or the pod itself, may have
//! replaced the others.

use ipam::Family;
use ipnet::IpNet;

use crate::constants;
use crate::intent::Endpoint;
use crate::intent::pod_routes::{PodRoute, PodRoutes};
use crate::kernel::{ForeignRoute, NextHop, Route};
use crate::netlink::endpoint::{addresses, connect, gateway};
use crate::netlink::netns::NetNs;
use crate::netlink::{apply, observe};

/// Main routing table (`RT_TABLE_MAIN` in include/uapi/linux/rtnetlink.h).
const TABLE_MAIN: u32 = 254;

/// Makes the routes of one pod.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    routes: &'a PodRoutes,
    /// MTU of the pod's interface, in bytes.
    mtu: u32,
    /// Index of the pod's interface.
    device: u32,
    /// The routing protocol number of the routes.
    protocol: u8,
}

impl<'a> Maker<'a> {
    /// A maker for an endpoint whose interface has this index.
    pub(in crate::netlink) fn new(
        endpoint: &Endpoint,
        routes: &'a PodRoutes,
        device: u32,
        protocol: u8,
    ) -> Self {
        Self {
            routes,
            mtu: endpoint.mtu,
            device,
            protocol,
        }
    }

    /// The routes of a family, each with its MTU; the gateway's first, since the others need it.
    pub(in crate::netlink) fn all(
        &self,
        family: Family,
    ) -> anyhow::Result<Vec<(Route, Option<u32>)>> {
        let to_gateway = self.route(
            IpNet::new(gateway(family), family.host_length())?,
            NextHop::Device(self.device),
        );
        let by_gateway = self.routes.by_gateway(family, self.mtu);
        let by_gateway = by_gateway.iter().map(|route| self.by_gateway(route));
        Ok([(to_gateway, None)].into_iter().chain(by_gateway).collect())
    }

    fn by_gateway(&self, route: &PodRoute) -> (Route, Option<u32>) {
        let family = Family::of(route.destination.addr());
        let next_hop = NextHop::Gateway(gateway(family), self.device);
        (self.route(route.destination, next_hop), route.mtu)
    }

    fn route(&self, destination: IpNet, next_hop: NextHop) -> Route {
        Route {
            table: TABLE_MAIN,
            destination,
            metric: match Family::of(destination.addr()) {
                Family::V4 => 0,
                Family::V6 => constants::METRIC_V6_DEFAULT,
            },
            next_hop,
            source: None,
            protocol: self.protocol,
        }
    }
}

/// Updates the routes by the gateway of a running pod to those of new pods. A family whose default
/// route was changed is left alone. A pod without a difference costs one read.
pub(in crate::netlink) async fn follow(
    endpoint: &Endpoint,
    routes: &PodRoutes,
    protocol: u8,
) -> anyhow::Result<()> {
    let netns = NetNs::open(&endpoint.netns)?;
    let mut pod = connect(&netns)?;
    let Some(link) = observe::by_name(&mut pod, &endpoint.owner.interface).await? else {
        return Ok(());
    };
    let device = link.ifindex;
    let there = observe::foreign_routes(&mut pod, &[device].into()).await?;
    let maker = Maker::new(endpoint, routes, device, protocol);
    for family in Family::ALL {
        if addresses(endpoint, family).is_empty() {
            continue;
        }
        let wanted = routes.by_gateway(family, endpoint.mtu);
        let is_ours = |route: &&ForeignRoute| is_by_gateway(route, family, protocol);
        let ours: Vec<_> = there.iter().filter(is_ours).collect();
        let changes = changes(&wanted, &ours, family);
        for route in changes.put {
            let (route, mtu) = maker.by_gateway(&route);
            apply::routes::replace_with_mtu(&mut pod, &route, mtu).await?;
        }
        for destination in changes.delete {
            let next_hop = NextHop::Gateway(gateway(family), device);
            let route = maker.route(destination, next_hop);
            apply::routes::delete(&mut pod, &route).await?;
        }
    }
    Ok(())
}

/// True if a route in the pod is one that we made, by the gateway.
fn is_by_gateway(route: &ForeignRoute, family: Family, protocol: u8) -> bool {
    route.table == TABLE_MAIN
        && route.protocol == protocol
        && route.gateway == Some(gateway(family))
}

/// The changes that bring a pod's routes to the wanted ones.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    put: Vec<PodRoute>,
    delete: Vec<IpNet>,
}

/// Full-size routes come before the default route shrinks, and go after it has grown.
fn changes(wanted: &[PodRoute], ours: &[&ForeignRoute], family: Family) -> Changes {
    let default = family.default_route();
    if !ours.iter().any(|route| route.destination == default) {
        return Changes::default();
    }
    let is_there = |wanted: &PodRoute| {
        let is_it = |route: &&ForeignRoute| {
            route.destination == wanted.destination && route.mtu == wanted.mtu
        };
        ours.iter().any(is_it)
    };
    let is_wanted = |destination: IpNet| {
        let mut all = wanted.iter();
        all.any(|route| route.destination == destination)
    };
    let missing = wanted.iter().filter(|route| !is_there(route)).copied();
    let (last, mut put): (Vec<_>, Vec<_>) = missing.partition(|route| route.destination == default);
    put.extend(last);
    let there = ours.iter().map(|route| route.destination);
    Changes {
        put,
        delete: there.filter(|net| !is_wanted(*net)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(destination: &str, mtu: Option<u32>) -> ForeignRoute {
        ForeignRoute {
            table: TABLE_MAIN,
            destination: destination.parse().unwrap(),
            metric: 0,
            gateway: Some(gateway(Family::V4)),
            ifindex: 2,
            protocol: 2,
            mtu,
        }
    }

    fn wanted(destination: &str, mtu: Option<u32>) -> PodRoute {
        let destination = destination.parse().unwrap();
        PodRoute { destination, mtu }
    }

    #[test]
    fn full_size_routes_come_before_the_default_route_shrinks() {
        let small = wanted("0.0.0.0/0", Some(1500));
        let vpc = wanted("10.0.0.0/16", None);
        let found = changes(&[small, vpc], &[&ours("0.0.0.0/0", None)], Family::V4);
        assert_eq!(found.put, [vpc, small]);
        assert_eq!(found.delete, []);
    }

    #[test]
    fn without_an_mtu_the_full_size_routes_go() {
        let there = [ours("0.0.0.0/0", Some(1500)), ours("10.0.0.0/16", None)];
        let there: Vec<_> = there.iter().collect();
        let found = changes(&[wanted("0.0.0.0/0", None)], &there, Family::V4);
        assert_eq!(found.put, [wanted("0.0.0.0/0", None)]);
        assert_eq!(found.delete, ["10.0.0.0/16".parse().unwrap()]);
    }

    #[test]
    fn a_pod_whose_default_route_is_another_is_left_alone() {
        let found = changes(
            &[wanted("0.0.0.0/0", Some(1500)), wanted("10.0.0.0/16", None)],
            &[],
            Family::V4,
        );
        assert_eq!(found, Changes::default());
        let mut other = ours("0.0.0.0/0", None);
        assert!(is_by_gateway(&other, Family::V4, 2));
        other.protocol = 3;
        assert!(!is_by_gateway(&other, Family::V4, 2));
    }

    #[test]
    fn nothing_is_done_where_all_is_so() {
        let there = [ours("0.0.0.0/0", Some(1500)), ours("10.0.0.0/16", None)];
        let there: Vec<_> = there.iter().collect();
        let all = [wanted("0.0.0.0/0", Some(1500)), wanted("10.0.0.0/16", None)];
        assert_eq!(changes(&all, &there, Family::V4), Changes::default());
    }
}
