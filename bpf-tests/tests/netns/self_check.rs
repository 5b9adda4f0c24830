//! The fabric by itself, without an agent: it carries traffic, and it tells on foreign packets.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bpf_tests::fabric::layout::Host;
use bpf_tests::fabric::traffic::Protocol;
use bpf_tests::fabric::{Fabric, Place, Spec, source_check};
use towpath::intent::Family;

#[test]
fn the_node_reaches_everything_by_its_primary_eni() {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    for family in Family::ALL {
        for host in Host::ALL {
            for protocol in Protocol::ALL {
                let (node, host) = (fabric.node_at(family).unwrap(), fabric.host(host, family));
                protocol.exchange(node, host).unwrap();
                protocol.exchange(host, node).unwrap();
            }
        }
    }
    let flows = source_check::flows(&fabric.vpc.router).unwrap();
    assert!(flows.iter().all(|flow| flow.eni == 0), "{flows:?}");
    assert!(flows.iter().any(|flow| flow.protocol == 58), "{flows:?}");
    fabric.finish().unwrap();
}

#[test]
fn a_fabric_with_a_foreign_packet_does_not_end_quietly() {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    fabric.node.ip("addr add 192.0.2.1/32 dev lo").unwrap();
    let foreign = Place {
        netns: &fabric.node,
        address: [192, 0, 2, 1].into(),
    };
    Protocol::Udp
        .exchange(foreign, fabric.peer(Family::V4))
        .unwrap_err();
    // The node asks for its gateway's MAC with the foreign address as sender: that counts too.
    let counts = fabric.foreign().unwrap();
    assert!(counts[&(0, Family::V4)] > 0, "{counts:?}");
    assert_eq!(counts[&(0, Family::V6)], 0, "{counts:?}");
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(fabric)));
    assert!(dropped.is_err(), "the fabric must panic");
}
