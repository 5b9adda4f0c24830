//! Connections through the host's service NAT on the direct path: when the programs begin to store
//! them, and the lifetime of their entries. The test program `services` covers each kind of
//! service.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Host;
use testkit::fabric::state::egress_program_ids;
use testkit::fabric::traffic::{Asker, Echo, Session};
use testkit::fabric::{Fabric, Place, Pod};

use crate::masq::{internet, scene, snat};
use crate::masq_netfilter::container;
use crate::support::{CHANGE, get, nothing_differs, within, within_quiet};

const SERVICE_PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// Deadline for a check of connection tracking, which is due every five seconds.
const LOOK: Duration = Duration::from_secs(20);
/// Indexes of the connections that leave the VPC, from the last to the first.
const TO_THE_WORLD: [usize; 2] = [6, 2];

fn services(nat: &str) -> Value {
    json!({"services": {"cidrs": ["172.20.0.0/16", "fd5e::/108"], "nat": nat}})
}

fn service(family: Family) -> IpAddr {
    match family {
        Family::V4 => [172, 20, 0, 10].into(),
        Family::V6 => "fd5e::10".parse().unwrap(),
    }
}

/// A connection whose server can send first.
struct Talk {
    server: Echo,
    session: Session,
}

impl Talk {
    fn open(fabric: &Fabric, client: Place, frontend: SocketAddr, server: Place) -> Self {
        let server = Echo::speaking(server, 0).unwrap();
        fabric.serve(frontend, server.address()).unwrap();
        let session = Session::open(client, 0, frontend).unwrap();
        Self { server, session }
    }

    /// Sends data, first from the server, then from the client.
    #[track_caller]
    fn goes_on(&mut self, when: &str) {
        let heard = self.server.speak(self.session.seen());
        let heard = heard.and_then(|()| self.session.hear());
        heard.unwrap_or_else(|error| panic!("{when}: {error:#}"));
        let spoken = self.session.exchange();
        spoken.unwrap_or_else(|error| panic!("{when}: {error:#}"));
    }
}

/// One connection of each kind that has an entry, in both families.
///
/// A pod connects to ends on this node, on another one and in the world. A client connects to the
/// pod by a node port at another ENI than the pod's.
fn talks(fabric: &Fabric, [pod, other]: &[std::sync::Arc<Pod>; 2]) -> Vec<Talk> {
    let mut talks = Vec::new();
    for family in Family::ALL {
        let client = pod.at(family);
        for (port, server) in (SERVICE_PORT..).zip([
            other.at(family),
            fabric.host(Host::Peer, family),
            internet(fabric, family),
        ]) {
            let frontend = SocketAddr::new(service(family), port);
            talks.push(Talk::open(fabric, client, frontend, server));
        }
        let frontend = SocketAddr::new(snat(fabric, 1, family), NODE_PORT);
        let outside = fabric.host(Host::Outside, family);
        talks.push(Talk::open(fabric, outside, frontend, pod.at(family)));
    }
    talks
}

fn go_on(talks: &mut [Talk], when: &str) {
    for (number, talk) in talks.iter_mut().enumerate() {
        talk.goes_on(&format!("{when}: connection {number}"));
    }
}

/// Programs at the egress of a pod's device.
fn at_egress(fabric: &Fabric, pod: &Pod) -> usize {
    egress_program_ids(&fabric.node, &pod.host_device())
        .unwrap()
        .len()
}

/// Removes the pins of maps.
fn lose(folder: &Path, wanted: fn(&str) -> bool) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            lose(&path, wanted);
        } else if path.parent().unwrap().ends_with("maps") && wanted(&name) {
            fs::remove_file(&path).unwrap();
        }
    }
}

/// Adds a rule of service NAT, and waits until the agent has seen it and its programs run.
fn wait_for_notes(fabric: &Fabric) {
    let nowhere = SocketAddr::new([192, 0, 2, 1].into(), 1);
    fabric.serve(nowhere, nowhere).unwrap();
    within(CHANGE, "notes", || {
        let status = notes(fabric);
        check(status["notes"] == true, || status.to_string())?;
        nothing_differs(fabric)
    });
}

