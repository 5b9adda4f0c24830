//! State of a cluster: its nodes, their agents, its pods, and packets that the source check
//! dropped.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;
use testkit::fabric::{Netns, agent, command, source_check};
use testkit::kubernetes::program;

use crate::place::{Node, Place};

/// The state of the cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Status {
    ok: bool,
    nodes: Vec<NodeStatus>,
    pods: usize,
    pods_ready: usize,
    /// Packets that left by an ENI that does not own their source.
    foreign: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct NodeStatus {
    name: String,
    ready: bool,
    version: String,
    /// The agent's health.
    agent: String,
    enis_ready: usize,
    endpoints: usize,
}

/// Shows the state; fails unless all is well.
pub(crate) fn show(place: &Place, as_json: bool) -> Result<ExitCode> {
    let status = status(place)?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print(&status);
    }
    Ok(if status.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn status(place: &Place) -> Result<Status> {
    let nodes = get(place, "nodes")?;
    let nodes = place.nodes.iter().map(|node| node_status(node, &nodes));
    let nodes = nodes.collect::<Result<Vec<_>>>()?;
    let pods = get(place, "pods")?;
    let pods = items(&pods);
    let pods_ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let router = Netns::foreign(&place.router)?;
    let foreign = source_check::foreign(&router)?.values().sum();
    let well = |node: &NodeStatus| node.ready && node.agent != "not-ready";
    Ok(Status {
        ok: foreign == 0 && pods_ready == pods.len() && nodes.iter().all(well),
        pods: pods.len(),
        pods_ready,
        nodes,
        foreign,
    })
}

fn node_status(node: &Node, known: &Value) -> Result<NodeStatus> {
    let found = items(known)
        .iter()
        .find(|one| one["metadata"]["name"] == node.name.as_str());
    let netns = Netns::foreign(&node.netns)?;
    let ask = |word: &str| -> Result<Value> {
        let mut towpath = netns.command(&agent::binary()?.to_string_lossy());
        towpath
            .arg("--config")
            .arg(&node.config)
            .args([word, "-o", "json"]);
        // A node that is not ready has an exit code of its own, and still an answer.
        let output = command::output(&mut towpath)?;
        serde_json::from_slice(&output.stdout).context("the agent's answer")
    };
    let (status, endpoints) = (ask("status"), ask("endpoints"));
    let status = status.unwrap_or_default();
    let ready = items_of(&status["enis"]).iter();
    let ready = ready.filter(|eni| eni["readiness"]["state"] == "ready");
    Ok(NodeStatus {
        name: node.name.clone(),
        ready: found.is_some_and(is_ready),
        version: text(found, "/status/nodeInfo/kubeletVersion"),
        agent: text(Some(&status), "/health/state"),
        enis_ready: ready.count(),
        endpoints: endpoints.map_or(0, |all| items_of(&all).len()),
    })
}

fn print(status: &Status) {
    println!(
        "{:<16} {:<6} {:<9} {:<10} {:>5} {:>10}",
        "NODE", "READY", "VERSION", "AGENT", "ENIS", "ENDPOINTS"
    );
    for node in &status.nodes {
        println!(
            "{:<16} {:<6} {:<9} {:<10} {:>5} {:>10}",
            node.name,
            if node.ready { "yes" } else { "no" },
            node.version,
            node.agent,
            node.enis_ready,
            node.endpoints
        );
    }
    println!(
        "\nPods: {} of {} ready. Packets with a foreign source: {}.",
        status.pods_ready, status.pods, status.foreign
    );
}

/// All objects of a kind, by kubectl.
fn get(place: &Place, kind: &str) -> Result<Value> {
    let control = Netns::foreign(&place.control)?;
    let mut kubectl = control.command(&program("kubectl")?.to_string_lossy());
    kubectl.arg("--kubeconfig").arg(&place.kubeconfig).args([
        "get",
        kind,
        "--all-namespaces",
        "-o",
        "json",
    ]);
    let text = command::run(&mut kubectl)?;
    serde_json::from_str(&text).with_context(|| format!("kubectl get {kind}"))
}

fn items(list: &Value) -> &[Value] {
    items_of(&list["items"])
}

fn items_of(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn is_ready(object: &Value) -> bool {
    items_of(&object["status"]["conditions"])
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn text(object: Option<&Value>, pointer: &str) -> String {
    let value = object.and_then(|object| object.pointer(pointer)?.as_str());
    value.unwrap_or("-").to_owned()
}
