//! A node without a free address stays ready, with or without an agent, and its pods stay.

use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::cluster::{Cluster, ClusterSpec, SOON, deployment};
use testkit::fabric::Spec;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Addressing;
use testkit::kubernetes::{Kubectl, ProxyMode};

/// The agents' pods.
const AGENTS: &str =
    "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name=towpath";

/// The time that the node is without an agent: longer than several checks of the runtime by the
/// kubelet.
fn absence() -> Duration {
    let full = std::env::var_os("TOWPATH_FULL").is_some();
    Duration::from_secs(if full { 60 } else { 15 })
}

/// One node of two ENIs, each with a few secondary addresses.
fn small() -> ClusterSpec {
    ClusterSpec {
        workers: 1,
        fabric: Spec {
            addressing: Addressing::Addresses,
            ..Spec::default()
        },
        ..ClusterSpec::new(ProxyMode::Nftables)
    }
}

/// The pods of the crowd: the names of those that run and are ready, and the number of all.
fn crowd(cluster: &Cluster) -> anyhow::Result<(Vec<String>, usize)> {
    let path = "/api/v1/namespaces/default/pods?labelSelector=app=crowd";
    let list = cluster.admin().get(path)?.expect(200)?;
    let pods: Vec<&Value> = list["items"].as_array().into_iter().flatten().collect();
    let is_ready = |pod: &&&Value| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
        ready.any(|condition| condition["status"] == "True")
    };
    let ready = pods.iter().filter(is_ready);
    let names = ready.filter_map(|pod| Some(pod["metadata"]["name"].as_str()?.to_owned()));
    Ok((names.collect(), pods.len()))
}

/// Expects the condition `Ready` to be unchanged, by the time of its last change.
fn is_as_ready(cluster: &Cluster, before: &Value) -> anyhow::Result<()> {
    let now = cluster.condition(&cluster.workers[0].name())?;
    check(
        now["status"] == "True" && now["lastTransitionTime"] == before["lastTransitionTime"],
        || now.to_string(),
    )
}

/// Patches the agents' `DaemonSet` so that no node has an agent, or each has.
fn select(kubectl: &Kubectl<'_>, value: &str) {
    let selector = format!(
        r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"full.test/no-such-label":{value}}}}}}}}}}}"#
    );
    let words = ["-n", "kube-system", "patch", "daemonset", "towpath", "-p"];
    kubectl
        .succeed(&[&words[..], &[selector.as_str()]].concat())
        .unwrap();
}

/// True once a pod was refused for lack of addresses.
fn is_full(kubectl: &Kubectl<'_>) -> anyhow::Result<bool> {
    let events = kubectl.succeed(&["get", "events", "-A"])?;
    Ok(events.contains("address left"))
}

/// The number of the crowd's pods that the agent has added.
fn endpoints(cluster: &Cluster) -> anyhow::Result<usize> {
    let agent = &cluster.workers[0].fabric.agent;
    let endpoints = agent.ask("GET", "/v1/endpoints", None)?;
    let endpoints = endpoints.as_array().into_iter().flatten();
    Ok(endpoints
        .filter(|endpoint| endpoint.to_string().contains("crowd-"))
        .count())
}

/// Scales the crowd until one of its pods waits for an address, and returns the running pods.
fn fill(cluster: &Cluster, kubectl: &Kubectl<'_>) -> Vec<String> {
    let mut replicas = 1;
    while !is_full(kubectl).unwrap() {
        replicas += 8;
        assert!(replicas < 100, "the node is not full with {replicas} pods");
        let scale = format!("--replicas={replicas}");
        let words = ["scale", "deployment/crowd", &scale];
        kubectl.succeed(&words).unwrap();
        let settled = || {
            let (ready, all) = crowd(cluster)?;
            let is_settled = all == replicas && (ready.len() == all || is_full(kubectl)?);
            check(is_settled, || format!("{} of {all}", ready.len()))
        };
        eventually(SOON, "pods run, or one is refused", settled).unwrap();
    }
    // Pods that have an address run in the end, however slowly the kubelet starts them.
    let mut last = (0, Instant::now());
    let calm = || {
        let (ready, _) = crowd(cluster)?;
        let added = endpoints(cluster)?;
        if ready.len() != last.0 || added != last.0 {
            last = (ready.len(), Instant::now());
        }
        check(last.1.elapsed() > Duration::from_secs(3), || {
            format!("{} of {added} with an address", ready.len())
        })
    };
    eventually(SOON, "all pods with an address are ready", calm).unwrap();
    let (running, all) = crowd(cluster).unwrap();
    assert!(running.len() < all, "{} of {all}", running.len());
    running
}

/// Removes the agent, and restores it after a while in which `stays` must hold.
fn miss_the_agent(
    cluster: &Cluster,
    kubectl: &Kubectl<'_>,
    stays: impl Fn() -> anyhow::Result<()>,
) {
    select(kubectl, r#""yes""#);
    let gone = || {
        let list = cluster.admin().get(AGENTS)?.expect(200)?;
        check(list["items"].as_array().is_some_and(Vec::is_empty), || {
            list.to_string()
        })
    };
    eventually(SOON, "the agent is gone", gone).unwrap();
    let began = Instant::now();
    let absent = || {
        stays().unwrap();
        check(began.elapsed() > absence(), || "too soon".to_owned())
    };
    eventually(absence() + SOON, "the node is without an agent", absent).unwrap();
    select(kubectl, "null");
    let agents = cluster.rolled_out("kube-system", "daemonset/towpath");
    agents.unwrap();
}

#[test]
fn a_full_node_stays_ready_with_its_agent_and_without() {
    let cluster = Cluster::ready(&small()).unwrap();
    let kubectl = cluster.kubectl().unwrap();
    cluster.apply(&[deployment("default", "crowd", 1)]).unwrap();
    cluster.rolled_out("default", "deployment/crowd").unwrap();
    let running = fill(&cluster, &kubectl);
    let before = cluster.condition(&cluster.workers[0].name()).unwrap();
    assert_eq!(before["status"], "True", "{before}");
    let stays = || {
        is_as_ready(&cluster, &before)?;
        let (now, _) = crowd(&cluster)?;
        check(running.iter().all(|name| now.contains(name)), || {
            let events = kubectl.succeed(&["get", "events"]).unwrap_or_default();
            format!("{running:?} became {now:?}: {events}")
        })
    };

    // The agent of a full node is ready, so that a rollout succeeds.
    let restart = ["rollout", "restart", "daemonset/towpath"];
    let restart = [&["-n", "kube-system"][..], &restart].concat();
    kubectl.succeed(&restart).unwrap();
    let agents = cluster.rolled_out("kube-system", "daemonset/towpath");
    agents.unwrap();
    stays().unwrap();
    miss_the_agent(&cluster, &kubectl, stays);
    stays().unwrap();

    // An address is released, and a pod that waits gets it.
    kubectl.succeed(&["delete", "pod", &running[0]]).unwrap();
    let taken = || {
        let (now, _) = crowd(&cluster)?;
        check(
            now.len() == running.len() && !now.contains(&running[0]),
            || format!("{running:?} became {now:?}"),
        )
    };
    eventually(2 * SOON, "a pod gets the address", taken).unwrap();
    is_as_ready(&cluster, &before).unwrap();
    cluster.finish().unwrap();
}
