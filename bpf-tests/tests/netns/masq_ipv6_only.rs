//! Subnets without IPv4: ENIs and pods that have IPv6 alone.

use bpf_tests::fabric::Spec;
use bpf_tests::fabric::traffic::Protocol;
use bpf_tests::fabric::world::Site;
use serde_json::json;
use towpath::intent::Family;

use crate::masq::{scene_of, seen_as, snat, translated};
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
                from.at(&fabric, V6),
                to.at(&fabric, V6),
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
        seen_as(&fabric, pod.at(V6), Site::Internet, address, eni);
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
    seen_as(&fabric, pods[1].at(V6), Site::Internet, address, 1);
    for protocol in Protocol::ALL {
        carry(pods[0].at(V6), pods[1].at(V6), protocol, &fabric, &[]);
        carry(fabric.peer(V6), pods[1].at(V6), protocol, &fabric, &[1]);
    }
    within(CHANGE, "nothing differs", || nothing_differs(&fabric));
    assert!(fabric.leaks().unwrap().is_empty());
    fabric.finish().unwrap();
}
