//! The plugin's STATUS against the agent as it is: it fails until the agent was ready once, and
//! never from then on.

use std::ffi::OsString;
use std::fs;

use serde_json::json;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::{Fabric, Spec};
use towpath_cni::request::config::{Config, Invocation, Role};
use towpath_cni::request::environment::{Command, Variables};
use towpath_cni::spec::SpecVersion;
use towpath_cni::verbs;

use crate::support::CHANGE;

/// Nothing is in the environment.
struct Nothing;

impl Variables for Nothing {
    fn get(&self, _name: &str) -> Option<OsString> {
        None
    }
}

/// The plugin's state folder, which a reboot empties.
const FOLDER: &str = "cni";
/// A part of what the status says of a node without a free address.
const FULL: &str = "pool default has no IPv4 address left";

/// STATUS by a state folder: `None` where the node has a network.
fn status_in(fabric: &Fabric, folder: &str) -> Option<(u32, String)> {
    let config = json!({
        "cniVersion": "1.1.0",
        "name": "towpath",
        "type": "towpath-cni",
        "socket": fabric.agent.socket(),
        "state-dir": fabric.file(folder),
    });
    let invocation = Invocation {
        role: Role::Interface,
        command: Command::Status,
        version: SpecVersion::NEWEST,
    };
    let config = Config::parse(invocation, &config, &[]).unwrap();
    let failure = verbs::run(invocation.role, invocation.command, &config, &Nothing).err()?;
    Some((failure.code.number(), failure.to_string()))
}

/// STATUS by the usual state folder.
pub(crate) fn status(fabric: &Fabric) -> Option<(u32, String)> {
    status_in(fabric, FOLDER)
}

fn fails(fabric: &Fabric, folder: &str, what: &str) {
    let is_said = || {
        let said = status_in(fabric, folder);
        let fits = matches!(&said, Some((50, text)) if text.starts_with(what));
        check(fits, || format!("{said:?} is not: {what}"))
    };
    eventually(CHANGE, what, is_said).unwrap();
}

/// Waits until the agent's status is this, with a reason that has this in it, and it takes pods or not.
fn agent_says(fabric: &Fabric, state: &str, reason: &str) {
    let is_said = || {
        let (_, status) = fabric.agent.request("GET", "/v1/status", None)?;
        let health = &status["health"];
        let fits = health["state"] == state && health["reasons"].to_string().contains(reason);
        check(fits, || health.to_string())?;
        let (code, answer) = fabric.agent.request("GET", "/v1/ready", None)?;
        let takes_pods = state != "not-ready";
        check((code == 200) == takes_pods, || answer.to_string())
    };
    eventually(CHANGE, state, is_said).unwrap();
}

#[test]
fn a_node_that_was_ready_once_stays_so_without_agent_document_or_addresses() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let document = fs::read_to_string(fabric.agent.document_path()).unwrap();
    fails(&fabric, FOLDER, "no agent answers");
    fabric.agent.write_document_text("{").unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    fails(&fabric, FOLDER, "the agent is not ready");
    fabric.agent.write_document_text(&document).unwrap();
    fabric.wait_until_ready().unwrap();
    let is_ready = || check(status(&fabric).is_none(), || "not yet".to_owned());
    eventually(CHANGE, "STATUS succeeds", is_ready).unwrap();

    for n in 0.. {
        let request = json!({"owner": {"container-id": format!("c{n}"), "interface": "eth0"}});
        let answer = fabric.agent.request("PUT", "/v1/addresses", Some(&request));
        let (code, answer) = answer.unwrap();
        if code != 200 {
            assert_eq!(answer["error"]["code"], "pool-exhausted", "{answer}");
            break;
        }
    }
    agent_says(&fabric, "degraded", FULL);
    assert_eq!(status(&fabric), None);
    // The first STATUS of a boot may find the node full.
    assert_eq!(status_in(&fabric, "full"), None);

    fabric.agent.kill().unwrap();
    assert_eq!(status(&fabric), None);
    fails(&fabric, "booted", "no agent answers");
    fabric.agent.write_document_text("{").unwrap();
    // The document that the agent keeps goes with a reboot.
    fs::remove_file(fabric.agent.state_dir().join("node.json")).unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    agent_says(&fabric, "not-ready", "no valid node document");
    assert_eq!(status(&fabric), None);
    fails(&fabric, "booted", "the agent is not ready");
    fabric.agent.write_document_text(&document).unwrap();
    agent_says(&fabric, "degraded", FULL);
    assert_eq!(status(&fabric), None);
    fabric.finish().unwrap();
}
