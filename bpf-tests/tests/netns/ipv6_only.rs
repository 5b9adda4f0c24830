//! A node without IPv4: what its agent gives, says and has services do.

use std::fs;
use std::net::SocketAddr;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::document::document;
use testkit::fabric::eventually::check;
use testkit::fabric::layout::{Addressing, Eni, Host};
use testkit::fabric::traffic::{Echo, Protocol, Session};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Netns, Place, Spec};

use crate::cni_status::status;
use crate::exposition::ask_at;
use crate::masq::{scene_of, snat};
use crate::support::{CHANGE, End, PEER, carry, get, nothing_differs, within};

const V6: Family = Family::V6;
/// Where probes and Prometheus ask.
const PROBES: &str = "[::1]:9971";
const METRICS: &str = "[::]:9972";

/// A node without IPv4 whose agent gives addresses.
fn allocating(settings: &Value) -> Fabric {
    let spec = Spec {
        v6_only: vec![0, 1],
        ..Spec::with_world(settings.clone())
    };
    Fabric::ready(&spec).unwrap()
}

#[test]
fn the_agent_gives_ipv6_alone_where_its_families_are_that() {
    let fabric = allocating(&json!({"ipam": {"families": ["ipv6"]}}));
    let netns = Netns::create(&format!("{}-guest", fabric.node.name())).unwrap();
    let request = json!({
        "owner": {"container-id": netns.name(), "interface": "eth0"},
        "netns": netns.path(),
    });
    let answer = fabric.agent.ask("PUT", "/v1/endpoints", Some(&request));
    let answer = answer.unwrap();
    let given = answer["addresses"].as_array().unwrap();
    assert_eq!(given.len(), 1, "{answer}");
    let guest = Place {
        netns: &netns,
        address: given[0]["address"].as_str().unwrap().parse().unwrap(),
    };
    assert!(guest.address.is_ipv6());
    for protocol in Protocol::ALL {
        protocol.exchange(guest, fabric.peer(V6)).unwrap();
        protocol.exchange(fabric.peer(V6), guest).unwrap();
    }
    fabric.agent.ask("GET", "/v1/ready", None).unwrap();
    let health = &get(&fabric, "/v1/status")["health"];
    assert_eq!(health["state"], "ready", "{health}");
    let shown = fabric.agent.cli(&fabric.node, &["status"]).unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(!shown.contains("IPv4"), "{shown}");
    drop(netns);
    fabric.finish().unwrap();
}

#[test]
fn status_and_probes_succeed_where_there_is_no_ipv4() {
    let mut fabric = Fabric::create(&Spec {
        v6_only: vec![0, 1],
        ..Spec::with_world(json!({
            "ipam": {"families": ["ipv6"]},
            "http": {"address": PROBES},
            "metrics": {"address": METRICS},
        }))
    })
    .unwrap();
    let document = fs::read_to_string(fabric.agent.document_path()).unwrap();
    fabric.agent.write_document_text("{").unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    let probe = |path: &str| ask_at(&fabric.node, PROBES, &[], path);
    within(CHANGE, "the agent lives", || {
        let answer = probe("/healthz")?;
        check(answer == (200, "ok\n".to_owned()), || format!("{answer:?}"))
    });
    assert_eq!(probe("/readyz").unwrap().0, 503);
    assert!(status(&fabric).is_some_and(|(code, _)| code == 50));

    fabric.agent.write_document_text(&document).unwrap();
    within(CHANGE, "the agent is ready", || {
        let answer = probe("/readyz")?;
        check(answer == (200, "ready\n".to_owned()), || {
            format!("{answer:?}")
        })
    });
    assert_eq!(probe("/healthz").unwrap(), (200, "ok\n".to_owned()));
    within(CHANGE, "STATUS succeeds", || {
        let failure = status(&fabric);
        check(failure.is_none(), || format!("{failure:?}"))
    });
    // A Prometheus in the VPC.
    let own = fabric.eni(0).unwrap().own_address(V6).unwrap();
    let address = SocketAddr::new(own, 9972).to_string();
    let scraped = ask_at(fabric.peer(V6).netns, &address, &[], "/metrics").unwrap();
    assert!(scraped.1.contains("\ntowpath_ready 1\n"), "{scraped:?}");
    fabric.finish().unwrap();
}

#[test]
fn a_request_for_ipv4_is_refused_where_there_is_none() {
    let fabric = allocating(&json!({}));
    let request = json!({"owner": {"container-id": "c", "interface": "eth0"}});
    let answer = fabric.agent.request("PUT", "/v1/addresses", Some(&request));
    let (code, answer) = answer.unwrap();
    assert_ne!(code, 200, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("ipam.families"), "{message}");
    // Nothing else is wrong with the node.
    within(CHANGE, "a ready node", || {
        let (code, answer) = fabric.agent.request("GET", "/v1/ready", None)?;
        check(code == 200, || answer.to_string())
    });
    fabric.finish().unwrap();
}

#[test]
fn services_answer_on_a_node_without_ipv4() {
    for path in ["direct", "stack"] {
        let services = json!({"cidrs": ["fd5e::/108"], "nat": "on"});
        let spec = Spec {
            v6_only: vec![0, 1],
            ..Spec::with_world(json!({"services": services, "datapath": {"path": path}}))
        };
        let (fabric, pods) = scene_of(&spec);
        let servers = [
            pods[1].at(V6),
            fabric.host(Host::Peer, V6),
            fabric.world().unwrap().at(Site::Internet, V6),
        ];
        for (port, server) in (80..).zip(servers) {
            let frontend = SocketAddr::new("fd5e::10".parse().unwrap(), port);
            talk(&fabric, pods[0].at(V6), frontend, server);
        }
        let frontend = SocketAddr::new(snat(&fabric, 1, V6), 30_080);
        talk(
            &fabric,
            fabric.host(Host::Outside, V6),
            frontend,
            pods[0].at(V6),
        );
        within(CHANGE, "nothing differs", || nothing_differs(&fabric));
        fabric.finish().unwrap();
    }
}

/// A client's connection to a service, in which either side speaks.
#[track_caller]
fn talk(fabric: &Fabric, client: Place, frontend: SocketAddr, server: Place) {
    let server = Echo::speaking(server, 0).unwrap();
    fabric.serve(frontend, server.address()).unwrap();
    let mut session = Session::open(client, 0, frontend).unwrap();
    session.exchange().unwrap();
    server.speak(session.seen()).unwrap();
    session.hear().unwrap();
}

#[test]
fn a_document_of_enis_without_ipv4_is_laid_out_and_served() {
    let eni = |number| {
        Eni::new(number, Addressing::Prefixes)
            .with_own_v6()
            .without_v4()
    };
    let text = document(&[eni(0), eni(1)]).to_string();
    let spec = Spec {
        document: Some(text),
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    for eni in [0, 1] {
        let pod = fabric.add_pod(eni, 0).unwrap();
        for protocol in Protocol::ALL {
            let (pod, peer) = (pod.at(V6), PEER.at(&fabric, V6));
            carry([pod, peer], protocol, &fabric, &[eni]);
            carry([peer, pod], protocol, &fabric, &[eni]);
            carry([End::Node.at(&fabric, V6), pod], protocol, &fabric, &[]);
        }
    }
    within(CHANGE, "nothing differs", || nothing_differs(&fabric));
    fabric.finish().unwrap();
}
