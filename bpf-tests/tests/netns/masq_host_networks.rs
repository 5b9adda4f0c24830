//! Networks behind the node that only its own routes reach, such as a VPN's without NAT.

use std::sync::Arc;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Place, Pod};

use crate::masq::{host_behind, scene, translated};
use crate::support::{CHANGE, within};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Icmp];

/// A host behind a device of the node, in networks that no NAT rule and no setting names.
pub(crate) fn vpn(fabric: &mut Fabric) -> Arc<Pod> {
    host_behind(fabric, "vpn0", ["10.8.0.", "fd08::"])
}

/// The steps by which the agent explains a packet.
fn steps(fabric: &Fabric, pod: &Pod, to: Place) -> String {
    let family = Family::of(to.address);
    let path = format!(
        "/v1/masquerade/explain/tcp/{}/{}",
        pod.at(family).address,
        to.address
    );
    let explanation: Value = fabric.agent.ask("GET", &path, None).unwrap();
    explanation["steps"].to_string()
}

/// Waits until the datapath takes a client's networks to be behind the host, or not.
#[track_caller]
fn known(fabric: &Fabric, pod: &Pod, client: &Pod, expected: bool) {
    for family in Family::ALL {
        within(CHANGE, "the datapath follows the host's routes", || {
            let steps = steps(fabric, pod, client.at(family));
            check(steps.contains("the host's routes") == expected, || steps)
        });
    }
}

/// Each pod and the client reach each other, by their own addresses.
#[track_caller]
fn talk(pods: &[Arc<Pod>; 2], client: &Pod) {
    for pod in pods {
        for family in Family::ALL {
            for protocol in PROTOCOLS {
                let (here, there) = (pod.at(family), client.at(family));
                protocol.exchange(here, there).unwrap();
                protocol.exchange(there, here).unwrap();
            }
        }
    }
}

#[test]
fn pods_and_a_network_behind_the_node_reach_each_other() {
    for settings in [json!({}), json!({"datapath": {"path": "stack"}})] {
        let (mut fabric, pods) = scene(settings);
        let client = vpn(&mut fabric);
        known(&fabric, &pods[1], &client, true);
        talk(&pods, &client);
        // The world is none of its networks.
        translated(&fabric, &pods[1], 1);
        fabric.node.ip("link del vpn0").unwrap();
        known(&fabric, &pods[1], &client, false);
        fabric.finish().unwrap();
    }
}

/// The host answers for all of a network that is local to it, though no device has the address.
#[test]
fn pods_and_networks_that_are_local_to_the_host_reach_each_other() {
    let (fabric, pods) = scene(json!({}));
    let node = &fabric.node;
    node.run("sysctl -w net.ipv6.ip_nonlocal_bind=1").unwrap();
    node.ip("route add local 192.0.2.0/24 dev lo\n\
             route add local fd07:7::/64 dev lo\n\
             addr add 198.51.100.1/24 dev lo\n")
        .unwrap();
    for address in ["192.0.2.7", "198.51.100.7", "fd07:7::7"] {
        let host = Place {
            netns: node,
            address: address.parse().unwrap(),
        };
        let family = Family::of(host.address);
        for pod in &pods {
            within(CHANGE, "the datapath follows the host's routes", || {
                let steps = steps(&fabric, pod, host);
                check(steps.contains("the host's routes"), || steps)
            });
            for protocol in PROTOCOLS {
                protocol.exchange(pod.at(family), host).unwrap();
                protocol.exchange(host, pod.at(family)).unwrap();
            }
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn a_table_that_a_rule_leads_to_by_the_destination_counts_and_one_by_a_mark_does_not() {
    let (mut fabric, pods) = scene(json!({}));
    let client = vpn(&mut fabric);
    known(&fabric, &pods[0], &client, true);
    let node = &fabric.node;
    for (family, net, gateway) in [
        ("-4", "10.8.0.0/24", "10.8.0.2"),
        ("-6", "fd08::/64", "fd08::2"),
    ] {
        // Its connected route is in none of the tables that count.
        node.run(&format!("ip {family} route del {net} dev vpn0"))
            .unwrap();
        let via = format!("via {gateway} dev vpn0 onlink table 99");
        node.run(&format!("ip {family} route add default {via}"))
            .unwrap();
        node.run(&format!("ip {family} rule add fwmark 7 lookup 99 pref 60"))
            .unwrap();
    }
    known(&fabric, &pods[0], &client, false);
    for (family, net) in [("-4", "10.8.0.0/24"), ("-6", "fd08::/64")] {
        let rule = format!("to {net} lookup 99 pref 50");
        node.run(&format!("ip {family} rule add {rule}")).unwrap();
    }
    known(&fabric, &pods[0], &client, true);
    talk(&pods, &client);
    fabric.finish().unwrap();
}
