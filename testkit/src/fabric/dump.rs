//! State that a person needs to see when a test fails.

use std::fmt::Write as _;
use std::fs;

use super::command;
use super::node::Fabric;

/// Lines of the agent's log that are shown.
const LOG_LINES: usize = 150;

/// The node's state in text, by the tools that an administrator would use.
pub(super) fn describe(fabric: &Fabric) -> String {
    let mut text = String::new();
    let node = [
        "ip rule",
        "ip -6 rule",
        "ip route show table all",
        "ip -6 route show table all",
        "ip -d addr",
        "ip neigh",
        "ip -s link",
        "nstat -az IcmpMsgOutType11 IpInDiscards IpOutNoRoutes TcpRetransSegs",
    ];
    let name = fabric.name();
    for line in node {
        let _infallible = writeln!(text, "=== {name}: {line}\n{}", said(fabric.node.run(line)));
    }
    let router = ["nft list ruleset", "ip route", "ip -6 route"];
    for line in router {
        let _infallible = writeln!(
            text,
            "=== vpc: {line}\n{}",
            said(fabric.vpc.router.run(line))
        );
    }
    for pod in fabric.pods() {
        for line in ["ip addr", "ip route", "ip neigh"] {
            let answer = said(pod.netns.run(line));
            let _infallible = writeln!(text, "=== {}: {line}\n{answer}", pod.name);
        }
    }
    for word in ["status", "routes", "metrics"] {
        let answer = said(command::run(
            &mut fabric.agent.command(&fabric.node, &[word]),
        ));
        let _infallible = writeln!(text, "=== {name}: towpath {word}\n{answer}");
    }
    let _infallible = writeln!(text, "=== {name}: {}", process(fabric.agent.id()));
    let log = fabric.agent.log();
    let skipped = log.lines().count().saturating_sub(LOG_LINES);
    let _infallible = writeln!(text, "=== {name}: the agent's log, last {LOG_LINES} lines");
    for line in log.lines().skip(skipped) {
        let _infallible = writeln!(text, "{line}");
    }
    text
}

/// The state of the agent's process. A zombie has ended by itself.
fn process(id: Option<u32>) -> String {
    let Some(id) = id else {
        return "the agent was not started, or was stopped".to_owned();
    };
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let state = status.lines().find(|line| line.starts_with("State:"));
    format!("the agent's process {id}: {}", state.unwrap_or("gone"))
}

fn said(answer: anyhow::Result<String>) -> String {
    answer.unwrap_or_else(|error| format!("{error:#}"))
}
