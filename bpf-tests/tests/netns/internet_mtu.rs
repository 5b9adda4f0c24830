//! An MTU for packets out of the VPC, where the path's MTU is smaller than the VPC's and no router
//! reports it.

use std::sync::Arc;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Echo, ping, tcp_bulk};
use testkit::fabric::world::Link;
use testkit::fabric::{Fabric, MTU_JUMBO, POD_INTERFACE, Place, Pod, Spec};

use crate::masq::{internet, scene_of};
use crate::mtu::ping_of;
use crate::support::{CHANGE, within};

/// Enough for many windows.
const BULK: usize = 1024 * 1024;
/// MTU of links beyond the VPC.
const BEYOND: u32 = 1500;

/// A jumbo VPC and a jumbo server, with links of a smaller MTU between them and routers that send
/// no errors.
fn silent_scene(settings: Value) -> (Fabric, [Arc<Pod>; 2]) {
    let (fabric, pods) = scene_of(&Spec {
        mtu: MTU_JUMBO,
        ..Spec::with_world(settings)
    });
    fabric.set_world_mtu(Link::Far, MTU_JUMBO).unwrap();
    fabric.set_world_mtu(Link::Near, BEYOND).unwrap();
    for router in [&fabric.vpc.router, &fabric.world().unwrap().path] {
        for command in [
            "nft add table inet filtered",
            "nft add chain inet filtered output { type filter hook output priority 0 ; }",
            "nft add rule inet filtered output icmp type destination-unreachable drop",
            "nft add rule inet filtered output icmpv6 type packet-too-big drop",
        ] {
            router.run(command).unwrap();
        }
    }
    (fabric, pods)
}

/// The MTU that a pod's routes give a packet.
fn route_mtu(pod: &Pod, to: Place) -> anyhow::Result<u32> {
    let routes = pod.netns.ip_json(&format!("route get {}", to.address))?;
    let mtu = &routes[0]["metrics"][0]["mtu"];
    Ok(mtu
        .as_u64()
        .map_or(MTU_JUMBO, |mtu| mtu.try_into().unwrap()))
}

/// Expects that data gets through with the right MTU: less to the Internet, the full one to the
/// VPC.
#[track_caller]
fn all_is_carried(fabric: &Fabric, pod: &Pod) {
    for family in Family::ALL {
        let (server, peer) = (internet(fabric, family), fabric.peer(family));
        within(CHANGE, "the pod's routes follow", || {
            let found = route_mtu(pod, server)?;
            check(found == BEYOND, || format!("MTU {found}"))
        });
        assert_eq!(route_mtu(pod, peer).unwrap(), MTU_JUMBO);
        // There and back: the pod's segments, and the server's.
        let echo = Echo::start(server).unwrap();
        tcp_bulk(pod.at(family), echo.address(), BULK).unwrap();
        ping_of(MTU_JUMBO, family, pod.at(family), peer).unwrap();
        let inside = Echo::start(peer).unwrap();
        tcp_bulk(pod.at(family), inside.address(), BULK).unwrap();
    }
}

/// Starts the agent again, with another MTU for what leaves the VPC.
fn restart_with(fabric: &mut Fabric, internet_mtu: Option<u32>) {
    let settings = json!({"endpoint": {"internet-mtu": internet_mtu}});
    fabric.agent.configure(&settings).unwrap();
    fabric.agent.stop().unwrap();
    fabric.start_agent().unwrap();
}

#[test]
fn running_and_new_pods_get_through_where_nobody_tells_them() {
    let (mut fabric, pods) = silent_scene(json!({}));
    for family in Family::ALL {
        let server = internet(&fabric, family);
        let said = ping_of(MTU_JUMBO, family, pods[1].at(family), server).unwrap_err();
        assert!(!said.to_string().contains("mtu"), "a black hole: {said}");
    }
    restart_with(&mut fabric, Some(BEYOND));
    let new = fabric.add_pod(1, 1).unwrap();
    for pod in pods.iter().chain([&new]) {
        all_is_carried(&fabric, pod);
    }
    // Without the setting all is as before, for running pods too.
    restart_with(&mut fabric, None);
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        let ip = match family {
            Family::V4 => "-4",
            Family::V6 => "-6",
        };
        let server = internet(&fabric, family);
        within(CHANGE, "the pod's routes follow back", || {
            let found = route_mtu(pod, server)?;
            let routes = pod.netns.ip_json(&format!("{ip} route show"))?;
            let all = routes.as_array().into_iter().flatten();
            let by_gateway = all.filter(|route| route.get("gateway").is_some()).count();
            check(found == MTU_JUMBO && by_gateway == 1, || routes.to_string())
        });
    }
    fabric.finish().unwrap();
}

#[test]
fn a_pod_that_changed_its_routes_keeps_them() {
    let (mut fabric, pods) = silent_scene(json!({}));
    let own = format!("ip route replace default dev {POD_INTERFACE} scope link mtu 1400");
    pods[0].netns.run(&own).unwrap();
    restart_with(&mut fabric, Some(BEYOND));
    all_is_carried(&fabric, &pods[1]);
    let routes = pods[0].netns.run("ip -4 route show").unwrap();
    assert!(routes.contains("mtu 1400"), "{routes}");
    assert!(!routes.contains("10.0.0.0/16"), "{routes}");
    let outside = fabric.host(Host::Peer, Family::V6);
    ping(pods[0].at(Family::V6), outside.address, &[]).unwrap();
    fabric.finish().unwrap();
}
