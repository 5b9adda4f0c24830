//! Objects of the host and of others on the node, and changes while the agent runs.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::state::{State, difference};
use testkit::fabric::traffic::{Echo, Protocol, Stream, tcp_bulk};
use testkit::fabric::{Fabric, Spec};

use crate::support::{CHANGE, End, HEAL, PEER, carry, carry_all, get, nothing_differs, within};

/// Lines of a state about a device.
fn of_device(state: State, device: &str) -> State {
    // Forwarding belongs to the node, and is turned on for all of its devices. A router has its
    // subnets' anycast addresses.
    let forwarding = |line: &String| line.contains("/forwarding = ") || line.contains("anycast ");
    let keep = |lines: std::collections::BTreeSet<String>| {
        let about = |line: &String| {
            line.split(|c: char| !c.is_alphanumeric())
                .any(|word| word == device)
        };
        let mut lines: std::collections::BTreeSet<_> = lines.into_iter().filter(about).collect();
        lines.retain(|line| !forwarding(line));
        lines
    };
    let sections = state.into_iter();
    sections.map(|(name, lines)| (name, keep(lines))).collect()
}

/// The document with ENI 2 excluded by its tags.
fn excluding(fabric: &Fabric) -> Value {
    let mut document = fabric.document();
    document["spec"]["eni"]["exclude-interface-tags"] = json!({"for": "others"});
    let id = fabric.eni(2).unwrap().id();
    document["status"]["eni"]["enis"][id]["tags"] = json!({"for": "others"});
    document
}

#[test]
fn an_excluded_eni_stays_as_its_owner_has_it() {
    let spec = Spec {
        enis: 3,
        ..Spec::default()
    };
    let mut fabric = Fabric::create(&spec).unwrap();
    fabric
        .node
        .ip("link set eth2 mtu 1400\nlink set eth2 up\n\
             addr add 10.0.2.10/24 dev eth2\n\
             route add default via 10.0.2.1 dev eth2 table 12\n\
             rule add priority 900 from 10.0.2.10 lookup 12")
        .unwrap();
    fabric.agent.write_document(&excluding(&fabric)).unwrap();
    within(CHANGE, "its link-local address is there", || {
        let addresses = fabric.node.run("ip -6 addr show dev eth2")?;
        check(!addresses.contains("tentative"), || addresses.clone())
    });
    let before = of_device(fabric.state().unwrap(), "eth2");
    assert!(!before["routes of IPv4"].is_empty() && !before["sysctls"].is_empty());
    fabric.agent.start(&fabric.node, &[]).unwrap();
    within(CHANGE, "the agent has settled", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        check(
            status["health"]["state"] == "ready" || status["health"]["state"] == "healthy",
            || status["health"].to_string(),
        )?;
        nothing_differs(&fabric)
    });
    let pod = fabric.add_pod(1, 0).unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    // The excluded ENI's own address belongs to the host, and is reached as such.
    let own = testkit::fabric::Place {
        netns: &fabric.node,
        address: "10.0.2.10".parse().unwrap(),
    };
    Protocol::Tcp
        .exchange(fabric.peer(Family::V4), own)
        .unwrap();
    Protocol::Tcp
        .exchange(own, fabric.peer(Family::V4))
        .unwrap();
    let after = of_device(fabric.state().unwrap(), "eth2");
    // The datapath has the host's addresses.
    assert_eq!(difference(&before, &after), "");
    fabric.finish().unwrap();
}

