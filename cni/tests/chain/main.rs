//! The reference plugins: after ours in a chain, as IPAM plugins that ours delegates to, and as the
//! ones that our IPAM plugin serves. They run in namespaces, with a simulated agent.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of a helper is a failure of the test"
)]

mod host;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use host::{CONTAINER, Host, REFERENCE_PLUGINS};

/// The versions that Debian's plugins speak too.
const VERSIONS: [&str; 3] = ["0.3.1", "0.4.0", "1.0.0"];

/// Printed result of our plugin and answers of the agent, from the transcripts.
fn transcript(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let text = fs::read(folder.join(format!("{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The printed result of ADD with this host's namespace as the sandbox.
fn result(host: &Host, version: &str) -> Value {
    let mut result = transcript(&format!("add-{version}"))["outcome"]["printed"].clone();
    result["interfaces"][1]["sandbox"] = json!(host.pod_path());
    result
}

#[test]
fn our_result_goes_through_tuning_bandwidth_and_portmap() {
    for version in VERSIONS {
        let host = Host::new();
        host.add_endpoint();
        let ours = result(&host, version);
        let runtime = json!({
            "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000,
                "egressRate": 8_000_000, "egressBurst": 800_000},
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        });
        let mut previous = ours.clone();
        let mut chain = Vec::new();
        for (kind, more) in [
            ("tuning", json!({"sysctl": {"net.core.somaxconn": "500"}})),
            ("bandwidth", json!({"capabilities": {"bandwidth": true}})),
            ("portmap", json!({"capabilities": {"portMappings": true}})),
        ] {
            let mut config = json!({"cniVersion": version, "name": "towpath", "type": kind,
                "runtimeConfig": runtime, "prevResult": previous});
            config
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let (printed, done) = host.plugin(kind, "ADD", &config);
            assert!(done, "{kind} {version}: {printed}");
            previous = printed;
            chain.push((kind, config));
        }
        // Ours comes out at the other end: the first interfaces and all addresses.
        for position in 0..2 {
            let (before, after) = (
                &ours["interfaces"][position],
                &previous["interfaces"][position],
            );
            assert_eq!(after["name"], before["name"], "{version}");
            assert_eq!(after["mac"], before["mac"], "{version}");
        }
        assert_eq!(previous["ips"], ours["ips"], "{version}");
        assert_eq!(previous["routes"], ours["routes"], "{version}");

        let somaxconn = host.in_pod(&["cat", "/proc/sys/net/core/somaxconn"]);
        assert_eq!(somaxconn.trim(), "500");
        let shaped = host.in_host(&["tc", "qdisc", "show", "dev", "tow3cbc86a9b99a"]);
        assert!(shaped.contains("tbf"), "{shaped}");
        for (kind, mut config) in chain.into_iter().rev() {
            config["prevResult"] = previous.clone();
            // portmap 1.1.1 looks for IPv6 rules that it makes for IPv6 addresses only.
            if version != "0.3.1" && kind != "portmap" {
                let (printed, done) = host.plugin(kind, "CHECK", &config);
                assert!(done, "CHECK {kind} {version}: {printed}");
            }
            let (printed, done) = host.plugin(kind, "DEL", &config);
            assert!(done, "DEL {kind} {version}: {printed}");
        }
    }
}

#[test]
fn ours_is_added_to_what_loopback_gives() {
    for version in VERSIONS {
        let host = Host::new();
        host.add_endpoint();
        let config = json!({"cniVersion": version, "name": "towpath", "type": "loopback"});
        let (loopback, done) = host.plugin_at("lo", "loopback", "ADD", &config);
        assert!(done, "{loopback}");
        let agent_says = &transcript("add-1.0.0")["exchanges"][0]["answer"]["body"];
        host.agent(vec![("PUT /v1/endpoints", agent_says.clone())]);
        let mut config = host.config(version, "towpath-cni");
        config["prevResult"] = loopback;
        let (printed, done) = host.plugin("towpath-cni", "ADD", &config);
        assert!(done, "{printed}");
        let names: Vec<_> = printed["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|of| of["name"].clone())
            .collect();
        assert_eq!(names, ["lo", "tow3cbc86a9b99a", "eth0"]);
        let ours = printed["ips"].as_array().unwrap().last().unwrap();
        assert_eq!(ours["interface"], 2);
        // The next plugin of the chain takes it.
        let config = json!({"cniVersion": version, "name": "towpath", "type": "tuning",
            "prevResult": printed});
        let (printed, done) = host.plugin("tuning", "ADD", &config);
        assert!(done, "{printed}");
    }
}

#[test]
fn host_local_and_static_give_addresses_that_the_agent_is_asked_for() {
    let attachment = |address: &str| {
        let mut answer = transcript("add-1.0.0")["exchanges"][0]["answer"]["body"].clone();
        answer["addresses"][0]["address"] = json!(address);
        answer
    };
    let host = Host::new();
    let requests = host.agent(vec![
        ("GET /v1/endpoints/0a1b2c/eth0", Value::Null),
        ("PUT /v1/endpoints", attachment("10.0.1.40")),
        ("DELETE /v1/endpoints/0a1b2c/eth0", json!({})),
    ]);
    let data = host.path("host-local");
    for ipam in [
        json!({"type": "host-local", "dataDir": data,
            "ranges": [[{"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.40"}]]}),
        json!({"type": "static", "addresses": [{"address": "10.0.1.40/24"}]}),
    ] {
        let mut config = host.config("1.0.0", "towpath-cni");
        config["ipam"] = ipam.clone();
        let (printed, done) = host.plugin("towpath-cni", "ADD", &config);
        assert!(done, "{printed}");
        assert_eq!(printed["ips"][0]["address"], "10.0.1.40/32");
        let put = requests
            .lock()
            .unwrap()
            .iter()
            .rfind(|request| request.starts_with("PUT"))
            .cloned();
        assert!(put.unwrap().contains(r#""addresses":["10.0.1.40"]"#));
        let leases = || {
            fs::read_dir(data.join("towpath")).map_or(0, |entries| {
                entries
                    .filter(|entry| entry.as_ref().unwrap().file_name() == "10.0.1.40")
                    .count()
            })
        };
        let is_host_local = ipam["type"] == "host-local";
        assert_eq!(leases(), usize::from(is_host_local));
        let (printed, done) = host.plugin("towpath-cni", "DEL", &config);
        assert!(done, "{printed}");
        assert_eq!(leases(), 0);
    }
}

#[test]
fn ptp_and_macvlan_take_addresses_of_our_ipam_plugin() {
    for (kind, more, gateway) in [
        ("ptp", json!({}), "10.0.1.10"),
        ("macvlan", json!({"master": "eni0"}), "10.0.1.1"),
    ] {
        let host = Host::new();
        host.add_eni();
        let lease = &transcript("ipam-add-1.0.0")["exchanges"][0]["answer"]["body"];
        let requests = host.agent(vec![
            ("PUT /v1/addresses", lease.clone()),
            ("POST /v1/addresses/0a1b2c/eth0/claim", json!({})),
            ("DELETE /v1/addresses/0a1b2c/eth0", json!({})),
        ]);
        let mut ipam = host.config("1.0.0", "towpath-ipam");
        if kind == "ptp" {
            ipam["gateways"] = json!(["10.0.1.10"]);
        }
        let mut config =
            json!({"cniVersion": "1.0.0", "name": "plain", "type": kind, "ipam": ipam});
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (printed, done) = host.plugin(kind, "ADD", &config);
        assert!(done, "{kind}: {printed}");
        let routes = host.in_pod(&["ip", "route", "show", "default"]);
        assert!(
            routes.starts_with(&format!("default via {gateway} ")),
            "{kind}: {routes}"
        );
        // The node still reaches the VPC's router by its ENI.
        let route = host.in_host(&["ip", "route", "get", "10.0.1.1"]);
        assert!(route.starts_with("10.0.1.1 dev eni0 "), "{kind}: {route}");
        let (printed, done) = host.plugin(kind, "DEL", &config);
        assert!(done, "{kind}: {printed}");
        let calls: Vec<_> = requests
            .lock()
            .unwrap()
            .iter()
            .map(|request| request.split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(calls, ["PUT", "POST", "DELETE"], "{kind}");
    }
}

#[test]
fn the_reference_plugins_are_those_that_we_know() {
    assert!(
        Path::new(REFERENCE_PLUGINS).join("tuning").exists(),
        "there is no {REFERENCE_PLUGINS}/tuning: Debian's package is containernetworking-plugins"
    );
    assert_eq!(CONTAINER, "0a1b2c", "as in the transcripts");
}
