//! Pods with a qdisc or a foreign program in the host's stack: their packets take the stack in both
//! directions, and those of other pods do not.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::program::{Action, ForeignProgram, Hook, Position};
use testkit::fabric::traffic::{Asker, Echo, Session, ping};
use testkit::fabric::{Fabric, Place, Pod};

use crate::masq::{internet, scene, translated};
use crate::support::{CHANGE, End, OUTSIDE, PEER, carry_all, count, get, within};

/// A shaper with a higher rate than any test needs.
const SHAPER: &str = "tbf rate 1gbit burst 1mb latency 100ms";

fn with_service_nat(service_nat: &str) -> Value {
    json!({"services": {"nat": service_nat}})
}

/// Note of the status on a pod's endpoint.
fn note(fabric: &Fabric, pod: &Pod) -> Option<String> {
    let status = get(fabric, "/v1/status");
    let device = pod.host_device();
    let notes = status["endpoint-notes"].as_object()?.clone();
    let mut notes = notes.values().filter_map(|note| note.as_str());
    notes.find(|note| note.contains(&device)).map(str::to_owned)
}

#[track_caller]
fn wait_until_it_takes_the_stack(fabric: &Fabric, pod: &Pod, why: &str) {
    within(CHANGE, "a pod's packets take the stack", || {
        let note = note(fabric, pod);
        check(note.as_ref().is_some_and(|n| n.contains(why)), || {
            format!("{note:?}")
        })
    });
}

#[track_caller]
fn wait_until_it_does_not(fabric: &Fabric, pod: &Pod) {
    within(CHANGE, "a pod's packets go past the stack", || {
        let note = note(fabric, pod);
        check(note.is_none(), || format!("{note:?}"))
    });
}

/// Expects that the node is ready, as a limit of one pod is no fault of the node.
#[track_caller]
fn is_ready_and_says(fabric: &Fabric, note: &str) {
    let output = fabric.agent.cli(&fabric.node, &["status"]).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("Health: ready") && text.contains(note),
        "{text}"
    );
    assert!(!text.contains("ingress qdisc"), "{text}");
}

/// Packets that a device's root qdisc has sent.
fn shaped(fabric: &Fabric, device: &str) -> u64 {
    let text = fabric
        .node
        .run(&format!("tc -j -s qdisc show dev {device} root"));
    let qdiscs: Value = serde_json::from_str(&text.unwrap()).unwrap();
    qdiscs[0]["packets"].as_u64().unwrap()
}

/// Number of packets that were redirected from and to pods.
fn redirected(fabric: &Fabric) -> u64 {
    [
        ("from_endpoint", &["local", "eni", "translated"][..]),
        ("from_network", &["local", "returned"][..]),
    ]
    .into_iter()
    .flat_map(|(program, outcomes)| outcomes.iter().map(move |outcome| (program, outcome)))
    .map(|(program, outcome)| count(fabric, program, outcome))
    .sum()
}

/// Makes exchanges of all kinds from a pod, and in the other direction.
fn talk(fabric: &Fabric, pod: &Pod, other: &Pod, eni: u8) {
    translated(fabric, pod, eni);
    for there in [PEER, OUTSIDE] {
        carry_all(fabric, there, End::Pod(pod), &[eni]);
    }
    carry_all(fabric, End::Pod(pod), PEER, &[eni]);
    carry_all(fabric, End::Pod(pod), End::Pod(other), &[]);
    carry_all(fabric, End::Pod(other), End::Pod(pod), &[]);
}

/// A connection and a UDP client at one server, which continue on every path.
struct Open {
    session: Session,
    asker: Asker,
    server: Echo,
}

impl Open {
    #[track_caller]
    fn between((client, server): (Place, Place)) -> Self {
        let server = Echo::telling(server, 0).unwrap();
        let to = server.address();
        Self {
            session: Session::open(client, 0, to).unwrap(),
            asker: Asker::open(client, 0, to).unwrap(),
            server,
        }
    }