fn notes(fabric: &Fabric) -> Value {
    get(fabric, "/v1/status")["service-nat"].clone()
}

#[test]
fn notes_begin_as_soon_as_rules_are_seen_and_end_with_the_setting() {
    let (mut fabric, pods) = scene(services("auto"));
    assert_eq!(notes(&fabric), json!({"mode": "auto", "notes": false}));
    assert_eq!(at_egress(&fabric, &pods[0]), 0);
    wait_for_notes(&fabric);
    let mut talks = talks(&fabric, &pods);
    let status = notes(&fabric);
    let evidence = status["evidence"].as_str().unwrap();
    assert!(evidence.contains("chain inet services pre"), "{evidence}");
    assert_eq!(at_egress(&fabric, &pods[0]), 1);
    go_on(&mut talks, "once it is on");
    // A rule that was seen once counts as long as the agent runs.
    drop(talks);
    fabric.node.run("nft delete table inet services").unwrap();
    assert_eq!(notes(&fabric)["notes"], true);
    fabric.agent.stop().unwrap();
    fabric.agent.set("/services/nat", &json!("off")).unwrap();
    fabric.start_agent().unwrap();
    let status = notes(&fabric);
    assert_eq!(
        (&status["mode"], &status["notes"]),
        (&json!("off"), &json!(false))
    );
    assert_eq!(at_egress(&fabric, &pods[0]), 0);
    fabric.finish().unwrap();
}

/// The backends' answers bypass the stack, so that no client accepts them.
#[test]
fn with_the_setting_off_what_it_cuts_off_is_counted() {
    let (fabric, [pod, other]) = scene(services("off"));
    let missed = |expected: u64| {
        within(LOOK, "flows are counted", || {
            let status = notes(&fabric);
            check(status["missed"] == expected, || status.to_string())
        });
    };
    missed(0);
    for (port, (family, server)) in (SERVICE_PORT..).zip([
        (Family::V4, other.at(Family::V4)),
        (Family::V6, fabric.host(Host::Peer, Family::V6)),
    ]) {
        let server = Echo::telling(server, 0).unwrap();
        let frontend = SocketAddr::new(service(family), port);
        fabric.serve(frontend, server.address()).unwrap();
        assert!(Session::open(pod.at(family), 0, frontend).is_err());
    }
    missed(2);
    fabric.finish().unwrap();
}

/// Answers return to a network behind a device of the node that is not an ENI.
#[test]
fn containers_of_the_node_are_answered() {
    let (mut fabric, pods) = scene(services("on"));
    let container = container(&mut fabric);
    for family in Family::ALL {
        let client = container.at(family);
        for (pod, eni) in pods.iter().zip([0, 1]) {
            let server = Echo::telling(pod.at(family), 0).unwrap();
            let asker = Asker::open(client, 0, server.address()).unwrap();
            for bytes in [7, 1200] {
                asker.ask(bytes).unwrap();
            }
            let mut session = Session::open(client, 0, server.address()).unwrap();
            session.bulk(1 << 20).unwrap();
            for frontend in [snat(&fabric, eni, family), service(family)] {
                let frontend = SocketAddr::new(frontend, NODE_PORT + u16::from(eni));
                Talk::open(&fabric, client, frontend, pod.at(family)).goes_on("through a service");
            }
        }
    }
    fabric.finish().unwrap();
}

/// A port that was used for a server through a service, and then for the same server directly.
#[test]
fn a_port_that_a_service_has_seen_is_good_for_its_backend_too() {
    const PORT: u16 = 23_456;
    let (fabric, [pod, other]) = scene(services("on"));
    for family in Family::ALL {
        let client = pod.at(family);
        for (port, server) in (SERVICE_PORT..).zip([
            other.at(family),
            fabric.host(Host::Peer, family),
            internet(&fabric, family),
        ]) {
            let server = Echo::telling(server, 0).unwrap();
            let frontend = SocketAddr::new(service(family), port);
            fabric.serve(frontend, server.address()).unwrap();
            for to in [frontend, server.address(), frontend] {
                let ask = || {
                    Session::open(client, PORT, to)?.exchange()?;
                    Asker::open(client, PORT, to)?.ask(7)
                };
                let outcome = ask();
                outcome.unwrap_or_else(|error| panic!("{} by {to}: {error:#}", server.address()));
            }
        }
    }
    fabric.finish().unwrap();
}

