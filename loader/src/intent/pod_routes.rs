//! The routes of a pod, and the MTU of its packets out of the VPC.
//!
//! Inside the VPC packets may be as large as the ENI's MTU. Beyond it, links take 1500 bytes (AWS,
//! "Network maximum transmission unit (MTU) for your EC2 instance"). If ICMP is filtered on the
//! path, path MTU discovery fails. An MTU on the default route solves that in both directions: TCP
//! also announces its segment size by the route.

use std::collections::BTreeSet;

use ipam::Family;
use ipnet::IpNet;

use crate::intent::Intent;

/// The inputs of pods' routes, the same for all pods of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRoutes {
    /// MTU of what leaves the VPC, in bytes; `None` for that of the pod's interface.
    internet_mtu: Option<u32>,
    /// Destinations to which packets may have the full MTU of the pod's interface. Empty without a
    /// lower MTU.
    full_size: BTreeSet<IpNet>,
}

/// One route of a pod by its gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodRoute {
    /// The destination.
    pub destination: IpNet,
    /// The route's MTU, in bytes; `None` for that of the pod's interface.
    pub mtu: Option<u32>,
}

impl PodRoutes {
    /// The inputs by an intent. Packets keep their full size towards the VPC's CIDRs, the blocks of
    /// pools and `masquerade.native-routing-cidrs`.
    #[must_use]
    pub fn of(intent: &Intent) -> Self {
        let internet_mtu = intent.settings.internet_mtu;
        if internet_mtu.is_none() {
            return Self::default();
        }
        let enis = intent.node.enis.values();
        let mut cidrs: Vec<IpNet> = enis
            .flat_map(|eni| eni.vpc_cidrs.iter().chain(&eni.blocks))
            .chain(&intent.settings.masquerade.native)
            .copied()
            .collect();
        cidrs.extend(intent.plain_blocks().map(|(block, _pool)| block));
        Self {
            internet_mtu,
            full_size: IpNet::aggregate(&cidrs).into_iter().collect(),
        }
    }

    /// The routes of a family by the gateway, for an interface of an MTU: the default route first.
    pub(crate) fn by_gateway(&self, family: Family, interface_mtu: u32) -> Vec<PodRoute> {
        let default = family.default_route();
        // The kernel believes a route's MTU even where the device takes less.
        let mtu = self
            .internet_mtu
            .filter(|mtu| *mtu < interface_mtu && !self.full_size.contains(&default));
        let cidrs = self.full_size.iter().copied();
        let of_family = cidrs.filter(|net| mtu.is_some() && Family::of(net.addr()) == family);
        let full_size = of_family.map(|destination| PodRoute {
            destination,
            mtu: None,
        });
        let first = PodRoute {
            destination: default,
            mtu,
        };
        [first].into_iter().chain(full_size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fixture;

    fn texts(routes: &[PodRoute]) -> Vec<String> {
        let text = |route: &PodRoute| match route.mtu {
            Some(mtu) => format!("{} mtu {mtu}", route.destination),
            None => route.destination.to_string(),
        };
        routes.iter().map(text).collect()
    }

    fn routes(internet_mtu: Option<u32>, native: &[&str]) -> PodRoutes {
        let mut intent = fixture::intent();
        intent.settings.internet_mtu = internet_mtu;
        intent.settings.masquerade.native = native.iter().map(|net| net.parse().unwrap()).collect();
        PodRoutes::of(&intent)
    }

    #[test]
    fn without_the_setting_there_is_the_default_route_alone() {
        let routes = routes(None, &["10.200.0.0/16"]);
        assert_eq!(texts(&routes.by_gateway(Family::V4, 9001)), ["0.0.0.0/0"]);
        assert_eq!(texts(&routes.by_gateway(Family::V6, 9001)), ["::/0"]);
    }

    #[test]
    fn the_vpc_and_native_cidrs_keep_the_full_size() {
        let routes = routes(Some(1500), &["10.200.0.0/16", "fd12::/16"]);
        let v4 = texts(&routes.by_gateway(Family::V4, 9001));
        assert_eq!(v4.first().unwrap(), "0.0.0.0/0 mtu 1500");
        assert!(v4.contains(&"10.200.0.0/16".to_owned()), "{v4:?}");
        let intent = fixture::intent();
        for cidr in intent.node.enis.values().flat_map(|eni| &eni.vpc_cidrs) {
            let is_within = |net: &IpNet| net.prefix_len() != 0 && net.contains(cidr);
            let family = Family::of(cidr.addr());
            let all = routes.by_gateway(family, 9001);
            let found = all.iter().find(|route| is_within(&route.destination));
            assert_eq!(found.unwrap().mtu, None, "{cidr}");
        }
        let v6 = texts(&routes.by_gateway(Family::V6, 9001));
        assert_eq!(v6.first().unwrap(), "::/0 mtu 1500");
        assert!(v6.contains(&"fd12::/16".to_owned()), "{v6:?}");
    }

    #[test]
    fn an_interface_that_takes_no_more_has_no_mtu_on_its_route() {
        let routes = routes(Some(1500), &[]);
        for mtu in [1280, 1500] {
            assert_eq!(texts(&routes.by_gateway(Family::V4, mtu)), ["0.0.0.0/0"]);
        }
    }

    #[test]
    fn where_everything_is_native_nothing_is_outside() {
        let routes = routes(Some(1500), &["0.0.0.0/0"]);
        assert_eq!(texts(&routes.by_gateway(Family::V4, 9001)), ["0.0.0.0/0"]);
        let v6 = texts(&routes.by_gateway(Family::V6, 9001));
        assert_eq!(v6.first().unwrap(), "::/0 mtu 1500");
    }
}
