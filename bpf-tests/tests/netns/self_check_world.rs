//! The fabric's world by itself, without an agent: it is there, tells whom it sees, and counts what
//! leaves the VPC with a pod's address.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::{Asker, Echo, Protocol, Session, ping};
use testkit::fabric::world::{Link, Site, World};
use testkit::fabric::{Fabric, Place, Spec};

#[test]
fn the_node_reaches_the_world_and_is_seen() {
    let fabric = Fabric::create(&Spec::with_world(json!({}))).unwrap();
    let world = fabric.world().unwrap();
    for family in Family::ALL {
        let node = fabric.node_at(family).unwrap();
        for site in [Site::Internet, Site::Listed, Site::Metadata] {
            let to = world.at(site, family);
            world.forget().unwrap();
            for protocol in Protocol::ALL {
                protocol.exchange(node, to).unwrap();
                let seen = world.seen(site, family, protocol.number(family)).unwrap();
                assert_eq!(seen, [node.address], "{site:?} {family:?} {protocol}");
            }
            let server = Echo::telling(to, 0).unwrap();
            let session = Session::open(node, 41_000, server.address()).unwrap();
            assert_eq!(session.seen(), (node.address, 41_000).into());
            let asker = Asker::open(node, 41_001, server.address()).unwrap();
            assert_eq!(asker.ask(3000).unwrap(), (node.address, 41_001).into());
        }
        // The answering host is at the distance of the metadata service.
        let near = world.at(Site::Metadata, family).address;
        let said = ping(node, near, &[]).unwrap();
        assert!(
            said.contains("ttl=1 ") || said.contains("hlim=1 "),
            "{said}"
        );
        // The router on the path to the Internet reports packets that exceed the MTU.
        fabric.set_world_mtu(Link::Far, 1300).unwrap();
        let internet = world.at(Site::Internet, family).address;
        let said = ping(node, internet, &["-M", "do", "-s", "1400"]).unwrap_err();
        let path = World::path_address(family);
        assert!(
            said.to_string().contains(&format!("From {path} ")),
            "{said}"
        );
        fabric.set_world_mtu(Link::Far, 1500).unwrap();
    }
    fabric.finish().unwrap();
}

#[test]
fn what_leaves_the_vpc_with_a_pods_address_is_a_leak_unless_it_may() {
    let mut fabric = Fabric::create(&Spec::with_world(json!({}))).unwrap();
    let pods = Family::ALL.map(|family| fabric.eni(0).unwrap().pod_address(family, 5).unwrap());
    for address in pods {
        fabric
            .node
            .ip(&format!("addr add {address} dev lo"))
            .unwrap();
    }
    fabric.allow_untranslated(&pods.map(Into::into)).unwrap();
    let exchange = |fabric: &Fabric, address, protocol: Protocol| {
        let family = Family::of(address);
        let pod = Place {
            netns: &fabric.node,
            address,
        };
        let to = fabric.world().unwrap().at(Site::Internet, family);
        protocol.exchange(pod, to)
    };
    for address in pods {
        for protocol in Protocol::ALL {
            exchange(&fabric, address, protocol).unwrap();
        }
    }
    fabric.forbid_untranslated().unwrap();
    for address in pods {
        exchange(&fabric, address, Protocol::Udp).unwrap_err();
    }
    let leaks = fabric.leaks().unwrap();
    assert_eq!(leaks.len(), 2, "{leaks:?}");
    assert!(pods.iter().all(|address| leaks[address] > 0), "{leaks:?}");
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(fabric)));
    assert!(dropped.is_err(), "the fabric must panic");
}