/// The programs are filters here, and the configuration names no services.
#[test]
fn node_ports_are_answered_by_clsact_and_without_service_addresses() {
    let (fabric, pods) = scene(json!({"datapath": {"attach": "clsact"}}));
    wait_for_notes(&fabric);
    for family in Family::ALL {
        for pod in &pods {
            let frontend = SocketAddr::new(snat(&fabric, 1, family), NODE_PORT);
            let outside = fabric.host(Host::Outside, family);
            fabric.node.run("nft flush ruleset").unwrap();
            Talk::open(&fabric, outside, frontend, pod.at(family)).goes_on("at once");
        }
    }
    let status = notes(&fabric);
    let warning = status["warning"].as_str().unwrap();
    assert!(warning.contains("services.cidrs"), "{status}");
    fabric.finish().unwrap();
}

/// Selection of the maps that a test loses, by their name.
type Wanted = fn(&str) -> bool;

/// The first install on a live node, a new layout of the maps, or their removal.
#[test]
fn lost_notes_are_renewed_from_conntrack() {
    let (mut fabric, pods) = scene(services("on"));
    let mut talks = talks(&fabric, &pods);
    let cases: [(&str, Wanted); 2] = [("notes", |name| name == "STACK"), ("all maps", |_| true)];
    for (lost, wanted) in cases {
        fabric.agent.stop().unwrap();
        lose(&fabric.pin_root(), wanted);
        fabric.start_agent().unwrap();
        if lost == "all maps" {
            // These were translated by us: conntrack does not have the translation.
            for number in TO_THE_WORLD {
                drop(talks.remove(number));
            }
        }
        go_on(&mut talks, lost);
    }
    fabric.finish().unwrap();
}

/// By then, flows that the agent translates are gone, and the entries' own timeout is over.
#[test]
fn a_note_lives_while_conntrack_has_the_connection() {
    let mut settings = services("on");
    settings["nat"] = json!({"lifetimes": {"tcp-established": 10, "tcp-transitory": 10}});
    let (fabric, pods) = scene(settings);
    let mut talks = talks(&fabric, &pods);
    let world = Echo::telling(internet(&fabric, Family::V4), 0).unwrap();
    let idle = Session::open(pods[0].at(Family::V4), 0, world.address()).unwrap();
    let listed = || {
        get(&fabric, "/v1/nat/flows")["flows"]
            .as_array()
            .unwrap()
            .clone()
    };
    let of_kind = |kind: &str| listed().iter().filter(|flow| flow["kind"] == kind).count();
    let noted = of_kind("stack");
    // The entry of a flow that we translate is in the translation.
    assert_eq!(noted, talks.len() - TO_THE_WORLD.len(), "{:?}", listed());
    // Entries keep their timeout unless a packet comes; our entries follow the timeout of new ones.
    within_quiet(CHANGE, &fabric);
    fabric
        .node
        .run("sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=10")
        .unwrap();
    let port = idle.own().unwrap().port();
    within(6 * CHANGE, "the idle flow's end", || {
        let has = listed().iter().any(|flow| flow["pod-port"] == port);
        check(!has, || "it is there".to_owned())
    });
    assert_eq!(of_kind("stack"), noted);
    go_on(&mut talks, "after its own time");
    // A flush does not remove it either.
    fabric
        .agent
        .ask("POST", "/v1/nat/flush", Some(&json!({"all": true})))
        .unwrap();
    assert_eq!(of_kind("stack"), noted);
    for family in ["ipv4", "ipv6"] {
        let delete = format!("conntrack -D -f {family} -p tcp");
        fabric.node.run(&delete).unwrap();
    }
    within(6 * CHANGE, "the notes' end", || {
        let left = of_kind("stack");
        check(left == 0, || format!("{left} left"))
    });
    fabric.finish().unwrap();
}
