//! The instance metadata service: what its policy says, and that answers which must not be
//! forwarded are not.

use ipam::Family;
use serde_json::json;
use testkit::fabric::Fabric;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::world::Site;

use crate::masq::{masquerade, scene, site, snat};
use crate::support::count;

/// A TTL of the service's answers that reaches pods, as a hop limit of 2 has it.
const FORWARDED: u8 = 3;

fn answers_reach_pods(fabric: &Fabric) {
    fabric.world().unwrap().set_metadata_ttl(FORWARDED).unwrap();
}

#[test]
fn primary_translates_to_the_primarys_address_also_when_the_family_is_off() {
    for on in [true, false] {
        let (fabric, pods) = scene(masquerade(&json!({"ipv4": on, "ipv6": on})));
        answers_reach_pods(&fabric);
        for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
            let primary = snat(&fabric, 0, family);
            fabric
                .check_seen(pod.at(family), Site::Metadata, primary, 0)
                .unwrap();
        }
        fabric.finish().unwrap();
    }
}

#[test]
fn own_leaves_with_the_pods_address_by_its_eni() {
    let (mut fabric, pods) = scene(masquerade(&json!({"metadata": "own"})));
    answers_reach_pods(&fabric);
    let addresses: Vec<_> = pods
        .iter()
        .flat_map(|pod| Family::ALL.map(|family| pod.address(family).into()))
        .collect();
    fabric.allow_untranslated(&addresses).unwrap();
    for (pod, eni) in pods.iter().zip([0, 1]) {
        for family in Family::ALL {
            let own = pod.address(family);
            fabric
                .check_seen(pod.at(family), Site::Metadata, own, eni)
                .unwrap();
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn block_drops_and_counts() {
    let (fabric, pods) = scene(masquerade(&json!({"metadata": "block"})));
    answers_reach_pods(&fabric);
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        let before = count(&fabric, "from_endpoint", "metadata-blocked");
        let looked = fabric.look(pod.at(family), Site::Metadata, Protocol::Udp);
        looked.unwrap_err();
        let after = count(&fabric, "from_endpoint", "metadata-blocked");
        assert!(after > before, "{family:?}: {before} then {after}");
        let world = fabric.world().unwrap();
        assert!(world.seen(Site::Metadata, family, 17).unwrap().is_empty());
    }
    // The node itself is not a pod.
    for family in Family::ALL {
        let node = fabric.node_at(family).unwrap();
        let to = site(&fabric, Site::Metadata, family);
        Protocol::Tcp.exchange(node, to).unwrap();
    }
    fabric.finish().unwrap();
}

/// The default hop limit of the service is 1: containers are not to have its answers.
#[test]
fn answers_with_a_ttl_of_one_are_the_nodes_alone() {
    let (fabric, pods) = scene(json!({}));
    for family in Family::ALL {
        let node = fabric.node_at(family).unwrap();
        let to = site(&fabric, Site::Metadata, family);
        for protocol in Protocol::ALL {
            protocol.exchange(node, to).unwrap();
        }
        let [pod, _] = &pods;
        let before = count(&fabric, "from_network", "ttl-expired");
        let looked = fabric.look(pod.at(family), Site::Metadata, Protocol::Udp);
        looked.unwrap_err();
        let seen = fabric.world().unwrap().seen(Site::Metadata, family, 17);
        assert_eq!(seen.unwrap(), [snat(&fabric, 0, family)], "the question");
        let after = count(&fabric, "from_network", "ttl-expired");
        assert!(after > before, "{family:?}: the answer is not delivered");
    }
    fabric.finish().unwrap();
}
