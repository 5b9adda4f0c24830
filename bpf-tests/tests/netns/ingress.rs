//! Addresses that the agent itself has: real listeners on them, and who gives them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::agent::{FAULT_VARIABLE, START};
use testkit::fabric::eventually::check;
use testkit::fabric::layout::{Addressing, Host};
use testkit::fabric::state::difference;
use testkit::fabric::traffic::{Echo, Protocol, Session};
use testkit::fabric::{Fabric, Netns, Place, Spec};

use crate::exposition;
use crate::support::{carry, get, is_full, within};

/// Time to get the addresses, or to give them up: the agent looks every ten seconds.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Kills at each point: more of them in the long form.
pub(crate) fn kills() -> usize {
    if is_full() { 5 } else { 1 }
}

/// A node whose ENI 1 has a prefix of each family.
pub(crate) fn scene(world: bool) -> Fabric {
    let settings = json!({
        "ipam": {"families": ["ipv4", "ipv6"]}, "http": {"address": exposition::ADDRESS}
    });
    let spec = if world {
        Spec::with_world(settings)
    } else {
        Spec {
            settings,
            ..Spec::default()
        }
    };
    Fabric::ready(&Spec {
        addressing: Addressing::SeveralPrefixes(1),
        ..spec
    })
    .unwrap()
}

/// Restarts the agent with other settings for its own addresses.
pub(crate) fn restart(fabric: &mut Fabric, settings: &Value) {
    configure(fabric, settings);
    if fabric.agent.is_running() {
        fabric.agent.stop().unwrap();
    }
    fabric.start_agent().unwrap();
}

/// Changes the settings without a start.
pub(crate) fn configure(fabric: &Fabric, settings: &Value) {
    let state = json!({"agent-addresses": {"state-dir": fabric.file("own")}});
    fabric.agent.configure(&state).unwrap();
    let settings = json!({"agent-addresses": settings});
    fabric.agent.configure(&settings).unwrap();
}

/// The value of a metric that has no labels.
pub(crate) fn metric(fabric: &Fabric, name: &str) -> Result<u64> {
    let response = exposition::ask_at(&fabric.node, exposition::ADDRESS, &[], "/metrics");
    let (_, text) = response?;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.context("no such metric")?.parse()?)
}

/// The agent's own addresses, as it lists them.
pub(crate) fn own(fabric: &Fabric) -> Result<BTreeMap<Family, IpAddr>> {
    let listed = fabric.agent.ask("GET", "/v1/addresses", None)?;
    let leases = listed["leases"].as_array().into_iter().flatten();
    let own = leases.filter(|lease| lease["state"] == "agent");
    own.map(|lease| {
        let address: IpAddr = lease["address"].as_str().unwrap_or_default().parse()?;
        Ok((Family::of(address), address))
    })
    .collect()
}

/// Waits until the agent has so many.
pub(crate) fn wait_for(fabric: &Fabric, count: usize) -> BTreeMap<Family, IpAddr> {
    within(SOON, "the agent's own addresses", || {
        let own = own(fabric)?;
        let problems = &fabric.agent.ask("GET", "/v1/status", None)?["health"]["reasons"];
        check(own.len() == count, || format!("{own:?}: {problems}"))?;
        Ok(own)
    })
}

/// The number of the ENI that owns an address.
pub(crate) fn owner(fabric: &Fabric, address: IpAddr) -> u8 {
    let mut enis = fabric.enis.iter();
    let found = enis.find(|eni| eni.blocks.iter().any(|net| net.contains(&address)));
    found.unwrap().number
}

/// Makes exchanges from every kind of client to a listener on the address.
pub(crate) fn reached_by_all(fabric: &Fabric, to: Place, enis: &[u8], near: &[Place]) {
    let family = Family::of(to.address);
    for protocol in Protocol::ALL {
        for from in [fabric.peer(family), fabric.host(Host::Outside, family)] {
            carry([from, to], protocol, fabric, enis);
        }
        for from in near
            .iter()
            .filter(|from| Family::of(from.address) == family)
        {
            protocol.exchange(*from, to).unwrap();
        }
    }
}

