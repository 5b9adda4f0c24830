//! Unusual input, and output beyond the result.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Agent, Call, World};

#[test]
fn what_is_no_json_is_refused_with_code_6() {
    let world = World::new();
    let config = world.config("1.1.0");
    for input in ["", "{", "nonsense", "{\"cniVersion\": \"1.1.0\"} x"] {
        let outcome = Call::new(&world, "ADD", &config)
            .input(input.as_bytes())
            .run();
        let (code, text) = outcome.failure();
        assert_eq!(code, 6, "{input:?}");
        assert!(
            text.starts_with("the network configuration is not valid JSON: "),
            "{text}"
        );
    }
}

#[test]
fn version_needs_no_input_and_no_variable_but_the_command() {
    let world = World::new();
    let mut call = Call::new(&world, "VERSION", &Value::Null).input(b"");
    for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_PATH"] {
        call = call.without(name);
    }
    assert_eq!(call.run().success()["cniVersion"], "1.1.0");
}

#[test]
fn an_unknown_command_is_refused_with_code_4() {
    let world = World::new();
    let config = world.config("1.1.0");
    let (code, text) = Call::new(&world, "UPDATE", &config).run().failure();
    assert_eq!(code, 4);
    assert!(
        text.starts_with("CNI_COMMAND is \"UPDATE\": ADD, DEL, CHECK"),
        "{text}"
    );
    let outcome = Call::new(&world, "ADD", &config)
        .without("CNI_COMMAND")
        .run();
    assert_eq!(outcome.failure().0, 4);
}

#[test]
fn calls_are_noted_where_a_log_is_wanted() {
    let world = World::new();
    let mut config = world.config("1.1.0");
    config["log-file"] = json!(world.path().join("log"));
    let agent = Agent::willing(&world);
    Call::new(&world, "ADD", &config).run().success();
    let checked = Call::new(&world, "CHECK", &config).run();
    assert_eq!(checked.failure().0, 7);
    let log = fs::read_to_string(world.path().join("log")).unwrap();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(
        lines[0].contains(" ADD towpath 0a1b2c/eth0 done ("),
        "{log}"
    );
    assert!(
        lines[1].contains(" CHECK towpath 0a1b2c/eth0 failed with code 7: "),
        "{log}"
    );

    // A log that cannot be written stops no pod.
    config["log-file"] = json!(world.path().join("no/such/folder"));
    Call::new(&world, "ADD", &config).run().success();
    assert_eq!(agent.calls().len(), 2);
}

/// Otherwise a runtime that has such an id could never clean up.
#[test]
fn a_delete_of_what_an_add_refuses_has_nothing_to_do() {
    let world = World::new();
    let config = world.config("1.1.0");
    let agent = Agent::willing(&world);
    let long = "x".repeat(256);
    for id in ["k8s://abc", "a:b", &long] {
        let call = |command| Call::new(&world, command, &config).with("CNI_CONTAINERID", id);
        assert_eq!(call("ADD").run().failure().0, 4, "{id}");
        call("DEL").run().success();
    }
    assert_eq!(agent.calls().len(), 0);
}