    #[track_caller]
    fn goes_on(&mut self) {
        let to = self.server.address();
        for result in [self.session.exchange(), self.session.bulk(1 << 18)] {
            result.unwrap_or_else(|error| panic!("TCP to {to}: {error:#}"));
        }
        if let Err(error) = self.asker.ask(100) {
            panic!("UDP to {to}: {error:#}");
        }
    }
}

#[test]
fn a_shaped_pods_packets_take_it_both_ways_and_open_flows_go_on() {
    for service_nat in ["off", "on"] {
        let (fabric, [pod, other]) = scene(with_service_nat(service_nat));
        let device = pod.host_device();
        let pairs = Family::ALL.map(|family| {
            [
                (pod.at(family), fabric.peer(family)),
                (fabric.peer(family), pod.at(family)),
                (pod.at(family), internet(&fabric, family)),
                (pod.at(family), other.at(family)),
                (other.at(family), pod.at(family)),
            ]
        });
        let mut open: Vec<Open> = pairs.concat().into_iter().map(Open::between).collect();
        let mut all_go_on = || open.iter_mut().for_each(Open::goes_on);
        all_go_on();
        assert_eq!(note(&fabric, &pod), None);
        let node = &fabric.node;
        node.run(&format!("tc qdisc add dev {device} root {SHAPER}"))
            .unwrap();
        wait_until_it_takes_the_stack(&fabric, &pod, "a tbf qdisc");
        assert_eq!(note(&fabric, &other), None);
        is_ready_and_says(&fabric, "a tbf qdisc");
        all_go_on();

        let (past, before) = (redirected(&fabric), shaped(&fabric, &device));
        all_go_on();
        talk(&fabric, &pod, &other, 0);
        assert_eq!(redirected(&fabric), past, "services.nat {service_nat}");
        assert!(shaped(&fabric, &device) > before + 50);
        carry_all(&fabric, End::Pod(&other), PEER, &[1]);
        assert!(
            redirected(&fabric) > past,
            "another pod's packets go past the stack"
        );

        node.run(&format!("tc qdisc del dev {device} root"))
            .unwrap();
        wait_until_it_does_not(&fabric, &pod);
        all_go_on();
        let past = redirected(&fabric);
        talk(&fabric, &pod, &other, 0);
        assert!(redirected(&fabric) > past, "services.nat {service_nat}");
        fabric.finish().unwrap();
    }
}

/// A program after ours at the ingress, and any at the egress, misses redirected packets.
///
/// The pod's packets are therefore not redirected, and those that the program drops are dropped.
#[test]
fn what_a_program_of_somebody_else_drops_is_dropped() {
    let (fabric, [pod, other]) = scene(with_service_nat("off"));
    let device = pod.host_device();
    for (hook, side) in [
        (Hook::Ingress, "at its ingress"),
        (Hook::Egress, "at its egress"),
    ] {
        let folder = fabric.pin_root().with_file_name("");
        let mut program = ForeignProgram::load("policy", &folder, Action::Drop).unwrap();
        program
            .attach_tcx_at(&fabric.node, &device, hook, Position::Last)
            .unwrap();
        // The kernel sends no event for such a program: the agent finds it by itself.
        wait_until_it_takes_the_stack(&fabric, &pod, side);
        for family in Family::ALL {
            let runs = program.runs().unwrap();
            for (from, to) in [
                (pod.at(family), fabric.peer(family)),
                (pod.at(family), other.at(family)),
                (other.at(family), pod.at(family)),
            ] {
                assert!(ping(from, to.address, &["-W", "0.2"]).is_err(), "{hook:?}");
            }
            assert!(program.runs().unwrap() >= runs + 3, "{hook:?}");
        }
        carry_all(&fabric, End::Pod(&other), PEER, &[1]);
        drop(program);
        wait_until_it_does_not(&fabric, &pod);
        talk(&fabric, &pod, &other, 0);
    }
    fabric.finish().unwrap();
}
