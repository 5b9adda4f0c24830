//! Every version of the CNI specification, every command; who gives the addresses.

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::cri::Plugins;
use testkit::fabric::traffic::Protocol;

use crate::census::{Census, exactly};
use crate::containers::Containers;
use crate::driver::refusal;
use crate::scene::{BLUE, Reach, Scene, addresses};

const VERSIONS: [&str; 6] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "9.9.9"];
/// The specification's code for a version that a plugin does not speak.
const INCOMPATIBLE: u64 = 1;
/// Its codes for a plugin that cannot serve, and for one that is called too early.
const UNAVAILABLE: u64 = 50;
const AGAIN: u64 = 11;

/// True if a version has a command.
fn since(version: &str, first: &str) -> bool {
    VERSIONS.iter().position(|v| *v == version) >= VERSIONS.iter().position(|v| *v == first)
}

#[test]
fn every_version_has_its_commands() {
    let scene = Scene::ready().unwrap();
    let census = Census::of_empty(&scene).unwrap();
    let (node, containers) = (&scene.fabric.node, Containers::new(&scene));
    for version in VERSIONS {
        let network = scene.network(version, Vec::new()).unwrap();
        let spoken = network.versions(node);
        let container = containers.take().unwrap();
        let added = network.add(node, &container.attachment);
        if !["0.3.1", "0.4.0", "1.0.0", "1.1.0"].contains(&version) {
            let error = added.unwrap_err();
            println!("{version}: {}", refusal(&error));
            assert_eq!(
                refusal(&error).code,
                Some(INCOMPATIBLE),
                "{version}: {error:#}"
            );
            continue;
        }
        let spoken = spoken.unwrap();
        let supported = spoken["supportedVersions"].as_array().unwrap();
        assert!(supported.contains(&json!(version)), "{spoken}");
        let result = added.unwrap();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(addresses(&result).unwrap().len(), 2, "{result}");
        let names_family = result["ips"][0].get("version").is_some();
        assert_eq!(names_family, !since(version, "1.0.0"), "{result}");
        let again = network.add(node, &container.attachment).unwrap();
        assert_eq!(again, result, "ADD again");
        let reach = Reach::of_result(&container.attachment.netns, &result).unwrap();
        reach
            .talk(&Protocol::ALL, |family| Ok(scene.fabric.peer(family)))
            .unwrap();
        if since(version, "0.4.0") {
            network.check(node, &container.attachment, &result).unwrap();
            container.netns.ip("route del default").unwrap();
            let error = network
                .check(node, &container.attachment, &result)
                .unwrap_err();
            println!("{version}: CHECK: {}", refusal(&error));
        }
        exactly(&scene, &[container.id()]).unwrap();
        network
            .del(node, &container.attachment, Some(&result))
            .unwrap();
        network.del(node, &container.attachment, None).unwrap();
        exactly(&scene, &[]).unwrap();
        containers.give_back(container);
    }
    census.nothing_left(&scene).unwrap();
    scene.fabric.finish().unwrap();
}

#[test]
fn status_fails_until_the_agent_was_ready_and_add_tells_of_missing_addresses() {
    let mut scene = Scene::ready().unwrap();
    let network = scene.network("1.1.0", Vec::new()).unwrap();
    // Nothing has checked yet whether the agent is ready.
    scene.fabric.agent.kill().unwrap();
    let error = network.status(&scene.fabric.node).unwrap_err();
    let (away, code) = (error.to_string(), refusal(&error).code);
    assert_eq!(code, Some(UNAVAILABLE), "{error:#}");
    scene.fabric.start_agent().unwrap();
    network.status(&scene.fabric.node).unwrap();
    scene.fabric.agent.kill().unwrap();
    network.status(&scene.fabric.node).unwrap();
    scene.fabric.start_agent().unwrap();

    // ENI 2 has 48 addresses: a request for more is refused with code 11 (try again).
    let containers = Containers::new(&scene);
    let mut blue = network.clone();
    blue.plugins = vec![scene.entry(Some(BLUE))];
    let mut held = Vec::new();
    for _ in 0..48 {
        let container = containers.take().unwrap();
        let result = blue.add(&scene.fabric.node, &container.attachment).unwrap();
        for address in addresses(&result).unwrap() {
            assert_eq!(scene.owner(address).unwrap(), 2, "{address}");
        }
        held.push(container);
    }
    let one_more = containers.take().unwrap();
    let error = blue
        .add(&scene.fabric.node, &one_more.attachment)
        .unwrap_err();
    println!("without an agent: {away}\nwithout addresses: {error:#}");
    assert_eq!(refusal(&error).code, Some(AGAIN), "{error:#}");
    // The default pool has some.
    network.status(&scene.fabric.node).unwrap();
    for container in &held {
        blue.del(&scene.fabric.node, &container.attachment, None)
            .unwrap();
    }
    exactly(&scene, &[]).unwrap();
    scene.fabric.finish().unwrap();
}

