//! Routes of our tables.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use loader::kernel::{ForeignRoute, NextHop, Observed, Route, StepKind};
use serde_json::json;

use crate::host::{PROTOCOL, apply_twice, attempt, in_netns, ip, ip_routes, observe, veth};

/// Values that differ between the families.
struct Case {
    family: &'static str,
    pod: &'static str,
    block: &'static str,
    default: &'static str,
    gateway: &'static str,
    gateway_net: &'static str,
    node: &'static str,
    metric: u32,
}

const CASES: [Case; 2] = [
    Case {
        family: "-4",
        pod: "10.0.1.99/32",
        block: "10.0.1.96/28",
        default: "0.0.0.0/0",
        gateway: "10.0.1.1",
        gateway_net: "10.0.1.1/32",
        node: "10.0.0.10",
        metric: 0,
    },
    Case {
        family: "-6",
        pod: "2001:db8::99/128",
        block: "2001:db8:0:0:a::/80",
        default: "::/0",
        gateway: "fe80:ec2::1",
        gateway_net: "fe80:ec2::1/128",
        node: "2001:db8::10",
        metric: 1024,
    },
];

impl Case {
    fn route(&self, table: u32, destination: &str, next_hop: NextHop) -> Route {
        Route {
            table,
            destination: destination.parse().expect("a prefix"),
            metric: self.metric,
            next_hop,
            source: None,
            protocol: PROTOCOL,
        }
    }

    fn gateway(&self) -> IpAddr {
        self.gateway.parse().expect("an address")
    }

    fn node(&self) -> IpAddr {
        self.node.parse().expect("an address")
    }
}

#[test]
fn every_shape_comes_back_as_asked_and_goes() {
    in_netns(async |netlink| {
        let eni = veth(netlink, "eni1").await;
        let pod = veth(netlink, "pod0").await;
        ip("addr add 10.0.0.10/32 dev eni1");
        ip("addr add 2001:db8::10/128 dev eni1 nodad");
        for case in CASES {
            let mut pod_route = case.route(220, case.pod, NextHop::Device(pod));
            pod_route.source = Some(case.node());
            let mut block = case.route(220, case.block, NextHop::Unreachable);
            block.metric = 9000;
            let gateway = NextHop::Gateway(case.gateway(), eni);
            let mut of_another_protocol = case.route(72, case.default, gateway);
            of_another_protocol.protocol = 77;
            let routes = [
                pod_route,
                block,
                case.route(11, case.gateway_net, NextHop::Device(eni)),
                case.route(11, case.default, gateway),
                of_another_protocol,
            ];
            for (index, route) in routes.iter().enumerate() {
                apply_twice(netlink, StepKind::AddRoute(*route)).await;
                let observed = observe(netlink).await.routes;
                assert!(observed.contains(route), "{route:?} in {observed:?}");
                assert_eq!(observed.len(), index + 1, "{observed:?}");
            }
            let shown = ip_routes(case.family, 220);
            assert_eq!(shown.len(), 2, "{shown:?}");
            let shown_pod = shown.iter().find(|r| r["dev"] == json!("pod0")).unwrap();
            assert_eq!(shown_pod["prefsrc"], json!(case.node));
            assert_eq!(shown_pod["protocol"], json!("kernel"));
            let shown_block = shown.iter().find(|r| r["type"] == json!("unreachable"));
            assert_eq!(shown_block.unwrap()["metric"], json!(9000));
            let shown = ip_routes(case.family, 11);
            assert_eq!(shown.len(), 2, "{shown:?}");
            let default = shown.iter().find(|r| r["dst"] == json!("default")).unwrap();
            assert_eq!(default["gateway"], json!(case.gateway));
            assert_eq!(ip_routes(case.family, 72)[0]["protocol"], json!("77"));
            for (index, route) in routes.iter().enumerate() {
                apply_twice(netlink, StepKind::DeleteRoute(*route)).await;
                let observed = observe(netlink).await.routes;
                assert!(!observed.contains(route), "{observed:?}");
                assert_eq!(observed.len(), routes.len() - index - 1, "{observed:?}");
            }
            for table in [220, 11, 72] {
                assert!(ip_routes(case.family, table).is_empty());
            }
        }
    });
}