/// The addresses that the loopback device of the node has beside its own.
pub(crate) fn on_loopback(fabric: &Fabric) -> String {
    let shown = fabric.node.run("ip -o addr show dev lo").unwrap();
    let lines = shown
        .lines()
        .filter(|line| !line.contains(" 127.0.0.1/") && !line.contains(" ::1/"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_listener_on_the_hosts_address_is_reached_from_everywhere() {
    let mut fabric = scene(false);
    let other = fabric.join(1, &Spec::default());
    let mut other = other.unwrap();
    other.publish().unwrap();
    other.start_agent().unwrap();
    let pods = [fabric.add_pod(0, 3).unwrap(), fabric.add_pod(1, 3).unwrap()];
    let away = [other.add_pod(0, 0).unwrap(), other.add_pod(1, 0).unwrap()];
    let before = fabric.state().unwrap();
    restart(&mut fabric, &json!({"ingress": "on"}));
    let own = wait_for(&fabric, 2);
    let near: Vec<Place> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            let pods = pods.iter().chain(&away).map(move |pod| pod.at(family));
            pods.chain([fabric.node_at(family).unwrap()])
        })
        .collect();
    for address in own.values() {
        let to = Place {
            netns: &fabric.node,
            address: *address,
        };
        reached_by_all(&fabric, to, &[owner(&fabric, *address)], &near);
        // A pod cannot have it.
        let request = json!({"owner": {"container-id": "x", "interface": "eth0"},
            "netns": "/run/netns/x", "addresses": [address]});
        let (status, answer) = fabric
            .agent
            .request("PUT", "/v1/endpoints", Some(&request))
            .unwrap();
        assert!(status >= 400, "{answer}");
    }
    // Connections that the host opens keep their source address.
    for family in Family::ALL {
        let server = Echo::telling(fabric.peer(family), 0).unwrap();
        let own = own[&family];
        let seen = fabric.node.enter(|| {
            let socket =
                std::net::UdpSocket::bind(if own.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
            socket.connect(server.address())?;
            Ok(socket.local_addr()?.ip())
        });
        assert_ne!(seen.unwrap(), own);
    }
    // A restart changes nothing, and a switch leaves nothing.
    restart(&mut fabric, &json!({"ingress": "on"}));
    assert_eq!(wait_for(&fabric, 2), own);
    restart(&mut fabric, &json!({"ingress": "off"}));
    wait_for(&fabric, 0);
    assert_eq!(on_loopback(&fabric), "");
    within(SOON, "nothing is left", || {
        let left = difference(&before, &fabric.state()?);
        check(left.is_empty(), || left)
    });
    other.finish().unwrap();
    fabric.finish().unwrap();
}

#[test]
fn masquerade_leaves_the_address_alone_and_a_namespace_may_answer() {
    let mut fabric = scene(true);
    let gateway = Netns::create(&format!("{}-gateway", fabric.node.name())).unwrap();
    for mode in [json!("on"), json!(gateway.path())] {
        restart(&mut fabric, &json!({"ingress": mode}));
        let own = wait_for(&fabric, 2);
        let addresses: Vec<_> = own.values().map(|address| (*address).into()).collect();
        fabric.allow_untranslated(&addresses).unwrap();
        for address in own.values() {
            let family = Family::of(*address);
            let netns = if mode == "on" { &fabric.node } else { &gateway };
            let to = Place {
                netns,
                address: *address,
            };
            // A restart holds the addresses before they are where the mode has them.
            let server = within(SOON, "the address is there", || Echo::telling(to, 0));
            for from in [fabric.peer(family), fabric.host(Host::Outside, family)] {
                let session = Session::open(from, 0, server.address()).unwrap();
                assert_eq!(session.seen().ip(), from.address, "{mode}");
            }
        }
        let listed = get(&fabric, "/v1/addresses");
        assert_eq!(listed["leases"].as_array().unwrap().len(), 2, "{listed}");
    }
    restart(&mut fabric, &json!({"ingress": "off"}));
    wait_for(&fabric, 0);
    let links = gateway.run("ip -o link").unwrap();
    assert!(!links.contains("eth0"), "{links}");
    fabric.finish().unwrap();
}

#[test]
fn a_pool_without_an_address_is_named_and_pods_are_served() {
    let mut fabric = scene(false);
    restart(&mut fabric, &json!({"ingress": "on", "pool": "gateways"}));
    let named = within(SOON, "the pool is named", || {
        let reasons = get(&fabric, "/v1/status")["health"]["reasons"].to_string();
        check(reasons.contains("agent-addresses.ingress: "), || {
            reasons.clone()
        })?;
        Ok(reasons)
    });
    assert!(named.contains("gateways"), "{named}");
    let pod = fabric.add_pod(1, 3).unwrap();
    Protocol::Tcp
        .exchange(pod.at(Family::V4), fabric.peer(Family::V4))
        .unwrap();
    restart(&mut fabric, &json!({"ingress": "on", "pool": null}));
    let own = wait_for(&fabric, 2);
    let shown = fabric.agent.cli(&fabric.node, &["addresses"]).unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for address in own.values() {
        let line = shown
            .lines()
            .find(|line| line.contains(&address.to_string()));
        assert!(line.is_some_and(|line| line.contains("agent")), "{shown}");
    }
    fabric.finish().unwrap();
}

/// Binds the pool `blue` to ENI 1.
fn bind_blue(fabric: &Fabric) {
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool", "spec": {},
        "metadata": {"name": "blue", "annotations": {"ipam.towpath.dev/eni-tags": "team=blue"}}
    });
    std::fs::write(fabric.file("pools/blue.json"), pool.to_string()).unwrap();
    let id = fabric.eni(1).unwrap().id();
    let bind = |document: &mut Value| {
        document["status"]["eni"]["enis"][&id]["tags"] = json!({"team": "blue"});
    };
    fabric.publish_changed(bind).unwrap();
}