/// host-local counts addresses of ENI 1 for our plugin.
fn host_local_gives_addresses(scene: &Scene, containers: &Containers, plugins: Plugins) {
    let node = &scene.fabric.node;
    let mut network = scene.network("1.0.0", Vec::new()).unwrap();
    network.path[1] = plugins.folder().unwrap();
    network.plugins[0]["ipam"] = json!({
        "type": "host-local",
        "dataDir": scene.fabric.file("host-local"),
        "ranges": [[{
            "subnet": "10.0.1.0/24", "rangeStart": "10.0.1.100", "rangeEnd": "10.0.1.110"
        }]],
    });
    let container = containers.take().unwrap();
    let result = network.add(node, &container.attachment).unwrap();
    let given = addresses(&result).unwrap();
    let range = [100, 110].map(|host| IpAddr::from([10, 0, 1, host]));
    assert!(
        given.len() == 1 && range[0] <= given[0] && given[0] <= range[1],
        "{result}"
    );
    exactly(scene, &[container.id()]).unwrap();
    network.check(node, &container.attachment, &result).unwrap();
    network
        .del(node, &container.attachment, Some(&result))
        .unwrap();
    exactly(scene, &[]).unwrap();
    containers.give_back(container);
}

/// Our plugin gives addresses to ptp.
fn ptp_gets_addresses(scene: &Scene, containers: &Containers, plugins: Plugins) {
    let node = &scene.fabric.node;
    let mut network = scene.network("1.0.0", Vec::new()).unwrap();
    network.path[1] = plugins.folder().unwrap();
    let mut ipam = scene.entry(Some(BLUE));
    ipam["type"] = json!("towpath-ipam");
    // ptp puts the gateway's address on the host's end: the VPC's router is not for that.
    ipam["gateways"] = json!(["10.0.2.10"]);
    ipam["families"] = json!(["ipv4"]);
    ipam["pools"] = json!({"ipv4": BLUE});
    network.plugins = vec![json!({"type": "ptp", "ipam": ipam})];
    let container = containers.take().unwrap();
    let result = network.add(node, &container.attachment).unwrap();
    for address in addresses(&result).unwrap() {
        assert_eq!(scene.owner(address).unwrap(), 2, "{result}");
    }
    let leases = || -> Vec<Value> {
        let answer = scene
            .fabric
            .agent
            .ask("GET", "/v1/addresses", None)
            .unwrap();
        answer["leases"].as_array().unwrap().clone()
    };
    assert_eq!(leases().len(), 1);
    network.check(node, &container.attachment, &result).unwrap();
    network
        .del(node, &container.attachment, Some(&result))
        .unwrap();
    assert_eq!(leases(), Vec::<Value>::new());
    containers.give_back(container);
}

/// Another plugin gives the addresses, or ours gives them to another plugin.
#[test]
fn addresses_can_be_delegated_in_both_directions() {
    let scene = Scene::ready().unwrap();
    let census = Census::of_empty(&scene).unwrap();
    let containers = Containers::new(&scene);
    for plugins in [Plugins::Old, Plugins::New] {
        host_local_gives_addresses(&scene, &containers, plugins);
        ptp_gets_addresses(&scene, &containers, plugins);
    }
    drop(containers);
    census.nothing_left(&scene).unwrap();
    scene.fabric.finish().unwrap();
}
