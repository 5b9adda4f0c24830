//! The agent's own addresses in the network namespace of a gateway, which may be replaced, missing
//! or another one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Netns, Place, Spec};

use crate::ingress::{SOON, on_loopback, owner, reached_by_all, restart, scene, wait_for};
use crate::ingress_delegated::Delegated;
use crate::support::within;

type Own = BTreeMap<Family, IpAddr>;

fn namespace(fabric: &Fabric, name: &str) -> Netns {
    Netns::create(&format!("{}-{name}", fabric.node.name())).unwrap()
}

/// Checks that a listener in a namespace is soon reached on each address.
fn answers(fabric: &Fabric, netns: &Netns, own: &Own) {
    for (family, address) in own {
        let to = Place {
            netns,
            address: *address,
        };
        within(SOON, "the namespace answers", || {
            Protocol::Tcp.exchange(fabric.peer(*family), to)
        });
    }
}

/// Checks that the agent has left nothing in a namespace.
fn is_empty(netns: &Netns) {
    within(SOON, "the namespace is empty", || {
        let links = netns.run("ip -o link")?;
        check(!links.contains("eth0"), || links.clone())
    });
}

#[test]
fn a_namespace_is_reached_from_everywhere_and_may_be_replaced() {
    let mut fabric = scene(false);
    let mut other = fabric.join(1, &Spec::default()).unwrap();
    other.publish().unwrap();
    other.start_agent().unwrap();
    let pods = [fabric.add_pod(0, 3).unwrap(), fabric.add_pod(1, 3).unwrap()];
    let away = other.add_pod(1, 0).unwrap();
    let mut gateway = namespace(&fabric, "gateway");
    restart(&mut fabric, &json!({"ingress": gateway.path()}));
    let own = wait_for(&fabric, 2);
    answers(&fabric, &gateway, &own);
    for (family, address) in &own {
        let near = pods.iter().chain([&away]).map(|pod| pod.at(*family));
        let near: Vec<Place> = near.chain([fabric.node_at(*family).unwrap()]).collect();
        let to = Place {
            netns: &gateway,
            address: *address,
        };
        reached_by_all(&fabric, to, &[owner(&fabric, *address)], &near);
    }
    // The earlier namespace ends with its name, or processes of the gateway keep it for a while.
    for is_kept in [false, true] {
        let kept = is_kept.then(|| Netns::foreign(&gateway.path()).unwrap());
        drop(gateway);
        gateway = namespace(&fabric, "gateway");
        answers(&fabric, &gateway, &own);
        assert_eq!(wait_for(&fabric, 2), own, "kept: {is_kept}");
        drop(kept);
    }
    let second = namespace(&fabric, "second");
    restart(&mut fabric, &json!({"ingress": second.path()}));
    answers(&fabric, &second, &own);
    is_empty(&gateway);
    restart(&mut fabric, &json!({"ingress": "on"}));
    answers(&fabric, &fabric.node, &own);
    is_empty(&second);
    assert_eq!(wait_for(&fabric, 2), own);
    restart(&mut fabric, &json!({"ingress": "off"}));
    wait_for(&fabric, 0);
    within(SOON, "nothing is left", || {
        let left = on_loopback(&fabric);
        check(left.is_empty(), || left)
    });
    other.finish().unwrap();
    fabric.finish().unwrap();
}

#[test]
fn a_namespace_that_is_missing_is_named_and_takes_no_address_away() {
    let mut bed = Delegated::fake();
    let gateway = namespace(&bed.fabric, "gateway");
    let path = gateway.path().display().to_string();
    bed.restart(&path);
    let own = wait_for(&bed.fabric, 2);
    answers(&bed.fabric, &gateway, &own);
    let given = bed.given();
    drop(gateway);
    let missing = format!("{path} does not exist");
    bed.says(&missing);
    assert_eq!(wait_for(&bed.fabric, 2), own);
    bed.restart(&path);
    bed.says(&missing);
    assert_eq!(wait_for(&bed.fabric, 2), own);
    let pod = bed.fabric.add_pod(1, 9).unwrap();
    Protocol::Tcp
        .exchange(pod.at(Family::V4), bed.fabric.peer(Family::V4))
        .unwrap();
    let gateway = namespace(&bed.fabric, "gateway");
    answers(&bed.fabric, &gateway, &own);
    assert_eq!(bed.given(), given);
    let calls = bed.calls();
    let is_check = |call: &&String| call.starts_with("CHECK ");
    let checks = calls.iter().filter(is_check).count();
    assert_eq!(calls.len() - checks, 1, "one ADD, no DEL: {calls:?}");
    bed.switch_off();
    wait_for(&bed.fabric, 0);
    is_empty(&gateway);
    bed.fabric.finish().unwrap();
}