#[test]
fn a_route_takes_the_place_of_the_one_with_its_key() {
    in_netns(async |netlink| {
        let old = veth(netlink, "pod0").await;
        let new = veth(netlink, "pod1").await;
        ip("addr add 10.0.0.10/32 dev pod0");
        ip("addr add 2001:db8::10/128 dev pod0 nodad");
        for case in CASES {
            let mut versions = vec![
                case.route(220, case.pod, NextHop::Device(old)),
                case.route(220, case.pod, NextHop::Device(new)),
                case.route(220, case.pod, NextHop::Gateway(case.gateway(), new)),
                case.route(220, case.pod, NextHop::Gateway(case.gateway(), old)),
                case.route(220, case.pod, NextHop::Unreachable),
                case.route(220, case.pod, NextHop::Device(old)),
            ];
            let mut sourced = case.route(220, case.pod, NextHop::Device(old));
            sourced.source = Some(case.node());
            versions.push(sourced);
            sourced.protocol = 4;
            versions.push(sourced);
            for route in versions {
                apply_twice(netlink, StepKind::AddRoute(route)).await;
                let observed = observe(netlink).await.routes;
                assert_eq!(observed.len(), 1, "{observed:?}");
                assert!(observed.contains(&route), "{route:?}, not {observed:?}");
                assert_eq!(ip_routes(case.family, 220).len(), 1);
            }
            ip(&format!("{} route flush table 220", case.family));
        }
    });
}

#[test]
fn a_delete_takes_the_route_of_its_metric_and_kind() {
    in_netns(async |netlink| {
        let pod = veth(netlink, "pod0").await;
        for case in CASES {
            let device = case.route(220, case.pod, NextHop::Device(pod));
            let mut unreachable = case.route(220, case.pod, NextHop::Unreachable);
            unreachable.metric = 9000;
            apply_twice(netlink, StepKind::AddRoute(device)).await;
            apply_twice(netlink, StepKind::AddRoute(unreachable)).await;
            apply_twice(netlink, StepKind::DeleteRoute(unreachable)).await;
            let observed = observe(netlink).await.routes;
            assert!(
                observed.contains(&device) && observed.len() == 1,
                "{observed:?}"
            );
            apply_twice(netlink, StepKind::AddRoute(unreachable)).await;
            apply_twice(netlink, StepKind::DeleteRoute(device)).await;
            let observed = observe(netlink).await.routes;
            assert!(
                observed.contains(&unreachable) && observed.len() == 1,
                "{observed:?}"
            );
            ip(&format!("{} route flush table 220", case.family));
        }
    });
}

#[test]
fn other_tables_and_other_shapes_are_left_out() {
    in_netns(async |netlink| {
        veth(netlink, "eni1").await;
        veth(netlink, "eni2").await;
        ip("addr add 10.0.0.10/24 dev eni1");
        ip("addr add 2001:db8::10/64 dev eni1 nodad");
        for line in [
            "-4 route add 10.9.0.0/16 via 10.0.0.1 table main",
            "-4 route add 10.9.0.0/16 via 10.0.0.1 table 9",
            "-4 route add 10.9.0.0/16 via 10.0.0.1 table 73",
            "-4 route add 10.9.0.0/16 via 10.0.0.1 table 476",
            "-4 route add blackhole 10.8.0.0/16 table 220",
            "-4 route add 10.7.0.0/16 table 220 tos 0x10 dev eni1",
            "-4 route add 10.6.0.0/16 table 220 mtu 1400 dev eni1",
            "-4 route add 10.5.0.0/16 table 220 nexthop via 10.0.0.1 dev eni1 nexthop via 10.0.0.2 dev eni1",
            "-6 route add 2001:db8:9::/48 dev eni1 table main",
            "-6 route add 2001:db8:9::/48 dev eni1 table 9",
            "-6 route add 2001:db8:9::/48 dev eni1 table 476",
            "-6 route add blackhole 2001:db8:8::/48 table 220",
            "-6 route add 2001:db8:7::/48 table 220 mtu 1400 dev eni1",
            "-6 route add 2001:db8:6::/48 table 220 dev eni1 expires 100",
            "-6 route add 2001:db8:5::/48 table 220 nexthop via fe80::1 dev eni1 nexthop via fe80::2 dev eni1",
        ] {
            ip(line);
        }
        let observed = observe(netlink).await.routes;
        assert!(observed.is_empty(), "{observed:?}");
    });
}

#[test]
fn routes_of_a_device_that_went_are_gone() {
    in_netns(async |netlink| {
        let pod = veth(netlink, "pod0").await;
        for case in CASES {
            let route = case.route(220, case.pod, NextHop::Device(pod));
            apply_twice(netlink, StepKind::AddRoute(route)).await;
        }
        ip("link del pod0");
        assert!(observe(netlink).await.routes.is_empty());
        for case in CASES {
            let route = case.route(220, case.pod, NextHop::Device(pod));
            apply_twice(netlink, StepKind::DeleteRoute(route)).await;
        }
    });
}

