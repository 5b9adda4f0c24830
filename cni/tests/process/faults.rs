//! The plugin killed at every point: the runtime's next call, a DEL, leaves nothing.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::{Agent, Call, Request, World, willing};

fn points() -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_towpath-cni"))
        .arg("--list-fault-points")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "the binary has no fault points: cargo test -p towpath-cni --features fault-points"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Endpoints and leases of the owners, as the agent would have them.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<BTreeSet<String>>>);

impl Held {
    fn agent(&self, world: &World) -> Agent {
        let held = self.clone();
        Agent::start(world, move |request| {
            held.note(request);
            willing(request)
        })
    }

    fn note(&self, request: &Request) {
        let mut held = self.0.lock().unwrap();
        match request.method.as_str() {
            "PUT" => {
                let owner = &request.body.as_ref().unwrap()["owner"];
                let text = |key: &str| owner[key].as_str().unwrap().to_owned();
                held.insert(format!("{}/{}", text("container-id"), text("interface")));
            }
            "DELETE" => {
                let owner = request.path.splitn(4, '/').nth(3).unwrap();
                held.remove(owner);
            }
            _ => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

/// The configuration of a call that reaches a point.
fn config(world: &World, point: &str) -> Value {
    let mut config = world.config("1.1.0");
    if point.starts_with("claim") {
        config = json!({"cniVersion": "1.1.0", "name": "towpath", "type": "macvlan",
            "ipam": {"type": "towpath-ipam", "socket": world.socket(),
                "state-dir": world.path().join("state")}});
    }
    if point.starts_with("delegate") {
        config["ipam"] = json!({"type": "other-ipam"});
    }
    config["cni.dev/valid-attachments"] = json!([]);
    config
}

/// Nothing is left of the container, neither in the agent nor in the queue nor at the delegate.
fn nothing_is_left(world: &World, held: &Held, point: &str) {
    assert!(held.is_empty(), "{point}");
    let entries = world
        .queued()
        .into_iter()
        .filter(|name| !name.starts_with(".new-"));
    assert_eq!(entries.collect::<Vec<_>>(), Vec::<String>::new(), "{point}");
    assert!(!world.plugins().join("other-ipam.held").exists(), "{point}");
}

/// Kills the plugin at a point, in a call that reaches it, and does what a runtime does then.
fn kill_at(point: &str) {
    let world = World::new();
    let held = Held::default();
    world.script(
        "other-ipam",
        r#"[ "$CNI_COMMAND" = ADD ] && touch "$0.held" || rm -f "$0.held"
        echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.1.77/24"}]}'"#,
    );
    let is_ipam = point.starts_with("claim");
    let config = config(&world, point);
    let call = |command| {
        let call = Call::new(&world, command, &config);
        if is_ipam {
            call.under_the_ipam_name()
        } else {
            call
        }
    };
    let group = point.split('.').next().unwrap();
    let is_queueing = matches!(point, "queue.write" | "queue.rename" | "queue.renamed");
    let is_draining = group == "queued" || point == "queue.remove";
    if is_draining {
        call("DEL").run().success();
    }
    let agent = (!is_queueing).then(|| held.agent(&world));
    let command = match group {
        "add" | "claim" | "print" | "delegate" => "ADD",
        "gc" => "GC",
        "del" | "queue" if !is_draining => "DEL",
        _ => "STATUS",
    };
    if command == "DEL" && !is_queueing {
        call("ADD").run().success();
    }
    let killed = call(command).with("TOWPATH_CNI_FAULT", point).run();
    assert_eq!(
        killed.code, None,
        "{point} is not reached: {}",
        killed.printed
    );
    let _agent = agent.unwrap_or_else(|| held.agent(&world));

    call("DEL").run().success();
    nothing_is_left(&world, &held, point);
    // The container can be added again.
    call("ADD").run().success();
    assert!(!held.is_empty(), "{point}");
}

#[test]
fn a_del_after_a_kill_at_any_point_leaves_nothing() {
    let points = points();
    assert!(points.len() >= 20, "{points:?}");
    for point in points {
        kill_at(&point);
    }
}

#[test]
fn a_fault_that_names_no_point_is_an_error() {
    let world = World::new();
    let _agent = Agent::willing(&world);
    let config = world.config("1.1.0");
    let outcome = Call::new(&world, "ADD", &config)
        .with("TOWPATH_CNI_FAULT", "add.nothing")
        .run();
    assert_eq!(outcome.code, Some(101), "a panic");
    assert_eq!(outcome.printed, Value::Null);
}