/// Leases all IPv4 addresses of a pool that are left, and returns one of the owners.
fn exhaust(fabric: &Fabric, pool: &str) -> String {
    let mut last = None;
    for number in 0.. {
        let owner = format!("lease-{number}");
        let request = json!({"owner": {"container-id": owner, "interface": "eth0"},
            "families": ["ipv4"], "pools": {"ipv4": pool}});
        let answer = fabric.agent.request("PUT", "/v1/addresses", Some(&request));
        let (status, answer) = answer.unwrap();
        if status != 200 {
            assert_eq!(answer["error"]["code"], "pool-exhausted", "{answer}");
            break;
        }
        last = Some(owner);
    }
    last.unwrap()
}

#[test]
fn the_addresses_are_of_the_pool_of_the_setting_and_wait_while_that_is_exhausted() {
    let mut fabric = scene(true);
    bind_blue(&fabric);
    for (pool, number) in [(json!("blue"), 1), (json!(null), 0)] {
        restart(&mut fabric, &json!({"ingress": "on", "pool": pool}));
        let own = wait_for(&fabric, 2);
        let eni = fabric.eni(number).unwrap();
        for address in own.values() {
            let is_of = eni.blocks.iter().any(|net| net.contains(address));
            assert!(is_of, "{pool}: {address} is not of ENI {number}");
        }
        restart(&mut fabric, &json!({"ingress": "off"}));
        wait_for(&fabric, 0);
    }
    let owner = exhaust(&fabric, "blue");
    restart(&mut fabric, &json!({"ingress": "on", "pool": "blue"}));
    within(SOON, "the pool is named", || {
        let reasons = get(&fabric, "/v1/status")["health"]["reasons"].to_string();
        let is_named = reasons.contains("agent-addresses.ingress: pool blue has no IPv4 address");
        check(is_named, || reasons)
    });
    let path = format!("/v1/addresses/{owner}/eth0");
    fabric.agent.ask("DELETE", &path, None).unwrap();
    wait_for(&fabric, 2);
    fabric.finish().unwrap();
}

/// Points of the agent's own allocator, and of the loopback device.
const POINTS: [(&str, [&str; 5]); 2] = [
    (
        "on",
        [
            "addresses.write",
            "addresses.rename",
            "addresses.written",
            "apply.add-address",
            "applied.add-address",
        ],
    ),
    (
        "off",
        [
            "apply.delete-address",
            "applied.delete-address",
            "addresses.write",
            "addresses.rename",
            "addresses.written",
        ],
    ),
];

#[test]
fn a_kill_while_the_agent_allocates_for_itself_leaks_nothing() {
    let mut fabric = scene(false);
    for (mode, points) in POINTS {
        for point in points.iter().cycle().take(kills() * points.len()) {
            let (earlier, count) = if mode == "on" { ("off", 2) } else { ("on", 0) };
            restart(&mut fabric, &json!({"ingress": earlier}));
            wait_for(&fabric, 2 - count);
            fabric.agent.stop().unwrap();
            configure(&fabric, &json!({"ingress": mode}));
            let environment = [(FAULT_VARIABLE, *point)];
            fabric.agent.start(&fabric.node, &environment).unwrap();
            fabric.agent.wait_for_fault(START).unwrap();
            let left = on_loopback(&fabric);
            fabric.start_agent().unwrap();
            let own = wait_for(&fabric, count);
            let listed = get(&fabric, "/v1/addresses");
            let leases = listed["leases"].as_array().unwrap().len();
            assert_eq!(leases, count, "{mode} {point}: {listed}");
            within(SOON, "the host has these alone", || {
                let there = on_loopback(&fabric);
                let has = |address: &IpAddr| there.contains(&format!(" {address}/"));
                let is_so = there.lines().count() == count && own.values().all(has);
                check(is_so, || format!("{mode} {point}: {there}: {own:?}"))
            });
            if mode == "on" && !left.is_empty() {
                let kept = own.values().any(|own| left.contains(&format!(" {own}/")));
                assert!(kept, "{point}: {left} became {own:?}");
            }
        }
    }
    fabric.finish().unwrap();
}
