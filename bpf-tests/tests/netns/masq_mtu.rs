//! Path MTU discovery through the masquerade, in both directions, by TCP, UDP and ICMP.

use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Asker, Echo, Session, ping, tcp_bulk};
use testkit::fabric::world::{Link, World};
use testkit::fabric::{Fabric, Place, Spec};

use crate::masq::{MTU, internet, internet_scene, scene_of, snat, under_each_policy};
use crate::support::within;

/// Enough for many windows.
const BULK: usize = 4 * 1024 * 1024;
/// MTU of the small link: neither a default of anything nor what TCP would guess.
pub(crate) const SMALL: u32 = 1380;

/// The kernel of a place keeps the path MTU to an address.
#[track_caller]
pub(crate) fn knows(at: Place, to: std::net::IpAddr, mtu: u32) {
    let what = format!("{} has the path MTU to {to}", at.address);
    within(Duration::from_secs(1), &what, || {
        let route = format!("ip route get {to} from {}", at.address);
        let route = at.netns.run(&route)?;
        check(route.contains(&format!("mtu {mtu}")), || route.clone())
    });
}

pub(crate) fn forget(at: Place) {
    for family in ["-4", "-6"] {
        at.netns
            .run(&format!("ip {family} route flush cache"))
            .unwrap();
    }
}

/// Data of a ping that just fits.
fn fitting(mtu: u32, family: Family) -> String {
    let headers = match family {
        Family::V4 => 20 + 8,
        Family::V6 => 40 + 8,
    };
    (mtu - headers).to_string()
}

/// The pod and the server learn that a link of the path has a smaller MTU.
fn discovered(fabric: &Fabric, pod: Place, eni: u8) {
    let family = Family::of(pod.address);
    let server = internet(fabric, family);
    let echo = Echo::telling(server, 0).unwrap();
    let own = snat(fabric, eni, family);
    for (link, narrow) in [(Link::Far, World::path_address(family)), (Link::Near, "")] {
        for mtu in [MTU, SMALL] {
            fabric.set_world_mtu(link, mtu).unwrap();
            forget(pod);
            forget(server);
            // TCP finds out by itself, in both directions.
            let plain = Echo::start(server).unwrap();
            tcp_bulk(pod, plain.address(), BULK).unwrap();
            // UDP gets an error, and then fragments.
            forget(pod);
            let asker = Asker::open(pod, 0, echo.address()).unwrap();
            let seen = asker.ask(usize::try_from(MTU).unwrap() - 100).unwrap();
            assert_eq!(seen.ip(), own);
            asker.ask(5000).unwrap();
            // So is ping.
            forget(pod);
            let fits = ["-M", "do", "-s", &fitting(mtu, family)];
            ping(pod, server.address, &fits).unwrap();
            if mtu == SMALL {
                forget(pod);
                let too_big = ["-M", "do", "-s", &fitting(MTU, family)];
                let said = ping(pod, server.address, &too_big).unwrap_err().to_string();
                assert!(
                    said.contains(narrow) && said.contains(&SMALL.to_string()),
                    "{said}"
                );
                knows(pod, server.address, SMALL);
            }
        }
        fabric.set_world_mtu(link, MTU).unwrap();
    }
}

#[test]
fn a_narrow_link_on_the_way_is_discovered() {
    under_each_policy(discovered);
}

/// The path's MTU drops under an open connection, and the reply path's under an open request.
#[test]
fn a_link_that_narrows_under_open_flows_is_discovered() {
    let (fabric, [_, pod]) = internet_scene(json!({}));
    for family in Family::ALL {
        let (pod, server) = (pod.at(family), internet(&fabric, family));
        for link in [Link::Far, Link::Near] {
            fabric.set_world_mtu(link, MTU).unwrap();
            forget(pod);
            forget(server);
            let echo = Echo::telling(server, 0).unwrap();
            let asker = Asker::open(pod, 0, echo.address()).unwrap();
            let mut session = Session::open(pod, 0, echo.address()).unwrap();
            session.bulk(BULK).unwrap();
            asker.ask(1300).unwrap();
            fabric.set_world_mtu(link, SMALL).unwrap();
            session.bulk(BULK).unwrap();
            asker.ask(1440).unwrap();
            fabric.set_world_mtu(link, MTU).unwrap();
        }
    }
    fabric.finish().unwrap();
}

/// A pod's interface has a smaller MTU than its ENI. The node reports that to the server, in an
/// error about the packet before the reverse translation.
#[test]
fn a_pod_that_takes_less_has_the_server_told() {
    const POD: u32 = 1400;
    let (fabric, pods) = scene_of(&Spec {
        mtu: MTU,
        ..Spec::with_world(json!({"endpoint": {"mtu": POD}}))
    });
    for (pod, eni) in pods.iter().zip([0, 1]) {
        crate::mtu::ask_for_segments(pod, MTU);
        for family in Family::ALL {
            let (pod, server) = (pod.at(family), internet(&fabric, family));
            let echo = Echo::start(server).unwrap();
            tcp_bulk(pod, echo.address(), BULK).unwrap();
            knows(server, snat(&fabric, eni, family), POD);
        }
    }
    fabric.finish().unwrap();
}
