//! Several nodes in a VPC by themselves, without agents. They carry traffic, and each reports its
//! own foreign packets and leaks. The VPC lasts as long as one of them.

use std::net::IpAddr;

use ipam::Family;
use serde_json::json;
use testkit::fabric::document::NODE_NAME;
use testkit::fabric::layout::{Addressing, Host, key};
use testkit::fabric::traffic::{Protocol, ping};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Place, Spec, source_check};

/// A node, and another one in its VPC.
fn pair(spec: &Spec) -> (Fabric, Fabric) {
    let first = Fabric::create(spec).unwrap();
    let second = first.join(1, spec).unwrap();
    (first, second)
}

/// A place on a node with an address that its stack takes for its own.
fn place(fabric: &Fabric, address: IpAddr) -> Place<'_> {
    // Else the kernel takes an IPv6 address for tentative, for a moment.
    let nodad = match address {
        IpAddr::V4(_) => "",
        IpAddr::V6(_) => " nodad",
    };
    let line = format!("addr replace {address} dev lo{nodad}");
    fabric.node.ip(&line).unwrap();
    Place {
        netns: &fabric.node,
        address,
    }
}

fn pod_address(fabric: &Fabric, family: Family) -> IpAddr {
    let eni = fabric.eni(0).unwrap();
    eni.pod_address(family, 3).unwrap()
}

/// The MAC that a node has for an address.
fn neighbour(fabric: &Fabric, address: &str) -> Option<String> {
    let found = fabric.node.ip_json(&format!("neigh show {address}"));
    let found = found.unwrap();
    found[0]["lladdr"].as_str().map(str::to_owned)
}

#[track_caller]
fn both_ways(one: Place, other: Place) {
    for protocol in Protocol::ALL {
        protocol.exchange(one, other).unwrap();
        protocol.exchange(other, one).unwrap();
    }
}

#[test]
fn nodes_reach_each_other_and_the_control_plane() {
    let (first, second) = pair(&Spec::default());
    first.make_control().unwrap();
    second.make_control().unwrap();
    let router = &first.vpc.router;
    for family in Family::ALL {
        let nodes = [&first, &second].map(|node| node.node_at(family).unwrap());
        both_ways(nodes[0], nodes[1]);
        let keys = |to: IpAddr| source_check::enis_between(router, nodes[0].address, to, &[]);
        assert_eq!(keys(nodes[1].address).unwrap(), [0, key(1, 0)].into());
        for host in [Host::Peer, Host::Outside, Host::Control] {
            let host = second.host(host, family);
            both_ways(nodes[0], host);
            both_ways(nodes[1], host);
            assert_eq!(keys(host.address).unwrap(), [0].into());
        }
        let (one, other) = (nodes[0].address, nodes[1].address);
        for fabric in [&first, &second] {
            let numbers = fabric.enis_between(one, other).unwrap();
            assert_eq!(numbers, [0].into(), "{}", fabric.name());
        }
    }
    first.finish().unwrap();
    second.finish().unwrap();
}

#[test]
fn nodes_have_documents_of_their_own() {
    let (first, second) = pair(&Spec::default());
    assert_eq!(first.name(), NODE_NAME);
    assert_eq!(second.name(), "fabric-node-2");
    let [one, other] = [&first, &second].map(Fabric::document);
    assert_eq!(one["metadata"]["name"], NODE_NAME);
    assert_eq!(other["metadata"]["name"], "fabric-node-2");
    assert_ne!(one["spec"]["instance-id"], other["spec"]["instance-id"]);
    let address = second.node_at(Family::V4).unwrap().address;
    assert_eq!(other["spec"]["addresses"][0]["ip"], json!(address));
    let subnet = |document: &serde_json::Value, fabric: &Fabric| {
        let id = fabric.eni(1).unwrap().id();
        document["status"]["eni"]["enis"][&id]["subnet"].clone()
    };
    assert_eq!(subnet(&one, &first), subnet(&other, &second));
    assert!(subnet(&one, &first)["id"].is_string());
    first.finish().unwrap();
    second.finish().unwrap();
}

#[test]
fn the_vpc_answers_arp_for_what_other_enis_of_the_subnet_hold() {
    // The router has a default route: it could answer for everything.
    let spec = Spec::with_world(json!({}));
    let first = Fabric::create(&spec).unwrap();
    let router = &first.vpc.router;
    let proxies = |device: &str| router.sysctl(&format!("ipv4/conf/{device}/proxy_arp"));
    assert_eq!(proxies("eni0").unwrap(), "0", "one node has nobody to ask");
    let second = first.join(1, &spec).unwrap();
    let pinged = |address: IpAddr| {
        let node = first.node_at(Family::V4).unwrap();
        let answer = ping(node, address, &["-W", "1"]);
        (answer.is_ok(), neighbour(&first, &address.to_string()))
    };
    let mac = first.vpc.router_mac(first.eni(0).unwrap()).unwrap();
    let theirs = second.node_at(Family::V4).unwrap().address;
    assert_eq!(pinged(theirs), (true, Some(mac.to_string())));
    // A pod's that is not up yet: the VPC does not know.
    let pod = pod_address(&second, Family::V4);
    assert_eq!(pinged(pod), (false, Some(mac.to_string())));
    let nobodys = [10, 0, 0, 239].into();
    assert_eq!(pinged(nobodys), (false, None));
    // An address that an ENI in another subnet holds.
    first.node.ip("route add 10.0.1.0/24 dev eth0").unwrap();
    let elsewhere = second.eni(1).unwrap().own_address(Family::V4).unwrap();
    assert_eq!(pinged(elsewhere), (false, None));
    first.finish().unwrap();
    second.finish().unwrap();
}

