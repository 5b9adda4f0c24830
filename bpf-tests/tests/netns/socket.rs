//! Abuse of the agent's socket, by curl and by hand: each answer names the error, and the agent
//! keeps running.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::fabric::{Fabric, Pod, Spec, command};

use crate::support::{End, PEER, carry_all, get};

/// curl(1) on the agent's socket: the HTTP status and the body.
fn curl(fabric: &Fabric, path: &str, words: &[&str]) -> (u16, Value) {
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "-o",
        "-",
        "-w",
        "\n%{http_code}",
        "--max-time",
        "20",
        "--unix-socket",
    ]);
    curl.arg(fabric.agent.socket())
        .args(words)
        .arg(format!("http://towpath{path}"));
    let answer = command::run(&mut curl).unwrap();
    let (body, status) = answer.rsplit_once('\n').unwrap();
    let body = serde_json::from_str(body).unwrap_or_else(|_| json!(body));
    (status.parse().unwrap(), body)
}

/// The status and the error's code of a PUT with a body.
#[track_caller]
fn put(fabric: &Fabric, body: &str, status: u16, code: &str) -> String {
    let file = fabric.agent.config_path().with_file_name("body.json");
    std::fs::write(&file, body).unwrap();
    let data = format!("@{}", file.display());
    let answer = curl(
        fabric,
        "/v1/endpoints",
        &["-X", "PUT", "--data-binary", &data],
    );
    let shown: String = body.chars().take(200).collect();
    assert_eq!(
        (answer.0, &answer.1["error"]["code"]),
        (status, &json!(code)),
        "{shown}: {answer:?}"
    );
    answer.1.to_string()
}

/// The request for a pod with one member replaced, or added.
fn with(pod: &Pod, key: &str, value: &Value) -> String {
    let mut request = pod.request();
    request[key] = value.clone();
    request.to_string()
}

#[test]
fn curl_adds_lists_and_deletes() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.make_pod(1, 0).unwrap();
    let body = pod.request().to_string();
    let words = ["-X", "PUT", "--data", &body];
    let (status, first) = curl(&fabric, "/v1/endpoints", &words);
    assert_eq!(
        (status, &first["host-device"]),
        (200, &json!(pod.host_device())),
        "{first}"
    );
    assert_eq!(first["addresses"][0]["eni"]["number"], 1, "{first}");
    // Asked again, it answers the same and changes nothing.
    let before = fabric.state().unwrap();
    let (status, second) = curl(&fabric, "/v1/endpoints", &words);
    assert_eq!((status, &second), (200, &first));
    assert_eq!(before, fabric.state().unwrap());
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    let (_, list) = curl(&fabric, "/v1/endpoints", &[]);
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    for _ in 0..2 {
        let (status, answer) = curl(&fabric, &pod.path(), &["-X", "DELETE"]);
        assert!((200..300).contains(&status), "{status} {answer}");
    }
    let left = fabric.node.run("ip -o link show").unwrap();
    assert!(!left.contains(&pod.host_device()), "{left}");
    fabric.finish().unwrap();
}

/// Members of a request, values that they refuse, and the code of each refusal.
fn refused_members() -> [(&'static str, Value, &'static str); 8] {
    let owner = |id: &str, interface: &str| json!({"container-id": id, "interface": interface});
    [
        ("colour", json!("red"), "invalid-body"),
        ("netns", json!(7), "invalid-body"),
        ("netns", json!("relative"), "invalid-field"),
        ("addresses", json!([]), "invalid-field"),
        ("addresses", json!(["ten"]), "invalid-body"),
        (
            "addresses",
            json!(["10.0.1.20", "10.0.1.21"]),
            "invalid-field",
        ),
        ("owner", owner("../x", "eth0"), "invalid-field"),
        (
            "owner",
            owner("x", "a-name-that-is-too-long"),
            "invalid-field",
        ),
    ]
}

fn wrong_paths_and_methods_are_told(fabric: &Fabric) {
    let code = |answer: (u16, Value)| (answer.0, answer.1["error"]["code"].clone());
    assert_eq!(
        code(curl(fabric, "/v2/endpoints", &[])),
        (404, json!("unknown-version"))
    );
    assert_eq!(
        code(curl(fabric, "/v1/nothing", &[])),
        (404, json!("not-found"))
    );
    let wrong = curl(fabric, "/v1/status", &["-X", "POST", "--data", "{}"]);
    assert_eq!(code(wrong), (405, json!("method-not-allowed")));
}

