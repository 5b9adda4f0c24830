//! An agent in a PID namespace of its own, as its pod has one where the host's is not shared.

use std::os::unix::fs::symlink;

use serde_json::json;
use testkit::fabric::{Fabric, Spec};

#[test]
fn a_namespace_that_a_process_names_is_refused_by_an_agent_that_sees_none() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    fabric.agent.hide_processes().unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    fabric.publish().unwrap();
    fabric.wait_until_ready().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    symlink("/proc/self/ns/net", &link).unwrap();
    // The last is there for the agent too, and is its own.
    for path in [
        "/proc/5133/ns/net",
        link.to_str().unwrap(),
        "/proc/1/ns/net",
    ] {
        let body = json!({
            "owner": {"container-id": "c", "interface": "eth0"}, "netns": path
        });
        let (status, answer) = fabric
            .agent
            .request("PUT", "/v1/endpoints", Some(&body))
            .unwrap();
        let error = &answer["error"];
        assert_eq!(
            (status, &error["field"]),
            (400, &json!("netns")),
            "{answer}"
        );
        let message = error["message"].as_str().unwrap();
        let words = " names a process, and the agent runs in a pod without the host's PIDs";
        assert!(message.starts_with(&format!("{path}{words}")), "{message}");
    }
    // A file is the same to both.
    fabric.add_pod(1, 0).unwrap();
    fabric.finish().unwrap();
}
