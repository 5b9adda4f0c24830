//! Nodes on which IPv6 is turned off by sysctl, as hardening guides recommend.

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Spec};

use crate::support::{CHANGE, carry, nothing_differs, within};

#[test]
fn an_ipv4_node_with_ipv6_off_works() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    fabric
        .node
        .sysctls(&[
            ("ipv6/conf/all/disable_ipv6", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
        ])
        .unwrap();
    for eni in &mut fabric.enis {
        eni.blocks
            .retain(|block| Family::of(block.addr()) == Family::V4);
    }
    let mut document = fabric.document();
    document["spec"]["addresses"] = json!([{"type": "InternalIP", "ip": "10.0.0.10"}]);
    fabric.agent.write_document(&document).unwrap();
    fabric.start_agent().unwrap();
    for eni in [0, 1] {
        let v4 = fabric.eni(eni).unwrap().pod_address(Family::V4, 0).unwrap();
        let pod = fabric
            .make_pod_at(v4, "2001:db8::1".parse().unwrap())
            .unwrap();
        let mut request = pod.request();
        request["addresses"] = json!([v4]);
        fabric
            .agent
            .ask("PUT", "/v1/endpoints", Some(&request))
            .unwrap();
        for protocol in Protocol::ALL {
            let (pod, peer) = (pod.at(Family::V4), fabric.peer(Family::V4));
            carry([pod, peer], protocol, &fabric, &[eni]);
            carry([peer, pod], protocol, &fabric, &[eni]);
        }
    }
    within(CHANGE, "all is well", || nothing_differs(&fabric));
    fabric.finish().unwrap();
}

/// The secondary ENIs and the pods' devices are ours, so there IPv6 is turned on where an address
/// needs it. The primary is the host's: a pod there is refused with the reason.
#[test]
fn pods_with_ipv6_get_it_where_the_device_is_ours() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let off = [
        ("ipv6/conf/eth0/disable_ipv6", "1"),
        ("ipv6/conf/eth1/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
    ];
    fabric.node.sysctls(&off).unwrap();
    fabric.start_agent().unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            let (pod, peer) = (pod.at(family), fabric.peer(family));
            carry([pod, peer], protocol, &fabric, &[1]);
            carry([peer, pod], protocol, &fabric, &[1]);
        }
    }
    let refused = fabric.make_pod(0, 0).unwrap();
    let error = fabric.add_endpoint(&refused).unwrap_err().to_string();
    assert!(error.contains("disable_ipv6"), "{error}");
    within(CHANGE, "all is well", || nothing_differs(&fabric));
    fabric.finish().unwrap();
}
