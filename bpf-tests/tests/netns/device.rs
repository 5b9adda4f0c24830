//! A pod's host-side device: it comes up only after its program is attached, and setting it down
//! does not remove the pod's interface.

use std::time::Duration;

use ipam::Family;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Connection;
use testkit::fabric::{Fabric, Netns, Spec, source_check};

use crate::support::{End, HEAL, PEER, carry_all, get, nothing_differs, within};

/// The time that the agent may take to reach a point after it was given reason to.
const REACH: Duration = Duration::from_secs(10);

fn ifindex(netns: &Netns, device: &str) -> u64 {
    let links = netns.ip_json(&format!("link show dev {device}")).unwrap();
    links[0]["ifindex"].as_u64().unwrap()
}

fn repairs(fabric: &Fabric) -> u64 {
    let status = get(fabric, "/v1/status");
    status["repairs"]["total"].as_u64().unwrap()
}

#[test]
fn a_host_side_device_that_is_set_down_stays_and_so_do_its_pods_connections() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    // A chained plugin would add this route.
    pod.netns.ip("route add 192.0.2.0/24 dev eth0").unwrap();
    let interfaces = || {
        let host = ifindex(&fabric.node, &pod.host_device());
        let routes = pod.netns.run("ip route show").unwrap();
        (host, ifindex(&pod.netns, "eth0"), routes)
    };
    let before = interfaces();
    let mut connections: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            let peer = fabric.peer(family);
            let node = fabric.node_at(family).unwrap();
            [
                Connection::open(pod.at(family), peer).unwrap(),
                Connection::open(peer, pod.at(family)).unwrap(),
                Connection::open(node, pod.at(family)).unwrap(),
            ]
        })
        .collect();
    for _ in 0..3 {
        let repaired = repairs(&fabric);
        fabric
            .node
            .run(&format!("ip link set {} down", pod.host_device()))
            .unwrap();
        within(HEAL, "the device is up", || {
            let up = format!("ip link show dev {} up", pod.host_device());
            let shown = fabric.node.run(&up)?;
            check(!shown.is_empty(), || "it is down".to_owned())?;
            check(repairs(&fabric) > repaired, || "not counted".to_owned())?;
            nothing_differs(&fabric)
        });
        for connection in &mut connections {
            connection.exchange().unwrap();
        }
        assert_eq!(interfaces(), before, "the same devices");
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.finish().unwrap();
}

/// A queue for each CPU, of which one is used, would be memory of the kernel for each pod.
#[test]
fn both_ends_have_one_queue_of_each_kind() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let host_device = pod.host_device();
    for (netns, device) in [(&fabric.node, host_device.as_str()), (&pod.netns, "eth0")] {
        let links = netns
            .ip_json(&format!("-d link show dev {device}"))
            .unwrap();
        let queues = ["num_tx_queues", "num_rx_queues"].map(|name| links[0][name].as_u64());
        assert_eq!(queues, [Some(1), Some(1)], "{device}: {links}");
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.finish().unwrap();
}

#[test]
fn a_pod_that_is_half_set_up_sends_nothing() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    for (index, point) in [
        "applied.create-endpoint-device",
        "apply.put-map-entry",
        "apply.set-up",
    ]
    .into_iter()
    .enumerate()
    {
        let pod = fabric.make_pod(1, index).unwrap();
        let fault = [("TOWPATH_FAULT", point)];
        fabric.agent.start(&fabric.node, &fault).unwrap();
        fabric.wait_until_ready().unwrap();
        drop(fabric.add_endpoint(&pod).unwrap_err());
        fabric.agent.wait_for_fault(REACH).unwrap();
        let interface = ifindex(&pod.netns, "eth0");
        let device = format!("link show dev {}", pod.host_device());
        let device = fabric.node.ip_json(&device).unwrap();
        assert_eq!(device[0]["operstate"], "DOWN", "{point}: {device}");
        source_check::forget_flows(&fabric.vpc.router).unwrap();
        for family in Family::ALL {
            let (pod, peer) = (pod.at(family), fabric.peer(family));
            let ping = format!("ping -n -c 3 -i 0.1 -W 1 {}", peer.address);
            assert!(pod.netns.run(&ping).is_err(), "{point}: {ping}");
            let taken = fabric.enis_between(pod.address, peer.address).unwrap();
            assert!(taken.is_empty(), "{point}: left by {taken:?}");
        }

        fabric.start_agent().unwrap();
        fabric.add_endpoint(&pod).unwrap();
        assert_eq!(
            ifindex(&pod.netns, "eth0"),
            interface,
            "{point}: a finished interface is kept"
        );
        carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    }
    fabric.finish().unwrap();
}
