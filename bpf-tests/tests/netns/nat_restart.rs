//! Flows and a new agent: what is adopted, what a change of the settings does to them.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Asker, Echo, Session};

use crate::masq::{FIRST_PORT, internet, scene};
use crate::support::{CHANGE, get, within};

/// A port that no setting here has among its own.
const LOW: u16 = 20_000;

fn listed(fabric: &testkit::fabric::Fabric) -> Vec<Value> {
    let list = get(fabric, "/v1/nat/flows");
    list["flows"].as_array().unwrap().clone()
}

#[test]
fn flows_outlive_a_change_of_the_ports() {
    let ports = |text: &str| json!([text]);
    let (mut fabric, [pod, _]) = scene(json!({"nat": {"ports": ports("40960-65535")}}));
    let mut flows = Vec::new();
    let mut servers = Vec::new();
    for family in Family::ALL {
        let (from, to) = (pod.at(family), internet(&fabric, family));
        let server = Echo::telling(to, 0).unwrap();
        for port in [LOW, LOW + 1, LOW + 2, FIRST_PORT + 9] {
            let session = Session::open(from, port, server.address()).unwrap();
            let asker = Asker::open(from, port, server.address()).unwrap();
            let seen = asker.ask(7).unwrap();
            flows.push((session, asker, seen));
        }
        servers.push(server);
    }
    let all = listed(&fabric).len();
    assert_eq!(all, 16);
    for now in ["32768-65535", "40960-65535"] {
        fabric.agent.stop().unwrap();
        fabric.agent.set("/nat/ports", &ports(now)).unwrap();
        fabric.start_agent().unwrap();
        for (session, asker, seen) in &mut flows {
            session.exchange().unwrap();
            assert_eq!(asker.ask(7).unwrap(), *seen, "{now}");
        }
        assert_eq!(listed(&fabric).len(), all, "{now}: none is made anew");
    }
    assert!(!fabric.agent.log().contains("no longer uses"));
    // New agents count what there is: nothing has to be corrected.
    within(CHANGE, "a sweep", || {
        let sweeper = &get(&fabric, "/v1/nat/stats")["sweeper"];
        check(sweeper["last-sweep"].is_object(), || sweeper.to_string())
    });
    let sweeper = &get(&fabric, "/v1/nat/stats")["sweeper"];
    assert_eq!(sweeper["quotas-corrected"], 0, "{sweeper}");
    // A flow with a port that translation no longer uses is logged.
    fabric.agent.stop().unwrap();
    fabric
        .agent
        .set("/nat/ports", &ports("32768-33279"))
        .unwrap();
    fabric.start_agent().unwrap();
    assert!(fabric.agent.log().contains("no longer uses"));
    let server = &servers[0];
    let new = Asker::open(pod.at(Family::V4), LOW + 9, server.address()).unwrap();
    let port = new.ask(7).unwrap().port();
    assert!((32_768..=33_279).contains(&port), "{port}");
    fabric.finish().unwrap();
}

#[test]
fn a_changed_room_is_told() {
    let flows = json!({"ipv4": 1024, "ipv6": 1024, "inbound": 1024, "per-endpoint": 512});
    let (mut fabric, [pod, _]) = scene(json!({"nat": {"flows": flows}}));
    let server = Echo::telling(internet(&fabric, Family::V4), 0).unwrap();
    let asker = Asker::open(pod.at(Family::V4), LOW, server.address()).unwrap();
    asker.ask(7).unwrap();
    fabric.agent.stop().unwrap();
    fabric.agent.set("/nat/flows/ipv4", &json!(2048)).unwrap();
    fabric.start_agent().unwrap();
    let log = fabric.agent.log();
    let warned = log
        .lines()
        .any(|line| line.contains("WARN") && line.contains("FLOWS_V4"));
    assert!(warned, "{log}");
    asker.ask(7).unwrap();
    assert_eq!(listed(&fabric).len(), 1);
    fabric.finish().unwrap();
}