/// Foreign routes in tables of our range that we do not use, and next to ours.
#[test]
fn routes_of_others_in_numbered_tables_stay() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let batch = "\
route add 10.0.0.1 dev eth0 scope link proto kernel table 12
route add default via 10.0.0.1 dev eth0 table 12
route add 10.0.0.1 dev eth0 scope link proto kernel table 16
route add default via 10.0.0.1 dev eth0 table 16
route add 192.0.2.0/24 via 10.0.0.1 dev eth0 table 220 proto static
rule add priority 1536 from 192.0.2.7 lookup 12";
    fabric.node.ip(batch).unwrap();
    let foreign = |fabric: &Fabric| {
        let table = |t: &str| {
            fabric
                .node
                .run(&format!("ip route show table {t}"))
                .unwrap()
        };
        let kept = table("220");
        let static_ = kept.lines().filter(|l| l.contains("192.0.2.0")).count();
        (table("12"), table("16"), static_)
    };
    let before = foreign(&fabric);
    fabric.start_agent().unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    within(CHANGE, "all is well", || nothing_differs(&fabric));
    assert_eq!(foreign(&fabric), before);

    // More specific routes in a table of ours are left to their owner; a second default that
    // precedes ours is not.
    fabric
        .node
        .ip("route add 192.0.2.0/24 via 10.0.0.1 dev eth0 table 11\n\
             route prepend default via 10.0.1.99 dev eth1 onlink table 11")
        .unwrap();
    fabric
        .node
        .run("ip -6 route append default via fe80::99 dev eth1 table 11")
        .unwrap();
    within(HEAL, "the egress route is ours again", || {
        let v4 = fabric.node.run("ip route get 10.0.200.10 mark 0x2000000")?;
        let v6 = fabric.node.run("ip -6 route show table 11")?;
        check(
            v4.contains("via 10.0.1.1 ") && !v6.contains("fe80::99"),
            || {
                format!(
                    "{v4}{v6}{}",
                    fabric
                        .node
                        .run("ip route show table 11")
                        .unwrap_or_default()
                )
            },
        )
    });
    let table = fabric.node.run("ip route show table 11").unwrap();
    assert!(table.contains("192.0.2.0/24"), "{table}");
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.agent.stop().unwrap();
    let done = fabric
        .agent
        .cli(&fabric.node, &["cleanup", "--yes", "--conf-dir=/nowhere"])
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(foreign(&fabric), before);
    let table = fabric.node.run("ip route show table 11").unwrap();
    assert!(table.contains("192.0.2.0/24"), "{table}");
    fabric.finish().unwrap();
}

/// The host lowers the primary's MTU, and raises it again.
#[test]
fn enis_follow_the_primarys_mtu_and_pods_get_through() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [fabric.add_pod(0, 0).unwrap(), fabric.add_pod(1, 0).unwrap()];
    for mtu in [1500, 9001] {
        // The far ends of the links too, or they would send packets that are too large for the
        // ENIs.
        for device in ["eni0", "eni1"] {
            let words = format!("link set {device} mtu {mtu}");
            fabric.vpc.router.ip(&words).unwrap();
        }
        fabric.node.ip(&format!("link set eth0 mtu {mtu}")).unwrap();
        within(HEAL, "ENI 1 follows", || {
            let link = fabric.node.run("ip link show eth1")?;
            check(link.contains(&format!("mtu {mtu} ")), || link.clone())?;
            nothing_differs(&fabric)
        });
        for family in Family::ALL {
            let echo = Echo::start(fabric.peer(family)).unwrap();
            for pod in &pods {
                tcp_bulk(pod.at(family), echo.address(), 1024 * 1024).unwrap();
            }
        }
    }
    fabric.finish().unwrap();
}

/// A document without ENIs: no packet of the pods leaves by the primary, and the status reports it.
#[test]
fn without_enis_pods_are_fenced_and_the_status_says_so() {
    for start in [Stream::start, Stream::start_by_stack] {
        let mut fabric = Fabric::ready(&Spec::default()).unwrap();
        let pods = [fabric.add_pod(0, 0).unwrap(), fabric.add_pod(1, 0).unwrap()];
        let streams = pods
            .each_ref()
            .map(|pod| start(pod.at(Family::V4), fabric.peer(Family::V4), 2000, "udp").unwrap());
        let mut document = fabric.document();
        document["status"]["eni"]["enis"] = json!({});
        fabric.agent.write_document(&document).unwrap();
        let status = within(CHANGE, "the status says so", || {
            let status = get(&fabric, "/v1/status");
            check(status["enis"].as_array().is_some_and(Vec::is_empty), || {
                status["enis"].to_string()
            })?;
            Ok(status)
        });
        println!("health without ENIs: {}", status["health"]);
        assert_ne!(status["health"]["state"], "ready", "{}", status["health"]);
        carry_all(&fabric, End::Pod(&pods[0]), End::Pod(&pods[1]), &[]);
        fabric.agent.start(&fabric.node, &[]).unwrap();
        within(CHANGE, "a new agent says so too", || {
            let status = fabric.agent.ask("GET", "/v1/status", None)?;
            check(status["health"]["state"] == "not-ready", || {
                status["health"].to_string()
            })
        });
        fabric.publish().unwrap();
        fabric.wait_until_ready().unwrap();
        within(CHANGE, "all is well", || nothing_differs(&fabric));
        for (eni, pod) in [0, 1].into_iter().zip(&pods) {
            for protocol in Protocol::ALL {
                carry(
                    [pod.at(Family::V4), fabric.peer(Family::V4)],
                    protocol,
                    &fabric,
                    &[eni],
                );
            }
        }
        for stream in streams {
            println!("{}", stream.finish().unwrap());
        }
        fabric.finish().unwrap();
    }
}
