//! The fabric by itself, without an agent: it carries traffic, and it tells on foreign packets.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ipam::Family;
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Host;
use testkit::fabric::program::{Action, ForeignProgram, Position};
use testkit::fabric::state::difference;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Place, Spec, source_check};

use crate::support::{CHANGE, within};

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

#[test]
fn neighbour_discovery_and_mld_are_not_foreign() {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    let seen = || source_check::discovery(&fabric.vpc.router).unwrap()[&0];
    let before = seen();
    // Duplicate address detection asks from `::`; the solicited-node group is joined by MLD.
    fabric
        .node
        .sysctls(&[
            ("ipv6/conf/all/accept_dad", "1"),
            ("ipv6/conf/eth0/accept_dad", "1"),
        ])
        .unwrap();
    fabric
        .node
        .ip("addr add 2600:1f18:10:5600::77/64 dev eth0")
        .unwrap();
    within(CHANGE, "the address is no longer tentative", || {
        let tentative = fabric.node.run("ip -6 -o addr show dev eth0 tentative")?;
        check(tentative.is_empty(), || tentative.clone())
    });
    assert!(seen() >= before + 2, "{} after {before}", seen());
    fabric.finish().unwrap();
}

/// A host whose address went while the router still sends there answers by its link-local one.
#[test]
fn errors_between_link_local_addresses_are_not_foreign() {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    let router = &fabric.vpc.router;
    let address = fabric.node_at(Family::V6).unwrap().address;
    let mac = fabric.eni(0).unwrap().mac;
    fabric
        .node
        .sysctls(&[("ipv6/conf/all/forwarding", "1")])
        .unwrap();
    fabric
        .node
        .ip(&format!("addr del {address}/128 dev eth0"))
        .unwrap();
    router
        .ip(&format!(
            "neigh replace {address} lladdr {mac} dev eni0 nud permanent"
        ))
        .unwrap();
    let seen = || source_check::discovery(router).unwrap()[&0];
    let before = seen();
    // The hops end at the node.
    let ping = format!("ping -n -c 1 -W 1 -t 1 -I fe80:ec2::1%eni0 {address}");
    router.run(&ping).unwrap_err();
    assert!(seen() > before, "nothing answered");
    fabric.finish().unwrap();
}

#[test]
fn a_program_of_somebody_else_sees_packets_at_every_place() {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    let (node, folder) = (&fabric.node, fabric.pin_root().with_file_name(""));
    let mut first = ForeignProgram::load("first", &folder, Action::Pass).unwrap();
    let mut last = ForeignProgram::load("last", &folder, Action::Pass).unwrap();
    let filter = ForeignProgram::load("filter", &folder, Action::Pass).unwrap();
    last.attach_tcx(node, "eth0", Position::Last).unwrap();
    first.attach_tcx(node, "eth0", Position::First).unwrap();
    node.run("tc qdisc add dev eth0 clsact").unwrap();
    filter.attach_filter(node, "eth0", 10).unwrap();
    let peer = fabric.peer(Family::V4);
    Protocol::Icmp
        .exchange(peer, fabric.node_at(Family::V4).unwrap())
        .unwrap();
    for program in [&first, &last, &filter] {
        assert!(program.runs().unwrap() > 0, "{program:?}");
    }
    let state = fabric.state().unwrap();
    let expected = ["eth0 ingress 0 first", "eth0 ingress 1 last"];
    assert_eq!(
        state["tcx"].iter().map(String::as_str).collect::<Vec<_>>(),
        expected
    );
    drop(first);
    let text = difference(&state, &fabric.state().unwrap());
    assert!(text.contains("- tcx: eth0 ingress 1 last"), "{text}");
    fabric.finish().unwrap();
}