#[test]
fn abuse_is_answered_with_what_is_wrong() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (good, pod) = (
        fabric.add_pod(0, 0).unwrap(),
        fabric.make_pod(1, 0).unwrap(),
    );
    let request = pod.request().to_string();

    for body in [
        "",
        &request[..request.len() / 2],
        "[]",
        &format!("{request} {request}"),
    ] {
        put(&fabric, body, 400, "invalid-body");
    }
    for (key, value, code) in refused_members() {
        let said = put(&fabric, &with(&pod, key, &value), 400, code);
        assert!(key != "colour" || said.contains(key), "{said}");
    }
    let padded = with(&pod, "padding", &json!("x".repeat(1 << 20)));
    put(&fabric, &padded, 413, "body-too-large");
    wrong_paths_and_methods_are_told(&fabric);

    let state = get(&fabric, "/v1/status")["health"]["state"].clone();
    assert_ne!(state, "not-ready");
    let list = get(&fabric, "/v1/endpoints");
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    carry_all(&fabric, End::Pod(&good), PEER, &[0]);
    fabric.finish().unwrap();
}

#[test]
fn addresses_that_cannot_be_had_are_refused() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    fabric.node.ip("addr add 10.0.1.27/32 dev lo").unwrap();
    fabric.start_agent().unwrap();
    let (good, pod) = (
        fabric.add_pod(0, 0).unwrap(),
        fabric.make_pod(1, 0).unwrap(),
    );
    put(
        &fabric,
        &with(&pod, "addresses", &json!(["192.0.2.1"])),
        422,
        "address-not-owned",
    );
    let taken = good.address(ipam::Family::V4);
    put(
        &fabric,
        &with(&pod, "addresses", &json!([taken])),
        409,
        "address-in-use",
    );
    let request = with(&pod, "addresses", &json!(["10.0.1.27"]));
    put(&fabric, &request, 409, "address-of-host");
    put(
        &fabric,
        &with(&good, "netns", &json!(pod.netns.path())),
        409,
        "owner-conflict",
    );

    let list = get(&fabric, "/v1/endpoints");
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    carry_all(&fabric, End::Pod(&good), PEER, &[0]);
    fabric.finish().unwrap();
}

#[test]
fn broken_and_idle_connections_hold_nobody_up() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(0, 0).unwrap();
    let socket = fabric.agent.socket();
    let connect = || UnixStream::connect(&socket).unwrap();
    // Half a request, then gone; noise; a head without an end.
    for bytes in [
        &b"PUT /v1/endpoints HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"[..],
        &b"\x16\x03\x01\x02\x00\x01\x00\x01"[..],
        &b"\r\n\r\n\r\n"[..],
    ] {
        connect().write_all(bytes).unwrap();
    }
    let mut head = "GET /v1/status HTTP/1.1\r\nHost: x\r\n".to_owned();
    for number in 0..20_000 {
        let _infallible = write!(head, "X-{number}: {number}\r\n");
    }
    let answer = fabric.agent.raw_request(head.as_bytes());
    assert!(!answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200")));
    // More connections than the agent serves at a time, which say nothing.
    let idle: Vec<_> = (0..80).map(|_| connect()).collect();
    get(&fabric, "/v1/status");
    fabric.add_endpoint(&pod).unwrap();
    drop(idle);
    carry_all(&fabric, End::Pod(&pod), PEER, &[0]);
    fabric.finish().unwrap();
}

#[test]
fn only_root_may_ask() {
    const NOBODY: u32 = 65_534;
    let fabric = Fabric::ready(&Spec::default()).unwrap();
    let call = || {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "5", "--unix-socket"])
            .arg(fabric.agent.socket());
        curl.arg("http://towpath/v1/status").uid(NOBODY).gid(NOBODY);
        command::output(&mut curl).unwrap()
    };
    assert!(
        !call().status.success(),
        "the socket's mode keeps others out"
    );
    // Even if the mode is widened.
    std::fs::set_permissions(
        fabric.agent.socket(),
        std::fs::Permissions::from_mode(0o666),
    )
    .unwrap();
    let answer = call();
    let said = String::from_utf8_lossy(&answer.stdout);
    assert!(said.contains("peer-not-root"), "{answer:?}");
    fabric.finish().unwrap();
}

#[test]
fn a_stopped_agent_is_given_up_and_told() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    fabric.start_agent().unwrap();
    let id = fabric.agent.id().unwrap();
    let process = Pid::from_raw(id.try_into().unwrap());
    kill(process, Signal::SIGSTOP).unwrap();
    let status = ["--timeout=3s", "status"];
    let output = fabric.agent.cli(&fabric.node, &status).unwrap();
    kill(process, Signal::SIGCONT).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let said = format!("accepts but does not answer within 3s: process {id}, state T (stopped)");
    assert!(error.contains(&said), "{error}");
    assert_eq!(output.status.code(), Some(3));
    fabric.wait_until_ready().unwrap();
    fabric.finish().unwrap();
}