#[test]
fn a_foreign_packet_is_told_of_the_node_that_sent_it() {
    let (mut first, second) = pair(&Spec::default());
    let foreign = place(&second, pod_address(&first, Family::V4));
    let peer = second.peer(Family::V4);
    Protocol::Udp.exchange(foreign, peer).unwrap_err();
    let cell = (key(1, 0), Family::V4);
    let counted = second.foreign().unwrap();
    assert!(counted[&cell] > 0, "{counted:?}");
    assert!(!first.foreign().unwrap().contains_key(&cell));

    let node = second.node_at(Family::V6).unwrap();
    Protocol::Udp
        .exchange(node, second.peer(Family::V6))
        .unwrap();
    first.detach(1).unwrap();
    assert_eq!(second.foreign().unwrap(), counted);
    let flows = source_check::flows(&second.vpc.router).unwrap();
    let theirs = |flow: &source_check::Flow| flow.eni == key(1, 0);
    assert!(flows.iter().any(theirs), "{flows:?}");
    first.finish().unwrap();
    let error = second.finish().unwrap_err().to_string();
    assert!(error.contains("packets left fabric-node-2 "), "{error}");
}

#[test]
fn a_node_that_detaches_an_eni_keeps_its_own_count() {
    let (first, mut second) = pair(&Spec::default());
    let foreign = place(&first, pod_address(&second, Family::V6));
    let peer = first.peer(Family::V6);
    Protocol::Udp.exchange(foreign, peer).unwrap_err();
    second.detach(1).unwrap();
    second.attach(1).unwrap();
    second.finish().unwrap();
    let error = first.finish().unwrap_err().to_string();
    assert!(error.contains("packets left fabric-node "), "{error}");
}

#[test]
fn the_vpc_goes_with_the_last_of_its_nodes() {
    let (first, second) = pair(&Spec::default());
    let (vpc, folder) = (first.vpc.router.path(), first.file(""));
    let node = first.node.path();
    first.finish().unwrap();
    assert!(!node.exists() && vpc.exists() && folder.exists());
    let control = second.make_control().unwrap().path();
    for family in Family::ALL {
        both_ways(
            second.node_at(family).unwrap(),
            second.host(Host::Control, family),
        );
    }
    let third = second.join(2, &Spec::default()).unwrap();
    assert_eq!(third.name(), "fabric-node-3");
    let taken = second.join(2, &Spec::default()).unwrap_err().to_string();
    assert_eq!(taken, "node 2 is in the VPC already");
    second.finish().unwrap();
    let second = third.join(1, &Spec::default()).unwrap();
    third.finish().unwrap();
    let address = second.node_at(Family::V4).unwrap();
    both_ways(address, second.peer(Family::V4));
    second.finish().unwrap();
    assert!(!vpc.exists() && !control.exists() && !folder.exists());
}

#[test]
fn four_nodes_have_room_for_many_pods() {
    let spec = Spec {
        addressing: Addressing::SeveralPrefixes(3),
        ..Spec::default()
    };
    let first = Fabric::create(&spec).unwrap();
    let others = [1, 2, 3].map(|node| first.join(node, &spec).unwrap());
    assert!(first.join(4, &spec).is_err());
    for family in Family::ALL {
        for other in &others {
            for number in [0, 1] {
                let last = other.eni(number).unwrap().pod_address(family, 47);
                let last = place(other, last.unwrap());
                if number == 0 {
                    both_ways(first.node_at(family).unwrap(), last);
                }
            }
        }
    }
    for fabric in others {
        fabric.finish().unwrap();
    }
    first.finish().unwrap();
}

#[test]
fn a_leak_is_told_of_the_node_that_it_left() {
    let (mut first, mut second) = pair(&Spec::with_world(json!({})));
    let world = |family| second.world().unwrap().at(Site::Internet, family);
    for family in Family::ALL {
        for fabric in [&first, &second] {
            let node = fabric.node_at(family).unwrap();
            Protocol::Udp.exchange(node, world(family)).unwrap();
        }
        let pod = place(&second, pod_address(&second, family));
        Protocol::Udp.exchange(pod, world(family)).unwrap_err();
    }
    let leaked = second.leaks().unwrap();
    assert_eq!(leaked.len(), 2, "{leaked:?}");
    assert!(first.leaks().unwrap().is_empty());

    let own = Family::ALL.map(|family| pod_address(&first, family));
    first.allow_untranslated(&own.map(Into::into)).unwrap();
    assert_eq!(
        second.leaks().unwrap(),
        leaked,
        "only the first's are forgotten"
    );
    let theirs = Family::ALL.map(|family| pod_address(&second, family));
    second.allow_untranslated(&theirs.map(Into::into)).unwrap();
    assert!(second.leaks().unwrap().is_empty());
    first.forbid_untranslated().unwrap();
    for family in Family::ALL {
        let to = first.world().unwrap().at(Site::Internet, family);
        let pod = place(&second, pod_address(&second, family));
        Protocol::Udp.exchange(pod, to).unwrap();
        let pod = place(&first, pod_address(&first, family));
        Protocol::Udp.exchange(pod, to).unwrap_err();
    }
    second.finish().unwrap();
    let error = first.finish().unwrap_err().to_string();
    assert!(error.contains("with an address of a pod"), "{error}");
}

#[test]
fn nodes_have_a_world_all_or_none() {
    let first = Fabric::create(&Spec::default()).unwrap();
    let error = first.join(1, &Spec::with_world(json!({}))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nodes of one VPC have a world all or none"
    );
    first.finish().unwrap();
}
