//! Health and metrics by HTTP, as kubelet's probes (curl) and Prometheus (its Python client) read them.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::command::{self, ends};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::traffic::ping;
use testkit::fabric::{Fabric, Netns, Pod, Spec};

use crate::support::{CHANGE, count};

pub(crate) const ADDRESS: &str = "127.0.0.1:9971";

/// Reads the text as Prometheus does: `[[name, labels, value], ...]`.
const PARSER: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
families = list(parse(sys.stdin.read()))
kinds = ('counter', 'gauge', 'histogram')
assert all(family.documentation and family.type in kinds for family in families)
print(json.dumps([[s.name, s.labels, int(s.value)] for family in families for s in family.samples]))
";

const METRICS: &str = "0.0.0.0:9972";

fn spec() -> Spec {
    Spec {
        settings: json!({"http": {"address": ADDRESS}, "metrics": {"address": METRICS}}),
        ..Spec::default()
    }
}

/// Answer to a request: the status, and the body.
fn ask(node: &Netns, words: &[&str], path: &str) -> anyhow::Result<(u16, String)> {
    ask_at(node, ADDRESS, words, path)
}

/// Answer to a request at another address with a port.
pub(crate) fn ask_at(
    node: &Netns,
    address: &str,
    words: &[&str],
    path: &str,
) -> anyhow::Result<(u16, String)> {
    let mut curl = node.command("curl");
    curl.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}"]);
    curl.args(words).arg(format!("http://{address}{path}"));
    let answer = command::run(&mut curl)?;
    let (body, status) = answer.rsplit_once('\n').unwrap_or_default();
    Ok((status.parse()?, body.to_owned()))
}

fn scrape(node: &Netns) -> Vec<(String, Value, u64)> {
    let (status, text) = ask(node, &[], "/metrics").unwrap();
    assert_eq!(status, 200, "{text}");
    let mut python = std::process::Command::new("/usr/bin/python3");
    let parsed = command::run_with_input(python.args(["-c", PARSER]), &text).unwrap();
    serde_json::from_str(&parsed).unwrap()
}

/// The sum of a metric's values that have these labels.
fn sum(values: &[(String, Value, u64)], name: &str, labels: &Value) -> u64 {
    let wanted = labels.as_object().unwrap();
    let fits = |labels: &Value| wanted.iter().all(|(key, value)| labels[key] == *value);
    let found: Vec<_> = values
        .iter()
        .filter(|value| value.0 == name && fits(&value.1))
        .collect();
    assert!(!found.is_empty(), "{name}{labels} is not among {values:?}");
    found.iter().map(|value| value.2).sum()
}

/// Metrics count a pod's packets, and show the state of the node.
fn metrics_follow_the_node(fabric: &Fabric, pod: &Pod) {
    let before = scrape(&fabric.node);
    let peer = fabric.peer(Family::V4);
    ping(pod.at(Family::V4), peer.address, &["-c", "3", "-i", "0.2"]).unwrap();
    let after = scrape(&fabric.node);
    let of = |labels: Value| move |name: &str, all: &[_]| sum(all, name, &labels);
    let sent = of(json!({"program": "from_endpoint", "verdict": "pass"}));
    assert!(sent("towpath_packets_total", &after) >= sent("towpath_packets_total", &before) + 3);
    assert!(sent("towpath_bytes_total", &after) >= sent("towpath_bytes_total", &before) + 252);
    for (name, labels, value) in [
        ("towpath_ready", json!({}), 1),
        ("towpath_endpoints", json!({"state": "ready"}), 1),
        ("towpath_endpoints", json!({"state": "not-ready"}), 0),
        ("towpath_enis", json!({"state": "ready"}), 2),
        ("towpath_kubernetes_requests_total", json!({}), 0),
    ] {
        assert_eq!(sum(&after, name, &labels), value, "{name}{labels}");
    }
    let added = json!({"request": "add", "result": "ok"});
    let requests = "towpath_endpoint_request_duration_seconds_count";
    assert_eq!(sum(&after, requests, &added), 1);
    let pools = json!({"pool": "default", "family": "ipv4"});
    assert!(sum(&after, "towpath_pool_addresses", &pools) > 1);
    assert!(sum(&after, "towpath_flow_capacity_entries", &json!({})) > 1);
    assert!(sum(&after, "towpath_reconcile_steps_total", &json!({})) > 1);
    // The command line has the same count.
    let spoofed = json!({"program": "from_endpoint", "outcome": "spoofed-source"});
    let counted = count(fabric, "from_endpoint", "spoofed-source");
    assert_eq!(sum(&after, "towpath_packets_total", &spoofed), counted);
}

