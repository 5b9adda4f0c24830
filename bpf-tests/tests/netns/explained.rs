//! `towpath masq explain` and `towpath status` where pods' packets are lost or take another path:
//! their reports match what happens.

use std::net::{SocketAddr, UdpSocket};

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::ping;
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Place};

use crate::masq::{internet, masquerade, scene, site};
use crate::support::{CHANGE, count, get, wait_for_eni, within};

/// As many flows as there may be.
const ROOM: usize = 64;
/// Sockets that are opened at once.
const SOCKETS: u16 = 40;

fn explain(fabric: &Fabric, protocol: &str, from: &str, to: &str) -> Value {
    let words = ["masq", "explain", "--protocol", protocol, from, to];
    fabric.agent.cli_json(&fabric.node, &words).unwrap()
}

/// A ping of a pod is lost, and counted so.
#[track_caller]
fn lost(fabric: &Fabric, from: Place, to: Place, why: &str) {
    let before = count(fabric, "from_endpoint", why);
    ping(from, to.address, &["-W", "0.2"]).unwrap_err();
    assert!(count(fabric, "from_endpoint", why) > before, "{why}");
}

#[test]
fn an_eni_without_a_device_is_explained() {
    let native = json!({"native-routing-cidrs": ["203.0.113.0/24", "2001:db8:113::/48"]});
    let (mut fabric, [other, pod]) = scene(masquerade(&native));
    fabric.detach(1).unwrap();
    wait_for_eni(&fabric, 1, "not-ready");
    for family in Family::ALL {
        let from = pod.at(family);
        let own = from.address.to_string();
        for to in [
            fabric.peer(family),
            site(&fabric, Site::Listed, family),
            internet(&fabric, family),
        ] {
            let said = explain(&fabric, "icmp", &own, &to.address.to_string());
            assert_eq!(said["verdict"], "dropped", "{said}");
            assert_eq!(said["why"], "eni-not-ready", "{said}");
            lost(&fabric, from, to, "eni-not-ready");
        }
        // Traffic within the node does not need the ENI.
        let other = other.at(family);
        let said = explain(&fabric, "icmp", &own, &other.address.to_string());
        assert_eq!(said["verdict"], "delivered", "{said}");
        ping(from, other.address, &[]).unwrap();
    }
    fabric.finish().unwrap();
}

/// The health names the full table, the pod with most flows, and the reason of the loss.
fn a_full_table_is_told(fabric: &Fabric, family: Family, owner: &str, why: &str) {
    let table = family_name(family);
    within(CHANGE, "the full table is reported", || {
        let health = get(fabric, "/v1/status")["health"].clone();
        let reasons = health["reasons"].as_array().cloned().unwrap_or_default();
        let tells = |words: &[&str]| {
            reasons.iter().any(|reason| {
                let reason = reason.as_str().unwrap_or_default();
                words.iter().all(|word| reason.contains(word))
            })
        };
        let is_told = tells(&[&format!("table {table} has 64 of 64"), owner, "most flows"])
            && tells(&["within the last 5 minutes", why]);
        check(is_told && health["state"] == "degraded", || {
            health.to_string()
        })
    });
}

/// Opens flows until the table is full, and returns their sockets and the explanation of another.
/// Each sweep shares out again, among the CPUs, the entries that they may add without counting.
fn fill(fabric: &Fabric, from: Place, to: Place) -> (Vec<UdpSocket>, Value) {
    let bind = |_| -> anyhow::Result<UdpSocket> {
        let socket = UdpSocket::bind((from.address, 0))?;
        socket.send_to(&[7], (to.address, 9))?;
        Ok(socket)
    };
    let mut sockets = Vec::new();
    let said = within(CHANGE, "another flow is refused", || {
        let more = (0..SOCKETS).map(bind);
        sockets.extend(
            from.netns
                .enter(|| more.collect::<anyhow::Result<Vec<_>>>())?,
        );
        let ends = [from, to].map(|it| it.address.to_string());
        let said = explain(fabric, "udp", &ends[0], &ends[1]);
        check(said["verdict"] == "dropped", || said.to_string())?;
        Ok(said)
    });
    (sockets, said)
}

