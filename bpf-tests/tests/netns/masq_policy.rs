//! By which ENI, and with which address, pods reach the Internet: the external policies.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Asker, Echo};
use testkit::fabric::{Fabric, Place};

use crate::masq::{internet, masquerade, scene, seen_now, snat, translated};
use crate::support::{CHANGE, within};

fn with_policy(policy: &str, enis: [u8; 2]) {
    let (fabric, pods) = scene(masquerade(&json!({"external": policy})));
    for (pod, eni) in pods.iter().zip(enis) {
        translated(&fabric, pod, eni);
    }
    fabric.finish().unwrap();
}

#[test]
fn own_eni_leaves_by_the_owner() {
    with_policy("own-eni", [0, 1]);
}

#[test]
fn primary_eni_leaves_by_the_primary() {
    with_policy("primary-eni", [0, 0]);
}

#[test]
fn auto_without_public_addresses_leaves_by_the_owner() {
    with_policy("auto", [0, 1]);
}

/// Gives ENIs public addresses in the document.
fn public(fabric: &Fabric, numbers: &[u8]) {
    let change = |document: &mut Value| {
        for number in numbers {
            let id = fabric.eni(*number).unwrap().id();
            document["status"]["eni"]["enis"][id]["public-ip"] =
                json!(format!("198.51.100.{number}"));
        }
    };
    fabric.publish_changed(change).unwrap();
}

#[test]
fn auto_follows_the_public_addresses_and_leaves_open_flows_alone() {
    let (fabric, pods) = scene(json!({}));
    let [_, second] = &pods;
    let from = second.at(Family::V4);
    let server = Echo::telling(internet(&fabric, Family::V4), 0).unwrap();
    let open = Asker::open(from, 0, server.address()).unwrap();
    let first_seen = open.ask(7).unwrap();
    assert_eq!(first_seen.ip(), snat(&fabric, 1, Family::V4));
    // Only the primary has one: the second ENI's pods leave by the primary. Then both have one.
    for (numbers, eni) in [(&[0_u8][..], 0), (&[0, 1], 1), (&[0], 0), (&[], 1)] {
        public(&fabric, numbers);
        let wanted = snat(&fabric, eni, Family::V4);
        within(CHANGE, "new flows follow the policy", || {
            let seen = seen_now(from, &server)?;
            check(seen == wanted, || format!("{numbers:?}: seen as {seen}"))
        });
        assert_eq!(open.ask(7).unwrap(), first_seen, "the open flow stays");
        translated_v4(&fabric, from, wanted, eni);
    }
    for (pod, eni) in pods.iter().zip([0, 1]) {
        translated(&fabric, pod, eni);
    }
    fabric.finish().unwrap();
}

#[track_caller]
fn translated_v4(fabric: &Fabric, from: Place, address: std::net::IpAddr, eni: u8) {
    let to = testkit::fabric::world::Site::Internet;
    fabric.check_seen(from, to, address, eni).unwrap();
}
