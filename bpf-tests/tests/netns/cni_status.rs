//! The plugin's STATUS against the agent as it is: a node that is full is told from one that is not
//! ready.

use std::ffi::OsString;
use std::fs;

use bpf_tests::fabric::eventually::{check, eventually};
use bpf_tests::fabric::{Fabric, Spec};
use serde_json::json;
use towpath_cni::config::{Config, Role};
use towpath_cni::environment::{Command, Variables};
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

/// What STATUS says: `None` where pods can be added.
fn status(fabric: &Fabric) -> Option<(u32, String)> {
    let config = json!({
        "cniVersion": "1.1.0",
        "name": "towpath",
        "type": "towpath-cni",
        "socket": fabric.agent.socket(),
        "state-dir": fabric.file("cni"),
    });
    let (role, version) = (Role::Interface, SpecVersion::NEWEST);
    let config = Config::parse(role, Command::Status, version, &config, &[]).unwrap();
    let failure = verbs::run(role, Command::Status, &config, &Nothing).err()?;
    Some((failure.code.number(), failure.to_string()))
}

fn says(fabric: &Fabric, what: &str) {
    let is_said = || {
        let said = status(fabric);
        let fits = matches!(&said, Some((50, text)) if text.starts_with(what));
        check(fits, || format!("{said:?} is not: {what}"))
    };
    eventually(CHANGE, what, is_said).unwrap();
}

#[test]
fn a_node_without_addresses_is_told_from_one_that_is_not_ready() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    assert_eq!(status(&fabric), None);
    for n in 0.. {
        let request = json!({"owner": {"container-id": format!("c{n}"), "interface": "eth0"}});
        let answer = fabric.agent.request("PUT", "/v1/addresses", Some(&request));
        let (code, answer) = answer.unwrap();
        if code != 200 {
            assert_eq!(answer["error"]["code"], "pool-exhausted", "{answer}");
            break;
        }
    }
    says(&fabric, "no addresses left");

    // Full as it is: without a document nobody knows what it has.
    let document = fs::read_to_string(fabric.agent.document_path()).unwrap();
    fabric.agent.kill().unwrap();
    says(&fabric, "no agent answers");
    fabric.agent.write_document_text("{").unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    says(&fabric, "the agent is not ready");
    fabric.agent.write_document_text(&document).unwrap();
    says(&fabric, "no addresses left");
    fabric.finish().unwrap();
}
