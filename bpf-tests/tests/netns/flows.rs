//! Connectivity between all ends, and the ENIs of the packets.

use ipam::Family;
use serde_json::json;
use testkit::fabric::layout::Addressing;
use testkit::fabric::{Fabric, Spec};

use crate::support::{End, OUTSIDE, PEER, carry_all};

/// Checks every pod with every other one, with the node, with the peer, with the outside, opened
/// from either end.
fn everyone_reaches_everyone(spec: &Spec, pods: &[(u8, usize)]) {
    let mut fabric = Fabric::ready(spec).unwrap();
    let pods: Vec<_> = pods
        .iter()
        .map(|(eni, index)| (fabric.add_pod(*eni, *index).unwrap(), *eni))
        .collect();
    for (pod, eni) in &pods {
        for (other, _) in &pods {
            if pod.name != other.name {
                carry_all(&fabric, End::Pod(pod), End::Pod(other), &[]);
            }
        }
        carry_all(&fabric, End::Pod(pod), End::Node, &[]);
        carry_all(&fabric, End::Node, End::Pod(pod), &[]);
        for far in [PEER, OUTSIDE] {
            carry_all(&fabric, End::Pod(pod), far, &[*eni]);
            carry_all(&fabric, far, End::Pod(pod), &[*eni]);
        }
    }
    carry_all(&fabric, End::Node, PEER, &[0]);
    carry_all(&fabric, PEER, End::Node, &[0]);
    fabric.finish().unwrap();
}

#[test]
fn two_enis_with_secondary_addresses() {
    everyone_reaches_everyone(&Spec::default(), &[(0, 0), (0, 1), (1, 0), (1, 7)]);
}

#[test]
fn four_enis_with_prefixes() {
    let spec = Spec {
        enis: 4,
        addressing: Addressing::Prefixes,
        ..Spec::default()
    };
    // The first and the last address of a prefix work like the others.
    everyone_reaches_everyone(&spec, &[(0, 0), (1, 15), (2, 3), (3, 1)]);
}

#[test]
fn two_enis_with_prefixes_by_clsact() {
    let spec = Spec {
        addressing: Addressing::Prefixes,
        settings: json!({"datapath": {"attach": "clsact"}}),
        ..Spec::default()
    };
    everyone_reaches_everyone(&spec, &[(0, 0), (1, 0), (1, 1)]);
}

#[test]
fn a_pod_with_its_families_on_different_enis() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let address =
        |fabric: &Fabric, eni, family| fabric.eni(eni).unwrap().pod_address(family, 0).unwrap();
    let (v4, v6) = (
        address(&fabric, 0, Family::V4),
        address(&fabric, 1, Family::V6),
    );
    let pod = fabric.make_pod_at(v4, v6).unwrap();
    let answer = fabric.add_endpoint(&pod).unwrap();
    let owners: Vec<_> = answer["addresses"].as_array().unwrap().iter().collect();
    assert_eq!(owners.len(), 2, "{answer}");
    for allocation in owners {
        let v4 = allocation["address"].as_str().unwrap().contains('.');
        assert_eq!(allocation["eni"]["number"], u8::from(!v4), "{answer}");
    }
    for (family, eni) in [(Family::V4, 0), (Family::V6, 1)] {
        for protocol in testkit::fabric::traffic::Protocol::ALL {
            let (pod, peer) = (pod.at(family), fabric.peer(family));
            crate::support::carry([pod, peer], protocol, &fabric, &[eni]);
            crate::support::carry([peer, pod], protocol, &fabric, &[eni]);
        }
    }
    fabric.finish().unwrap();
}
