//! STATUS: it fails until the agent was ready once in this boot, and never again.

use std::fs;

use serde_json::json;

use crate::support::{Agent, Answer, Call, Outcome, World};

const NO_AGENT: &str = "no agent answers: no pod can be added";
const NOT_READY: &str = "the agent is not ready: no pod can be added";

fn status(world: &World) -> Outcome {
    Call::new(world, "STATUS", &world.config("1.1.0")).run()
}

/// It fails, and for this reason.
fn fails(world: &World, reason: &str) {
    let (code, text) = status(world).failure();
    assert_eq!(code, 50, "{text}");
    assert!(text.starts_with(reason), "{text}");
}

fn refusal(code: &str) -> Answer {
    let error = json!({"code": code, "message": "m", "retry": true});
    Answer::Json(503, json!({"error": error}))
}

/// An agent that gives this answer to every request; from here on it alone listens at the socket.
fn always(world: &World, answer: Answer) -> Agent {
    fs::remove_file(world.socket()).ok();
    Agent::start(world, move |_request| answer.clone())
}

/// The socket of an agent that is gone.
fn gone(world: &World) {
    fs::remove_file(world.socket()).unwrap();
}

#[test]
fn before_the_agent_was_ready_it_fails_and_says_why() {
    let world = World::new();
    fails(&world, NO_AGENT);
    for (answer, reason) in [
        (Answer::Close, NO_AGENT),
        (refusal("not-ready"), NOT_READY),
        (refusal("of-a-later-agent"), NOT_READY),
    ] {
        let _agent = always(&world, answer);
        // Failing leaves nothing by which the next one would succeed.
        fails(&world, reason);
        fails(&world, reason);
    }
}

#[test]
fn once_the_agent_was_ready_nothing_that_it_says_makes_it_fail() {
    let world = World::new();
    let agent = Agent::willing(&world);
    status(&world).success();
    assert_eq!(agent.calls(), ["GET /v1/ready"]);
    gone(&world);
    status(&world).success();
    let version = json!({"error": {"code": "unknown-version", "message": "v1?"},
        "supported-versions": ["v2"]});
    for answer in [
        refusal("not-ready"),
        refusal("exhausted"),
        Answer::Close,
        Answer::Hang,
        Answer::Json(404, version),
    ] {
        let _agent = always(&world, answer);
        status(&world).success();
    }
}

/// Static pods of a rebooted node may have every address before the first STATUS.
#[test]
fn a_full_node_is_ready_the_first_time_too() {
    let world = World::new();
    let _agent = always(&world, refusal("exhausted"));
    status(&world).success();
    gone(&world);
    status(&world).success();
}

#[test]
fn what_is_queued_is_carried_out_after_it_too() {
    let world = World::new();
    let _agent = Agent::willing(&world);
    status(&world).success();
    gone(&world);
    Call::new(&world, "DEL", &world.config("1.1.0"))
        .run()
        .success();
    assert_eq!(world.queued().len(), 1);
    let _hangs = always(&world, Answer::Hang);
    status(&world).success();
    assert_eq!(world.queued().len(), 1);
    gone(&world);
    let agent = Agent::willing(&world);
    status(&world).success();
    assert_eq!(agent.calls(), ["DELETE /v1/endpoints/0a1b2c/eth0"]);
    assert!(world.queued().is_empty());
}

/// A state folder on a disk survives a reboot; its note of readiness does not.
#[test]
fn an_earlier_boot_does_not_count() {
    let world = World::new();
    let _agent = Agent::willing(&world);
    status(&world).success();
    gone(&world);
    let note = world.path().join("state/was-ready");
    for text in ["3e4b2f6a-0000-4000-8000-000000000000\n", ""] {
        fs::write(&note, text).unwrap();
        fails(&world, NO_AGENT);
    }
    fs::remove_file(note).unwrap();
    fails(&world, NO_AGENT);
}

#[test]
fn a_state_folder_that_cannot_be_written_makes_no_ready_agent_unready() {
    let world = World::new();
    fs::write(world.path().join("state"), "a file in the folder's place").unwrap();
    let _agent = Agent::willing(&world);
    status(&world).success();
    gone(&world);
    fails(&world, NO_AGENT);
}

/// Pods keep their network without our agent. Of another plugin we do not know that.
#[test]
fn a_delegated_plugins_failure_counts_all_the_same() {
    let world = World::new();
    let broken = world.plugins().join("broken");
    world.script(
        "other-ipam",
        r#"[ -e "$(dirname "$0")/broken" ] || exit 0
        echo '{"cniVersion": "1.1.0", "code": 50, "msg": "no daemon"}'; exit 1"#,
    );
    let mut config = world.config("1.1.0");
    config["ipam"] = json!({"type": "other-ipam"});
    let status = || Call::new(&world, "STATUS", &config).run();
    let _agent = Agent::willing(&world);
    fs::write(&broken, "").unwrap();
    let (code, text) = status().failure();
    assert_eq!((code, text.as_str()), (50, "other-ipam: no daemon: "));
    // Our agent was ready by then.
    gone(&world);
    assert_eq!(status().failure().0, 50);
    fs::remove_file(&broken).unwrap();
    status().success();
}

/// The reverse direction: another plugin's STATUS calls ours, under its other name.
#[test]
fn as_the_ipam_of_another_plugin_it_is_no_different() {
    let world = World::new();
    let config = json!({"cniVersion": "1.1.0", "name": "towpath", "type": "macvlan",
        "ipam": {"type": "towpath-ipam", "socket": world.socket(),
            "state-dir": world.path().join("state")}});
    let status = || {
        Call::new(&world, "STATUS", &config)
            .under_the_ipam_name()
            .run()
    };
    assert_eq!(status().failure().0, 50);
    let _agent = Agent::willing(&world);
    status().success();
    gone(&world);
    status().success();
}
