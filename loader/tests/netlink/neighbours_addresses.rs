//! Addresses and permanent neighbours.

use loader::kernel::{Address, Neighbour, StepKind};
use serde_json::json;

use crate::host::{apply_twice, in_netns, ip, ip_json, link, observe, refused, veth};

#[test]
fn an_address_comes_and_goes() {
    in_netns(async |netlink| {
        let ifindex = veth(netlink, "eni1").await;
        for (family, net, length) in [("-4", "10.0.1.10/32", 32), ("-6", "2001:db8::10/128", 128)] {
            let address = Address {
                ifindex,
                net: net.parse().unwrap(),
            };
            let count = |netlink_has: bool| {
                let shown = ip_json(&format!("{family} addr show dev eni1 scope global"));
                let infos = shown
                    .iter()
                    .flat_map(|d| d["addr_info"].as_array().unwrap());
                let ours: Vec<_> = infos
                    .filter(|i| i["local"] == json!(net.split('/').next().unwrap()))
                    .collect();
                assert_eq!(ours.len(), usize::from(netlink_has), "{net}: {ours:?}");
                for info in ours {
                    assert_eq!(info["prefixlen"], json!(length));
                    assert_eq!(info["valid_life_time"], json!(u32::MAX), "for ever");
                    assert_eq!(info["tentative"], json!(null), "no duplicate detection");
                }
            };
            apply_twice(netlink, StepKind::AddAddress(address)).await;
            count(true);
            assert!(observe(netlink).await.addresses.contains(&address));
            apply_twice(netlink, StepKind::DeleteAddress(address)).await;
            count(false);
            assert!(!observe(netlink).await.addresses.contains(&address));
        }
    });
}

#[test]
fn an_address_that_would_run_out_is_made_to_stay() {
    in_netns(async |netlink| {
        let ifindex = veth(netlink, "eni1").await;
        ip("addr add 10.0.1.10/32 dev eni1 valid_lft 100 preferred_lft 100");
        let net = "10.0.1.10/32".parse().unwrap();
        apply_twice(netlink, StepKind::AddAddress(Address { ifindex, net })).await;
        let shown = ip_json("-4 addr show dev eni1");
        assert_eq!(shown[0]["addr_info"][0]["valid_life_time"], json!(u32::MAX));
    });
}

#[test]
fn what_belonged_to_a_device_that_went_is_gone() {
    in_netns(async |netlink| {
        let ifindex = veth(netlink, "eni1").await;
        ip("link del eni1");
        for net in ["10.0.1.10/32", "2001:db8::10/128"] {
            let net: ipnet::IpNet = net.parse().unwrap();
            apply_twice(netlink, StepKind::DeleteAddress(Address { ifindex, net })).await;
            let error = refused(netlink, StepKind::AddAddress(Address { ifindex, net })).await;
            assert!(error.contains(&net.to_string()), "{error}");
            let neighbour = Neighbour {
                ifindex,
                address: net.addr(),
                mac: "02:00:00:00:00:01".parse().unwrap(),
            };
            apply_twice(netlink, StepKind::DeleteNeighbour(neighbour)).await;
        }
    });
}

#[test]
fn a_neighbour_comes_is_replaced_and_goes() {
    in_netns(async |netlink| {
        let ifindex = veth(netlink, "pod0").await;
        for address in ["10.0.1.99", "2001:db8::99"] {
            let neighbour = |mac: &str| Neighbour {
                ifindex,
                address: address.parse().unwrap(),
                mac: mac.parse().unwrap(),
            };
            let shown = || {
                let entries = ip_json("neigh show nud permanent dev pod0");
                let ours = entries.into_iter().filter(|e| e["dst"] == json!(address));
                ours.map(|e| e["lladdr"].as_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            let (first, second) = (
                neighbour("02:00:00:00:00:01"),
                neighbour("02:00:00:00:00:02"),
            );
            apply_twice(netlink, StepKind::AddNeighbour(first)).await;
            assert_eq!(shown(), ["02:00:00:00:00:01"]);
            assert!(observe(netlink).await.neighbours.contains(&first));
            apply_twice(netlink, StepKind::AddNeighbour(second)).await;
            assert_eq!(shown(), ["02:00:00:00:00:02"]);
            let observed = observe(netlink).await.neighbours;
            assert!(observed.contains(&second) && !observed.contains(&first));
            apply_twice(netlink, StepKind::DeleteNeighbour(second)).await;
            assert!(shown().is_empty());
            assert!(!observe(netlink).await.neighbours.contains(&second));
        }
    });
}

#[test]
fn only_permanent_neighbours_are_seen_and_one_that_is_not_is_made_so() {
    in_netns(async |netlink| {
        let ifindex = veth(netlink, "pod0").await;
        ip("neigh add 10.0.1.5 lladdr 02:00:00:00:00:05 nud reachable dev pod0");
        ip("neigh add 10.0.1.6 lladdr 02:00:00:00:00:06 nud noarp dev pod0");
        assert_eq!(observe(netlink).await.neighbours.len(), 0);
        let neighbour = Neighbour {
            ifindex,
            address: "10.0.1.5".parse().unwrap(),
            mac: "02:00:00:00:00:05".parse().unwrap(),
        };
        apply_twice(netlink, StepKind::AddNeighbour(neighbour)).await;
        assert!(observe(netlink).await.neighbours.contains(&neighbour));
    });
}

#[test]
fn a_peer_address_is_read_as_the_local_one() {
    in_netns(async |netlink| {
        veth(netlink, "eni1").await;
        ip("addr add 10.0.1.10 peer 10.0.1.20/32 dev eni1");
        let ifindex = link(netlink, "eni1").await.ifindex;
        let net = "10.0.1.10/32".parse().unwrap();
        let observed = observe(netlink).await.addresses;
        assert!(observed.contains(&Address { ifindex, net }), "{observed:?}");
    });
}
