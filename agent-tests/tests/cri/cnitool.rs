//! cnitool as a third runtime: the CNI project's library as it is, and the only one that calls CHECK.

use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};
use testkit::cri::Cnitool;
use testkit::fabric::traffic::Protocol;

use crate::census::{Census, exactly};
use crate::containers::Containers;
use crate::driver::Network;
use crate::scene::{BLUE, NETWORK, Reach, Scene, addresses};

/// The versions of the specification that it and we speak and that have CHECK.
const VERSIONS: [&str; 2] = ["0.4.0", "1.0.0"];

/// The id that it has for the one container that is there.
fn id(scene: &Scene) -> String {
    let endpoints = scene.fabric.agent.ask("GET", "/v1/endpoints", None);
    let owner = &endpoints.unwrap()[0]["owner"]["container-id"];
    let id = owner.as_str().unwrap();
    assert!(id.starts_with("cnitool-"), "{id}");
    id.to_owned()
}

/// Networks of each version, with the capability of asked addresses.
fn networks(scene: &Scene) -> [Network; 2] {
    VERSIONS.map(|version| {
        let mut network = scene.network(version, Vec::new()).unwrap();
        network.name = format!("{NETWORK}-{version}");
        network.plugins[0]["capabilities"] = json!({"ips": true});
        network
    })
}

#[test]
fn cnitool_adds_checks_and_deletes() {
    let mut scene = Scene::ready().unwrap();
    let census = Census::of_empty(&scene).unwrap();
    let containers = Containers::new(&scene);
    let networks = networks(&scene);
    let lists: Vec<_> = networks.iter().map(Network::list).collect();
    let cnitool = Cnitool::new(&scene.fabric, &lists, &[scene.plugins()]).unwrap();
    // An address cools down after its DEL.
    for (host, network) in (40..).zip(networks) {
        let version = network.version;
        let container = containers.take().unwrap();
        let netns = container.netns.path();
        let call = |verb: &str, environment: &[(&str, &str)]| {
            cnitool.call(verb, &network.name, &netns, environment)
        };
        let add = |environment: &[(&str, &str)]| -> Value {
            serde_json::from_str(&call("add", environment).unwrap()).unwrap()
        };

        let result = add(&[]);
        assert_eq!(result["cniVersion"], version);
        exactly(&scene, &[&id(&scene)]).unwrap();
        talks(&scene, &netns, &result);
        call("check", &[]).unwrap();
        container.netns.ip("route del default").unwrap();
        let error = call("check", &[]).unwrap_err();
        println!("{version}: {error:#}");
        assert!(error.to_string().contains("route"), "{error:#}");
        call("del", &[]).unwrap();
        call("del", &[]).unwrap();
        exactly(&scene, &[]).unwrap();

        let pool = ("CNI_ARGS", format!("IgnoreUnknown=1;TOWPATH_POOL={BLUE}"));
        let blue = add(&[(pool.0, &pool.1)]);
        for address in addresses(&blue).unwrap() {
            assert_eq!(scene.owner(address).unwrap(), 2, "{blue}");
        }
        call("del", &[]).unwrap();

        let requested = json!({"ips": [format!("10.0.1.{host}/24")]}).to_string();
        let given = add(&[("CAP_ARGS", &requested)]);
        assert_eq!(
            addresses(&given).unwrap(),
            [IpAddr::from([10, 0, 1, host])],
            "{given}"
        );
        // Its library remembers the result; the agent learns of the DEL when it is back.
        scene.fabric.agent.kill().unwrap();
        call("del", &[]).unwrap();
        scene.fabric.start_agent().unwrap();
        exactly(&scene, &[]).unwrap();
        containers.give_back(container);
    }
    census.nothing_left(&scene).unwrap();
    scene.fabric.finish().unwrap();
}

fn talks(scene: &Scene, netns: &Path, result: &Value) {
    let reach = Reach::of_result(netns, result).unwrap();
    reach
        .talk(&Protocol::ALL, |family| Ok(scene.fabric.peer(family)))
        .unwrap();
}
