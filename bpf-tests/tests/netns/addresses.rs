//! Addresses that move between pods, and unused addresses.

use ipam::Family;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Protocol, ping};
use testkit::fabric::{Fabric, Place, Spec};

use crate::support::{CHANGE, End, PEER, carry_all, count, eni_status, within};

#[test]
fn an_address_can_move_to_a_pod_on_another_eni() {
    let spec = Spec {
        enis: 3,
        shared_subnet: true,
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let first = fabric.add_pod(1, 0).unwrap();
    let witness = fabric.add_pod(2, 1).unwrap();
    carry_all(&fabric, End::Pod(&first), PEER, &[1]);
    fabric.delete_endpoint(&first).unwrap();

    let moved: Vec<ipnet::IpNet> = Family::ALL
        .map(|family| first.address(family).into())
        .into();
    let mut from = fabric.eni(1).unwrap().blocks.clone();
    let mut to = fabric.eni(2).unwrap().blocks.clone();
    from.retain(|block| !moved.contains(block));
    to.extend(moved);
    fabric.set_blocks(&[(1, from), (2, to)]).unwrap();
    within(CHANGE, "the agent knows the new owner", || {
        let blocks = eni_status(&fabric, 2)?["blocks"].to_string();
        let known = blocks.contains(&first.address(Family::V4).to_string());
        check(known, || blocks.clone())
    });
    let second = fabric
        .make_pod_at(first.address(Family::V4), first.address(Family::V6))
        .unwrap();
    fabric.add_endpoint(&second).unwrap();
    carry_all(&fabric, End::Pod(&second), PEER, &[2]);
    carry_all(&fabric, PEER, End::Pod(&second), &[2]);
    carry_all(&fabric, End::Pod(&witness), End::Pod(&second), &[]);
    carry_all(&fabric, End::Node, End::Pod(&second), &[]);
    fabric.finish().unwrap();
}

#[test]
fn an_address_can_be_used_again_at_once() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let mut last = fabric.add_pod(1, 0).unwrap();
    for _ in 0..5 {
        fabric.delete_endpoint(&last).unwrap();
        last = fabric.add_pod(1, 0).unwrap();
        carry_all(&fabric, PEER, End::Pod(&last), &[1]);
    }
    fabric.finish().unwrap();
}

/// Packets to an unused address must end at the node, be counted, and never go back to the VPC.
#[test]
fn an_address_of_ours_that_no_pod_has_is_a_dead_end() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(0, 0).unwrap();
    for family in Family::ALL {
        for eni in [0, 1] {
            let nobody = fabric.eni(eni).unwrap().pod_address(family, 5).unwrap();
            let try_from =
                |place: Place| ping(place, nobody, &["-W", "1"]).unwrap_err().to_string();
            let before = count(&fabric, "from_network", "no-endpoint");
            try_from(fabric.peer(family));
            assert_eq!(count(&fabric, "from_network", "no-endpoint"), before + 1);
            let before = count(&fabric, "from_endpoint", "no-endpoint");
            try_from(pod.at(family));
            assert_eq!(count(&fabric, "from_endpoint", "no-endpoint"), before + 1);
            // The node gets the error at once.
            let node = fabric.node_at(family).unwrap();
            let error = testkit::fabric::traffic::tcp(node, (nobody, 9).into()).unwrap_err();
            let unreachable = format!("{error:#}");
            assert!(
                unreachable.contains("unreachable") || unreachable.contains("EHOSTUNREACH"),
                "{unreachable}"
            );
        }
        Protocol::Icmp
            .exchange(pod.at(family), fabric.peer(family))
            .unwrap();
    }
    fabric.finish().unwrap();
}
