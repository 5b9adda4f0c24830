//! The agent's own addresses by the reference IPAM plugin of version 1.1.0.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use ipam::Family;
use serde_json::{Value, json};
use testkit::cri::Plugins;
use testkit::fabric::Place;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::traffic::Protocol;

use crate::scene::{NETWORK, Scene};

/// Maximum time until the agent has its addresses, or has given them up.
const SOON: Duration = Duration::from_secs(30);

/// Restarts the agent with its own addresses on or off.
fn restart(scene: &mut Scene, mode: &str) {
    let settings = json!({
        "ingress": mode, "plugin-dirs": [Plugins::New.folder().unwrap()],
        "state-dir": scene.fabric.file("own")
    });
    let settings = json!({"agent-addresses": settings});
    scene.fabric.agent.configure(&settings).unwrap();
    scene.fabric.agent.stop().unwrap();
    scene.fabric.start_agent().unwrap();
}

/// Waits until the agent has so many addresses of its own.
fn own(scene: &Scene, count: usize) -> Vec<IpAddr> {
    let look = || {
        let listed = scene.fabric.agent.ask("GET", "/v1/addresses", None)?;
        let leases = listed["leases"].as_array().into_iter().flatten();
        let own = leases.filter(|lease| lease["state"] == "agent");
        let own = own.filter_map(|lease| lease["address"].as_str()?.parse().ok());
        let mut own: Vec<IpAddr> = own.collect();
        own.sort_unstable();
        check(own.len() == count, || listed.to_string())?;
        Ok(own)
    };
    eventually(SOON, "the agent's own addresses", look)
        .unwrap()
        .0
}

/// Makes the runtimes' configuration delegate to host-local, with a few addresses of ENI 1.
fn delegate(scene: &Scene) {
    let eni = scene.fabric.eni(1).unwrap();
    let range = |family, subnet: &str| {
        let at = |index| eni.pod_address(family, index).unwrap().to_string();
        json!([{"subnet": subnet, "rangeStart": at(2), "rangeEnd": at(4)}])
    };
    let v6 = eni.pod_address(Family::V6, 0).unwrap();
    let ranges = [
        range(Family::V4, "10.0.1.0/24"),
        range(Family::V6, &format!("{v6}/124")),
    ];
    let ipam = json!({
        "type": "host-local", "ranges": ranges, "dataDir": scene.fabric.file("host-local")
    });
    let list = json!({
        "cniVersion": "1.1.0", "name": NETWORK,
        "plugins": [{"type": "towpath-cni", "ipam": ipam}]
    });
    let folder = scene.fabric.agent.conf_dir();
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("10-towpath.conflist"), list.to_string()).unwrap();
}

/// The addresses that host-local keeps.
fn reserved(scene: &Scene) -> Vec<IpAddr> {
    let folder = scene.fabric.file("host-local").join(NETWORK);
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let mut all: Vec<IpAddr> = names.filter_map(|name| name.parse().ok()).collect();
    all.sort_unstable();
    all
}

#[test]
fn host_local_of_version_1_1_0_gives_the_agent_an_address_of_each_family() {
    let mut scene = Scene::ready().unwrap();
    delegate(&scene);
    restart(&mut scene, "on");
    let first = own(&scene, 2);
    assert_eq!(reserved(&scene), first);
    restart(&mut scene, "on");
    assert_eq!(own(&scene, 2), first);
    for address in &first {
        assert_eq!(scene.owner(*address).unwrap(), 1, "{address}");
        let to = Place {
            netns: &scene.fabric.node,
            address: *address,
        };
        let from = scene.fabric.peer(Family::of(*address));
        let look = || Protocol::Tcp.exchange(from, to);
        eventually(SOON, "the listener is reached", look).unwrap();
    }
    let status = scene.fabric.agent.ask("GET", "/v1/status", None).unwrap();
    let reasons = &status["health"]["reasons"];
    let is_named = |reason: &Value| reason.to_string().contains("agent-addresses");
    let named = reasons.as_array().into_iter().flatten().any(is_named);
    assert!(!named, "CHECK succeeds: {reasons}");
    restart(&mut scene, "off");
    own(&scene, 0);
    let given_back = || {
        check(reserved(&scene).is_empty(), || {
            format!("{:?}", reserved(&scene))
        })
    };
    eventually(SOON, "nothing is reserved", given_back).unwrap();
    scene.fabric.finish().unwrap();
}