#[test]
fn a_full_table_is_explained_and_told() {
    let flows = json!({"nat": {"flows": {"ipv4": ROOM, "ipv6": ROOM}}});
    let (fabric, [other, pod]) = scene(flows);
    assert_eq!(get(&fabric, "/v1/status")["health"]["state"], "ready");
    for family in Family::ALL {
        let (from, to) = (pod.at(family), internet(&fabric, family));
        let (sockets, said) = fill(&fabric, from, to);
        let why = said["why"].as_str().unwrap();
        assert!(["quota-exceeded", "flows-full"].contains(&why), "{said}");
        let steps = said["steps"].as_array().unwrap();
        let room = steps
            .iter()
            .find(|step| step["question"] == "room")
            .unwrap();
        let room = room["answer"].as_str().unwrap();
        assert!(room.starts_with("64 of 64 flows, pod "), "{room}");
        lost(&fabric, from, to, why);
        // The flow of the first socket is there.
        let first = sockets[0].local_addr().unwrap().to_string();
        let said = explain(&fabric, "udp", &first, &place(to, 9).to_string());
        assert_eq!(said["verdict"], "translated", "{said}");
        assert!(said["port"].is_number(), "{said}");
        // Another pod finds no room either.
        let own = other.at(family).address.to_string();
        let said = explain(&fabric, "udp", &own, &to.address.to_string());
        assert_eq!(said["why"], "flows-full", "{said}");

        a_full_table_is_told(&fabric, family, &pod.name, why);
    }
    fabric.finish().unwrap();
}

#[test]
fn the_way_through_the_stack_is_explained() {
    let (fabric, [pod, other]) = scene(json!({"datapath": {"path": "stack"}}));
    let node = &fabric.node;
    node.run("nft add table inet guard").unwrap();
    let hook = "{ type filter hook forward priority filter ; policy drop ; }";
    node.run(&format!("nft add chain inet guard forward {hook}"))
        .unwrap();
    for family in Family::ALL {
        let from = pod.at(family);
        for (to, verdict, why) in [
            (other.at(family), "delivered", "local"),
            (fabric.peer(family), "untranslated", "exempt-vpc"),
            (internet(&fabric, family), "translated", "translated"),
        ] {
            let (own, there) = (from.address.to_string(), to.address.to_string());
            let said = explain(&fabric, "icmp", &own, &there);
            assert_eq!(said["verdict"], "stack", "{said}");
            assert_eq!(said["why"], "stack", "{said}");
            let then = (&said["then"]["verdict"], &said["then"]["why"]);
            assert_eq!(then, (&json!(verdict), &json!(why)), "{said}");
            assert!(said.to_string().contains("datapath.path"), "{said}");
            // As it says: a rule of the host may drop it.
            lost(&fabric, from, to, "stack");
        }
    }
    node.run("nft delete table inet guard").unwrap();
    fabric.finish().unwrap();
}

#[test]
fn the_detour_of_a_shaped_pod_is_explained() {
    let (fabric, [pod, other]) = scene(json!({}));
    let device = pod.host_device();
    let shaper = "tbf rate 1gbit burst 1mb latency 100ms";
    let line = format!("tc qdisc add dev {device} root {shaper}");
    fabric.node.run(&line).unwrap();
    for family in Family::ALL {
        let (own, there) = (
            pod.address(family).to_string(),
            other.address(family).to_string(),
        );
        let world = internet(&fabric, family).address.to_string();
        for (from, to) in [(&own, &there), (&there, &own), (&own, &world)] {
            within(CHANGE, "the detour is reported", || {
                let said = explain(&fabric, "icmp", from, to);
                check(said["verdict"] == "stack", || said.to_string())
            });
        }
        let said = explain(&fabric, "icmp", &there, &world);
        assert_eq!(said["verdict"], "translated", "{said}");
    }
    fabric.finish().unwrap();
}

fn place(to: Place, port: u16) -> SocketAddr {
    (to.address, port).into()
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}
