//! Helpers of the tests of masquerade.

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::traffic::{Asker, Echo};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Place, Pod, Spec, command};

/// The wait for an answer to one packet, while a change is awaited: a lost packet must leave most of
/// the change's time to the next ones.
const ONE_PACKET: Duration = Duration::from_millis(500);

/// MTU of every link in tests of packet sizes: that of the Internet.
pub(crate) const MTU: u32 = 1500;
/// The first port of the default range.
pub(crate) const FIRST_PORT: u16 = 40_960;

/// A ready node with a world beyond its VPC, and with one pod of the default pool on each of its
/// two ENIs.
#[track_caller]
pub(crate) fn scene(settings: Value) -> (Fabric, [Arc<Pod>; 2]) {
    scene_of(&Spec::with_world(settings))
}

/// A ready node with a world beyond its VPC and one pod on each ENI, with links of the Internet's
/// MTU.
#[track_caller]
pub(crate) fn internet_scene(settings: Value) -> (Fabric, [Arc<Pod>; 2]) {
    scene_of(&Spec {
        mtu: MTU,
        ..Spec::with_world(settings)
    })
}

/// Runs a test under every external policy, each on a fabric of its own, with each pod of both
/// families and its egress ENI.
pub(crate) fn under_each_policy(test: impl Fn(&Fabric, Place, u8)) {
    for (policy, enis) in [
        ("own-eni", [0, 1]),
        ("primary-eni", [0, 0]),
        ("auto", [0, 1]),
    ] {
        let (fabric, pods) = internet_scene(masquerade(&json!({"external": policy})));
        for (pod, eni) in pods.iter().zip(enis) {
            for family in Family::ALL {
                test(&fabric, pod.at(family), eni);
            }
        }
        assert!(fabric.leaks().unwrap().is_empty(), "{policy}");
        fabric.finish().unwrap();
    }
}

#[track_caller]
pub(crate) fn scene_of(spec: &Spec) -> (Fabric, [Arc<Pod>; 2]) {
    let mut fabric = Fabric::ready(spec).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    (fabric, pods)
}

/// A host behind a device of the node, in networks that begin so. The node has their first
/// addresses, and the host the next ones.
pub(crate) fn host_behind(fabric: &mut Fabric, device: &str, [v4, v6]: [&str; 2]) -> Arc<Pod> {
    let at = |network: &str| format!("{network}2").parse().unwrap();
    let host = fabric.make_pod_at(at(v4), at(v6)).unwrap();
    let ends = format!(
        "link add {device} type veth peer name eth0 netns {}\n\
         link set {device} up\n\
         addr add {v4}1/24 dev {device}\n\
         addr add {v6}1/64 dev {device} nodad\n",
        host.netns.name()
    );
    fabric.node.ip(&ends).unwrap();
    let inside = format!(
        "link set eth0 up\n\
         addr add {v4}2/24 dev eth0\n\
         addr add {v6}2/64 dev eth0 nodad\n\
         route add default via {v4}1\n\
         route add default via {v6}1\n"
    );
    host.netns.ip(&inside).unwrap();
    host
}

/// A site's end of a flow.
#[track_caller]
pub(crate) fn site(fabric: &Fabric, site: Site, family: Family) -> Place<'_> {
    fabric.world().unwrap().at(site, family)
}

/// The server on the Internet.
#[track_caller]
pub(crate) fn internet(fabric: &Fabric, family: Family) -> Place<'_> {
    site(fabric, Site::Internet, family)
}

/// An ENI's translation address.
#[track_caller]
pub(crate) fn snat(fabric: &Fabric, eni: u8, family: Family) -> IpAddr {
    fabric.translation_address(eni, family).unwrap()
}

/// The address that a new flow to a server is seen with now.
///
/// # Errors
/// When the packet or the answer to it is lost.
pub(crate) fn seen_now(from: Place, server: &Echo) -> anyhow::Result<IpAddr> {
    let asker = Asker::open(from, 0, server.address())?;
    asker.socket().set_read_timeout(Some(ONE_PACKET))?;
    Ok(asker.ask(7)?.ip())
}

/// Expects that both families of a pod are translated to an ENI's addresses, and leave by it.
#[track_caller]
pub(crate) fn translated(fabric: &Fabric, pod: &Pod, eni: u8) {
    for family in Family::ALL {
        let address = snat(fabric, eni, family);
        fabric
            .check_seen(pod.at(family), Site::Internet, address, eni)
            .unwrap();
    }
}

/// Entries of a pinned map.
#[track_caller]
pub(crate) fn entries(fabric: &Fabric, map: &str) -> usize {
    let mut folders = vec![fabric.pin_root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name == map) {
                let mut bpftool = Command::new("bpftool");
                bpftool.args(["-j", "map", "dump", "pinned"]).arg(&path);
                let dump = command::run(&mut bpftool).unwrap();
                let dump: Value = serde_json::from_str(&dump).unwrap();
                return dump.as_array().unwrap().len();
            }
        }
    }
    panic!("no map {map} is pinned")
}

/// The settings of masquerade, in addition to those for a world.
pub(crate) fn masquerade(settings: &Value) -> Value {
    json!({"masquerade": settings})
}

/// Flag for a family of iputils and traceroute(8).
pub(crate) fn flag(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}
