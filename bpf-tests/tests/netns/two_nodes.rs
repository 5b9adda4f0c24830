//! Two nodes in a VPC, each with its agent: pods, nodes and a control plane reach each other, and
//! all leaves by the ENI that owns its source.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipam::Family;
use serde_json::json;
use testkit::fabric::layout::{Addressing, Host};
use testkit::fabric::traffic::Protocol;
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Place, Pod, Spec, source_check};

/// A node with its agent running, and another one in its VPC.
fn pair(spec: &Spec) -> [Fabric; 2] {
    let first = Fabric::ready(spec).unwrap();
    let mut second = first.join(1, spec).unwrap();
    second.start_agent().unwrap();
    [first, second]
}

/// A pod, and the key of the ENI that owns its addresses.
type Owned = (Arc<Pod>, u16);

/// A pod on each ENI of a node.
fn pods(fabric: &mut Fabric) -> Vec<Owned> {
    let enis: Vec<_> = fabric
        .enis
        .iter()
        .map(|eni| (eni.number, eni.key))
        .collect();
    let add = |(number, key)| (fabric.add_pod(number, 0).unwrap(), key);
    enis.into_iter().map(add).collect()
}

/// Every protocol both ways. All must leave by these ENIs.
#[track_caller]
fn both_ways(fabric: &Fabric, one: Place, other: Place, keys: &[u16]) {
    let router = &fabric.vpc.router;
    for protocol in Protocol::ALL {
        for (from, to) in [(one, other), (other, one)] {
            source_check::forget_flows(router).unwrap();
            let (asks, answers) = (from.address, to.address);
            if let Err(error) = protocol.exchange(from, to) {
                panic!("{protocol} from {asks} to {answers}: {error:#}");
            }
            let taken = source_check::enis_between(router, asks, answers, &[]).unwrap();
            let expected: BTreeSet<_> = keys.iter().copied().collect();
            assert_eq!(taken, expected, "{protocol} from {asks} to {answers}");
        }
    }
}

fn all_reach_each_other(spec: &Spec) {
    let mut nodes = pair(spec);
    nodes[0].make_control().unwrap();
    let pods = nodes.each_mut().map(pods);
    let [first, second] = &nodes;
    for family in Family::ALL {
        for (one, one_key) in &pods[0] {
            for (other, other_key) in &pods[1] {
                let keys = [*one_key, *other_key];
                both_ways(first, one.at(family), other.at(family), &keys);
            }
        }
        let primaries = [first, second].map(|node| node.eni(0).unwrap().key);
        for (node, primary, theirs) in [
            (first, primaries[0], &pods[1]),
            (second, primaries[1], &pods[0]),
        ] {
            for (pod, key) in theirs {
                let node = node.node_at(family).unwrap();
                both_ways(first, node, pod.at(family), &[primary, *key]);
            }
        }
        let control = second.host(Host::Control, family);
        for (pod, key) in pods.iter().flatten() {
            both_ways(first, control, pod.at(family), &[*key]);
        }
    }
    for node in nodes {
        node.finish().unwrap();
    }
}

#[test]
fn pods_and_nodes_reach_each_other() {
    all_reach_each_other(&Spec::default());
}

#[test]
fn pods_and_nodes_with_prefixes_reach_each_other() {
    all_reach_each_other(&Spec {
        addressing: Addressing::SeveralPrefixes(3),
        ..Spec::default()
    });
}

#[test]
fn pods_of_both_nodes_are_translated_to_the_world_and_not_to_each_other() {
    let mut nodes = pair(&Spec::with_world(json!({})));
    let pods = nodes.each_mut().map(pods);
    for family in Family::ALL {
        for (node, pods) in nodes.iter().zip(&pods) {
            for ((pod, _), number) in pods.iter().zip(0..) {
                let address = node.translation_address(number, family).unwrap();
                node.check_seen(pod.at(family), Site::Internet, address, number)
                    .unwrap();
            }
        }
        for ((one, one_key), (other, other_key)) in pods[0].iter().zip(&pods[1]) {
            let keys = [*one_key, *other_key];
            both_ways(&nodes[0], one.at(family), other.at(family), &keys);
        }
    }
    for node in nodes {
        node.finish().unwrap();
    }
}

#[test]
fn a_node_goes_on_when_the_other_one_goes() {
    let [mut first, mut second] = pair(&Spec::default());
    let (_, theirs) = (pods(&mut first), pods(&mut second));
    first.finish().unwrap();
    for family in Family::ALL {
        for (pod, key) in &theirs {
            both_ways(&second, pod.at(family), second.peer(family), &[*key]);
        }
    }
    second.finish().unwrap();
}
