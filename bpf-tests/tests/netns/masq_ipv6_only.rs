//! Subnets without IPv4: ENIs and pods that have IPv6 alone.

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Spec};

use crate::masq::{scene_of, snat, translated};
use crate::support::{CHANGE, End, PEER, carry, nothing_differs, within};

const V6: Family = Family::V6;

#[test]
fn a_node_without_ipv4_carries_its_pods() {
    let spec = Spec {
        v6_only: vec![0, 1],
        ..Spec::with_world(json!({}))
    };
    let (fabric, pods) = scene_of(&spec);
    let [one, two] = [0, 1].map(|number: usize| End::Pod(&pods[number]));
    for protocol in Protocol::ALL {
        let carry = |from: End, to: End, enis: &[u8]| {
            carry(
                [from.at(&fabric, V6), to.at(&fabric, V6)],
                protocol,
                &fabric,
                enis,
            );
        };
        carry(one, two, &[]);
        carry(two, one, &[]);
        carry(End::Node, two, &[]);
        for (pod, eni) in [(one, 0), (two, 1)] {
            carry(pod, PEER, &[eni]);
            carry(PEER, pod, &[eni]);
        }
    }
    for (pod, eni) in pods.iter().zip([0, 1]) {
        let address = snat(&fabric, eni, V6);
        fabric
            .check_seen(pod.at(V6), Site::Internet, address, eni)
            .unwrap();
    }
    within(CHANGE, "nothing differs", || nothing_differs(&fabric));
    assert!(fabric.leaks().unwrap().is_empty());
    fabric.finish().unwrap();
}

#[test]
fn an_eni_without_ipv4_serves_beside_one_that_has_both() {
    let spec = Spec {
        v6_only: vec![1],
        ..Spec::with_world(json!({}))
    };
    let (fabric, pods) = scene_of(&spec);
    translated(&fabric, &pods[0], 0);
    let address = snat(&fabric, 1, V6);
    fabric
        .check_seen(pods[1].at(V6), Site::Internet, address, 1)
        .unwrap();
    for protocol in Protocol::ALL {
        carry([pods[0].at(V6), pods[1].at(V6)], protocol, &fabric, &[]);
        carry([fabric.peer(V6), pods[1].at(V6)], protocol, &fabric, &[1]);
    }
    within(CHANGE, "nothing differs", || nothing_differs(&fabric));
    assert!(fabric.leaks().unwrap().is_empty());
    fabric.finish().unwrap();
}

#[test]
fn a_primary_eni_without_ipv4_serves_beside_one_that_has_both() {
    let spec = Spec {
        v6_only: vec![0],
        ..Spec::with_world(json!({}))
    };
    let (fabric, pods) = scene_of(&spec);
    for (pod, eni) in pods.iter().zip([0, 1]) {
        let address = snat(&fabric, eni, V6);
        fabric
            .check_seen(pod.at(V6), Site::Internet, address, eni)
            .unwrap();
    }
    let [one, two] = [&pods[0], &pods[1]];
    // No address of the primary ENI is there to take: IPv4 leaves by the ENI that has one.
    let address = snat(&fabric, 1, Family::V4);
    fabric
        .check_seen(two.at(Family::V4), Site::Internet, address, 1)
        .unwrap();
    for protocol in Protocol::ALL {
        carry([one.at(V6), two.at(V6)], protocol, &fabric, &[]);
        carry([fabric.peer(V6), one.at(V6)], protocol, &fabric, &[0]);
        for family in Family::ALL {
            carry(
                [fabric.peer(family), two.at(family)],
                protocol,
                &fabric,
                &[1],
            );
        }
    }
    within(CHANGE, "nothing differs", || nothing_differs(&fabric));
    assert!(fabric.leaks().unwrap().is_empty());
    fabric.finish().unwrap();
}

#[test]
fn a_pod_has_each_family_on_an_eni_of_its_own() {
    for (v6_only, [v4, v6]) in [(vec![], [0, 1]), (vec![1], [0, 1]), (vec![0], [1, 0])] {
        let spec = Spec {
            v6_only,
            ..Spec::with_world(json!({}))
        };
        let mut fabric = Fabric::ready(&spec).unwrap();
        let pod = fabric.make_pod_across([v4, v6], 0).unwrap();
        fabric.add_endpoint(&pod).unwrap();
        for (family, eni) in [(Family::V4, v4), (V6, v6)] {
            let address = snat(&fabric, eni, family);
            fabric
                .check_seen(pod.at(family), Site::Internet, address, eni)
                .unwrap();
            for protocol in Protocol::ALL {
                let peer = fabric.peer(family);
                carry([pod.at(family), peer], protocol, &fabric, &[eni]);
                carry([peer, pod.at(family)], protocol, &fabric, &[eni]);
            }
        }
        within(CHANGE, "nothing differs", || nothing_differs(&fabric));
        assert!(fabric.leaks().unwrap().is_empty());
        fabric.finish().unwrap();
    }
}