/// A Prometheus in a pod and one in the VPC reach metrics, and no other path.
fn others_reach_metrics_alone(fabric: &Fabric, pod: &Pod) {
    let node = fabric.eni(0).unwrap().own_address(Family::V4).unwrap();
    let peers = fabric.peer(Family::V4).netns;
    for (from, place) in [(&pod.netns, "a pod"), (peers, "the VPC")] {
        for (path, status) in [("/metrics", 200), ("/healthz", 404), ("/readyz", 404)] {
            let url = format!("http://{node}:9972{path}");
            let mut curl = from.command("curl");
            curl.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", &url]);
            let answer = command::run(&mut curl).unwrap();
            let (body, code) = answer.rsplit_once('\n').unwrap();
            assert_eq!(code, status.to_string(), "{path} from {place}: {body}");
            assert_eq!(body.contains("towpath_ready 1"), status == 200, "{path}");
        }
    }
}

/// All methods that change something are refused, and no other path is served.
fn other_methods_and_paths_are_refused(fabric: &Fabric) {
    for (words, path, status) in [
        (&["-X", "POST", "-d", "{}"][..], "/metrics", 405),
        (&["-X", "DELETE"], "/healthz", 405),
        (&[], "/v1/endpoints", 404),
        (&[], "/", 404),
    ] {
        let answer = ask(&fabric.node, words, path).unwrap();
        assert_eq!(answer.0, status, "{path}: {answer:?}");
    }
}

#[test]
fn probes_and_prometheus_are_answered() {
    let mut fabric = Fabric::create(&spec()).unwrap();
    fabric.agent.write_document_text("{").unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    let lives = || {
        let answer = ask(&fabric.node, &[], "/healthz")?;
        check(answer == (200, "ok\n".to_owned()), || format!("{answer:?}"))
    };
    eventually(CHANGE, "the agent lives though it is not ready", lives).unwrap();
    let (status, reason) = ask(&fabric.node, &[], "/readyz").unwrap();
    assert!(status == 503 && reason.len() > 10, "{status} {reason}");
    assert_eq!(sum(&scrape(&fabric.node), "towpath_ready", &json!({})), 0);

    fabric.publish().unwrap();
    fabric.wait_until_ready().unwrap();
    let ready = ask(&fabric.node, &[], "/readyz").unwrap();
    assert_eq!(ready, (200, "ready\n".to_owned()));
    let pod = fabric.add_pod(1, 0).unwrap();
    metrics_follow_the_node(&fabric, &pod);
    others_reach_metrics_alone(&fabric, &pod);
    other_methods_and_paths_are_refused(&fabric);
    fabric.finish().unwrap();
}

#[test]
fn silent_callers_keep_nobody_out_and_an_address_in_use_is_named() {
    let mut fabric = Fabric::ready(&spec()).unwrap();
    // Silent connections: more than are served at a time.
    let silent = fabric.node.enter(|| {
        let connect = |_| std::net::TcpStream::connect(ADDRESS);
        Ok((0..300).map(connect).collect::<Result<Vec<_>, _>>()?)
    });
    let silent = silent.unwrap();
    assert_eq!(ask(&fabric.node, &[], "/healthz").unwrap().0, 200);
    drop(silent);
    // The socket answers all the time.
    assert_eq!(
        fabric.agent.request("GET", "/v1/ready", None).unwrap().0,
        200
    );

    fabric.agent.stop().unwrap();
    let listener = fabric
        .node
        .enter(|| Ok(std::net::TcpListener::bind(ADDRESS)?));
    let refused = ends(&mut fabric.agent.command(&fabric.node, &["run"])).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("http.address"),
        "{said}"
    );
    drop(listener);
    fabric.start_agent().unwrap();
    fabric.wait_until_ready().unwrap();
    fabric.finish().unwrap();
}
