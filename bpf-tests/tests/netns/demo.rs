//! The demo, as a visitor runs it.

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::fabric::command;
use testkit::fabric::eventually::check;

use crate::support::{CHANGE, within};

/// The time that a visitor waits for the demo.
const TIME: Duration = Duration::from_secs(20);

/// Every reason that the demo shows by each protocol in both families; only IPv4 has another one.
const WHYS: [&str; 8] = [
    "local",
    "host",
    "exempt-vpc",
    "exempt-native",
    "exempt-masq-agent",
    "skip-pool",
    "translated",
    "inbound",
];

/// One demo of ours at a time: each removes what an earlier `--keep` left up.
fn alone() -> MutexGuard<'static, ()> {
    static DEMO: Mutex<()> = Mutex::new(());
    // The lock protects no state that a failed test could corrupt.
    DEMO.lock().unwrap_or_else(PoisonError::into_inner)
}

fn demo(options: &[&str]) -> Child {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_towpath-demo"));
    demo.args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    demo.spawn().unwrap()
}

/// The names of the namespaces that a demo has made.
fn namespaces(of: u32) -> Vec<String> {
    let names = command::run(Command::new("ip").args(["netns", "list"])).unwrap();
    let names = names
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let prefix = format!("tp-{of}-");
    names
        .filter(|name| name.starts_with(&prefix))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_demo_prints_one_document_and_leaves_nothing() {
    let _alone = alone();
    let start = Instant::now();
    let demo = demo(&["--json"]);
    let id = demo.id();
    let output = demo.wait_with_output().unwrap();
    let time = start.elapsed();
    println!("the demo: {:.1} s", time.as_secs_f32());
    assert!(output.status.success(), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["ok"], true, "{document}");
    assert_eq!(document["foreign_source_drops"], 0);
    assert_eq!(document["untranslated_drops"], 0);
    let healed = document["healed"].as_array().unwrap();
    assert_eq!(healed.len(), 2, "{healed:?}");
    assert!(
        healed
            .iter()
            .all(|object| object["object"].is_string() && object["after_ms"].is_u64())
    );
    let flows = document["flows"].as_array().unwrap();
    let expected = [
        "eni", "family", "from", "name", "ok", "path", "protocol", "snat", "to", "why",
    ];
    for flow in flows {
        let mut keys: Vec<_> = flow
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, expected);
    }
    for family in ["ipv4", "ipv6"] {
        for protocol in ["tcp", "udp", "icmp"] {
            let link_local = (family == "ipv4").then_some("exempt-link-local");
            for why in WHYS.into_iter().chain(link_local) {
                let mut shown = flows.iter().filter(|flow| {
                    flow["family"] == family && flow["protocol"] == protocol && flow["why"] == why
                });
                let flow = shown.next().unwrap();
                match why {
                    "local" | "host" => assert!(flow["snat"].is_null(), "{flow}"),
                    "translated" => assert_ne!(flow["snat"], flow["from"], "{flow}"),
                    "inbound" => assert_eq!(flow["snat"], flow["to"], "{flow}"),
                    _ => assert_eq!(flow["snat"], flow["from"], "{flow}"),
                }
            }
        }
    }
    assert_eq!(namespaces(id), Vec::<String>::new());
    assert!(time < TIME, "{time:?}");
}

#[test]
fn what_a_demo_keeps_goes_with_down() {
    let _alone = alone();
    let kept = demo(&["--keep"]);
    let id = kept.id();
    let output = kept.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(namespaces(id).len() > 4, "{output:?}");
    let output = demo(&["--down"]).wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("removed: "), "{text}");
    assert_eq!(namespaces(id), Vec::<String>::new());
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let _alone = alone();
    let demo = demo(&[]);
    let id = demo.id();
    within(CHANGE, "the demo runs", || {
        check(namespaces(id).len() > 4, || "no pods yet".to_owned())
    });
    kill(Pid::from_raw(i32::try_from(id).unwrap()), Signal::SIGINT).unwrap();
    let output = demo.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        !output.stdout.contains(&0x1b),
        "no colour where there is no terminal"
    );
    assert_eq!(namespaces(id), Vec::<String>::new());
}