#[test]
fn a_stranger_in_front_of_our_route_does_not_make_the_add_fail() {
    in_netns(async |netlink| {
        let pod = veth(netlink, "pod0").await;
        veth(netlink, "pod1").await;
        let route = CASES[0].route(220, CASES[0].pod, NextHop::Device(pod));
        apply_twice(netlink, StepKind::AddRoute(route)).await;
        let (ok, text) = attempt("ip route prepend 10.0.1.99/32 dev pod1 table 220");
        assert!(ok, "{text}");
        apply_twice(netlink, StepKind::AddRoute(route)).await;
        assert!(observe(netlink).await.routes.contains(&route));
    });
}

#[test]
fn a_table_above_255_is_written_whole() {
    in_netns(async |netlink| {
        let pod = veth(netlink, "pod0").await;
        for case in CASES {
            let route = case.route(70_001, case.pod, NextHop::Device(pod));
            apply_twice(netlink, StepKind::AddRoute(route)).await;
            assert_eq!(ip_routes(case.family, 70_001).len(), 1);
            apply_twice(netlink, StepKind::DeleteRoute(route)).await;
            assert!(ip_routes(case.family, 70_001).is_empty());
        }
    });
}

#[test]
fn a_strangers_second_gateway_does_not_hide_ours_for_long() {
    in_netns(async |netlink| {
        let eni = veth(netlink, "eni1").await;
        veth(netlink, "eni2").await;
        for case in CASES {
            let gateway = NextHop::Gateway(case.gateway(), eni);
            let route = case.route(11, case.default, gateway);
            apply_twice(netlink, StepKind::AddRoute(route)).await;
            let family = case.family;
            ip(&format!(
                "{family} route append default via {} dev eni2 onlink table 11",
                case.gateway
            ));
            // IPv6 makes one route with two next hops of it, which is no route of ours.
            apply_twice(netlink, StepKind::AddRoute(route)).await;
            assert!(observe(netlink).await.routes.contains(&route));
        }
    });
}

#[test]
fn routes_of_others_are_listed_by_device_and_ours_are_not() {
    in_netns(async |netlink| {
        let (one, other) = (veth(netlink, "one").await, veth(netlink, "other").await);
        ip("addr add 10.0.1.10/24 dev one");
        ip("route add default via 10.0.1.1 dev one proto dhcp metric 1024");
        ip("route add default via 10.0.1.1 dev one table 11");
        ip("route add 192.0.2.0/24 dev other");
        ip("route add 198.51.100.0/24 proto static nexthop via 10.0.1.2 dev one nexthop dev other");
        let found = netlink.others(&BTreeSet::from([one])).await.unwrap().routes;
        let route = |net: &str, gateway: Option<&str>, metric, protocol| ForeignRoute {
            mtu: None,
            table: 254,
            destination: net.parse().unwrap(),
            metric,
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            ifindex: one,
            protocol,
        };
        let expected = [
            route("0.0.0.0/0", Some("10.0.1.1"), 1024, 16),
            route("10.0.1.0/24", None, 0, 2),
            route("198.51.100.0/24", Some("10.0.1.2"), 0, 4),
        ];
        let v4: Vec<_> = found
            .into_iter()
            .filter(|r| r.destination.addr().is_ipv4())
            .collect();
        assert_eq!(v4, expected);
        assert_ne!(one, other);
    });
}

#[test]
fn beside_a_full_table_of_others_ours_are_seen_at_each_look_and_theirs_seldom() {
    const MANY: u32 = 20_000;
    in_netns(async |netlink| {
        let other = veth(netlink, "other").await;
        let file = std::env::temp_dir().join(format!("towpath-routes-{}", std::process::id()));
        let lines = (0..MANY).map(|number| {
            let net = Ipv4Addr::from(0x0b00_0000 + number * 256);
            format!("route add {net}/24 dev other\n")
        });
        fs::write(&file, lines.collect::<String>()).unwrap();
        ip(&format!("-batch {}", file.display()));
        fs::remove_file(&file).unwrap();
        let by = |observed: &Observed, device| {
            let routes = observed.host.routes.iter();
            routes.filter(|(_, ifindex)| *ifindex == device).count()
        };
        assert_eq!(by(&observe(netlink).await, other), 4096);
        ip("route add unreachable default table 11 metric 9000");
        ip("-6 route add unreachable default table 220 metric 9000");
        let vpn = veth(netlink, "vpn0").await;
        ip("route add 198.51.100.0/24 dev vpn0");
        let seen = observe(netlink).await;
        let tables: Vec<_> = seen.routes.iter().map(|route| route.table).collect();
        assert_eq!(tables, [11, 220]);
        assert_eq!((by(&seen, other), by(&seen, vpn)), (4096, 0), "rests");
        let begun = Instant::now();
        while by(&observe(netlink).await, vpn) == 0 {
            assert!(begun.elapsed() < Duration::from_mins(2), "never again");
            tokio::task::yield_now().await;
        }
    });
}
