//! The agent and another CNI at work on the node.

use std::os::unix::net::UnixListener;
use std::process::Output;

use bpf_tests::fabric::{Fabric, Spec};
use serde_json::json;

/// What the agent says where it does not start.
fn refused(fabric: &Fabric) -> String {
    let mut command = fabric.agent.command(&fabric.node, &["run"]);
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1), "{said}");
    said
}

#[test]
fn an_agent_does_not_start_into_another_cni_unless_told() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let node = |line: &str| fabric.node.ip(line).unwrap();
    // Left behind by one that is gone.
    node("rule add pref 512 to 10.0.1.77 lookup main");
    node("link add eni8478779f379 type veth peer name eth9");
    let said = refused(&fabric);
    for words in [
        "another CNI is at work on this node: Amazon VPC CNI (aws-node): pods have devices such as \
         eni8478779f379",
        "Remove its DaemonSet and drain the node first (docs/kubernetes.md",
        "node.other-cni: ignore",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    node("link del eni8478779f379");

    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cilium/cilium.sock");
    std::fs::create_dir(socket.parent().unwrap()).unwrap();
    let listener = fabric.node.enter(|| Ok(UnixListener::bind(&socket)?));
    let said = refused(&fabric);
    assert!(said.contains("Cilium: cilium-agent listens at "), "{said}");
    drop(listener);

    // Its rule and its file are no reason to stop.
    assert!(socket.exists());
    fabric.start_agent().unwrap();
    fabric.add_pod(1, 0).unwrap();
    fabric.agent.stop().unwrap();

    // The agent's own pods need it, whatever runs beside them.
    fabric
        .node
        .ip("link add eni8478779f379 type veth peer name eth9")
        .unwrap();
    fabric.start_agent().unwrap();
    let status = fabric.agent.ask("GET", "/v1/status", None).unwrap();
    let warning = status["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("another CNI is at work"), "{warning}");
    fabric.finish().unwrap();
}

#[test]
fn an_agent_that_is_told_starts_into_another_cni() {
    let settings = json!({"node": {"other-cni": "ignore"}});
    let spec = Spec {
        settings,
        ..Spec::default()
    };
    let mut fabric = Fabric::create(&spec).unwrap();
    fabric
        .node
        .ip("link add eni8478779f379 type veth peer name eth9")
        .unwrap();
    fabric.start_agent().unwrap();
    fabric.add_pod(1, 0).unwrap();
    fabric.finish().unwrap();
}
