//! The agent's own addresses during a downgrade to an agent that has none, and after the upgrade
//! that follows.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::Fabric;
use testkit::fabric::eventually::check;

use crate::ingress::{SOON, on_loopback, own, restart, scene, wait_for};
use crate::ingress_delegated::Delegated;
use crate::ingress_ours::{are_reached, collect};
use crate::support::{get, within};

/// Makes the agent act as one from before it had addresses of its own.
const OLDER: &str = "TOWPATH_OLDER";

type Own = BTreeMap<Family, IpAddr>;

/// Replaces the agent by an older one, whose settings have no section for its own addresses. It
/// leaves those on the loopback device, as any address of the host.
fn downgrade(fabric: &mut Fabric, own: &Own) {
    fabric.agent.stop().unwrap();
    let path = fabric.agent.config_path();
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("agent-addresses");
    fs::write(&path, config.to_string()).unwrap();
    fabric.agent.start(&fabric.node, &[(OLDER, "1")]).unwrap();
    fabric.wait_until_ready().unwrap();
    for address in own.values() {
        let length = if address.is_ipv4() { 32 } else { 128 };
        let replace = format!("ip addr replace {address}/{length} dev lo");
        within(SOON, "the address is one of the host's", || {
            fabric.node.run(&replace)?;
            let objects = fabric.agent.ask("GET", "/v1/routes", None)?.to_string();
            let is_hosts = objects.contains(&format!("ADDRESSES {address} = host\""));
            let is_there = on_loopback(fabric).contains(&address.to_string());
            check(is_hosts && is_there, || objects)
        });
    }
}

/// Checks that no pod gets any of the addresses.
fn no_pod_gets(fabric: &Fabric, addresses: &Own) {
    for address in addresses.values() {
        let request = json!({"owner": {"container-id": "x", "interface": "eth0"},
            "netns": "/run/netns/x", "addresses": [address]});
        let response = fabric.agent.request("PUT", "/v1/endpoints", Some(&request));
        let (status, answer) = response.unwrap();
        assert!(status >= 400, "{address}: {answer}");
    }
}

/// Checks that the agent has no address of its own, and that nothing on the node is left of them.
fn nothing_is_left(fabric: &Fabric) {
    wait_for(fabric, 0);
    within(SOON, "nothing is left", || {
        let leases = get(fabric, "/v1/addresses")["leases"].to_string();
        let left = on_loopback(fabric);
        check(leases == "[]" && left.is_empty(), || {
            format!("{leases}; {left}")
        })
    });
}

#[test]
fn delegated_addresses_outlive_an_older_agent() {
    let mut bed = Delegated::fake();
    bed.delegate("1.1.0", &json!({"type": "fake-ipam"}));
    bed.restart("on");
    are_reached(&bed);
    let (first, given, calls) = (
        wait_for(&bed.fabric, 2),
        bed.given(),
        bed.calls_until_check(),
    );
    downgrade(&mut bed.fabric, &first);
    assert!(own(&bed.fabric).unwrap().is_empty());
    no_pod_gets(&bed.fabric, &first);
    assert_eq!(bed.calls().len(), calls, "{:?}", bed.calls());
    bed.restart("on");
    are_reached(&bed);
    assert_eq!(wait_for(&bed.fabric, 2), first);
    assert_eq!(bed.given(), given);
    let later = bed.calls().split_off(calls);
    assert!(
        later.iter().all(|call| call.starts_with("CHECK ")),
        "{later:?}"
    );
    // The older agent names none of its attachments to a runtime's garbage collection.
    downgrade(&mut bed.fabric, &first);
    collect(&bed).unwrap();
    assert!(bed.given().is_empty(), "{:?}", bed.calls());
    no_pod_gets(&bed.fabric, &first);
    bed.restart("on");
    bed.waits_for_given(1);
    let second = wait_for(&bed.fabric, 2);
    assert_eq!(bed.given(), [second[&Family::V4]].into());
    are_reached(&bed);
    downgrade(&mut bed.fabric, &second);
    bed.switch_off();
    nothing_is_left(&bed.fabric);
    bed.waits_for_record(false);
    bed.fabric.finish().unwrap();
}

#[test]
fn allocated_addresses_outlive_an_older_agent() {
    let mut fabric = scene(false);
    restart(&mut fabric, &json!({"ingress": "on"}));
    let first = wait_for(&fabric, 2);
    downgrade(&mut fabric, &first);
    no_pod_gets(&fabric, &first);
    restart(&mut fabric, &json!({"ingress": "on"}));
    assert_eq!(wait_for(&fabric, 2), first);
    within(SOON, "the host has these alone", || {
        let there = on_loopback(&fabric);
        check(there.lines().count() == 2, || there)
    });
    downgrade(&mut fabric, &first);
    restart(&mut fabric, &json!({"ingress": "off"}));
    nothing_is_left(&fabric);
    fabric.finish().unwrap();
}
