//! The socket against callers of every kind. A fake takes the agent's place, so that what is
//! tested is the interface alone.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of a helper is a failure of the test"
)]

mod fake;
mod socket;
mod transcripts;

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command as Process;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use api::Tuple;
use api::types::{AddEndpoint, FlowFilter, NatStats};
use api::{Client, ClientError, ErrorCode};
use serde_json::{Value, json};
use towpath::server::{Command, Reply, Server, ServerLimits};

use crate::fake::{DEADLINE, Fake, LIMITS, Response};

/// Maximum time of an answer while other callers send nothing: a second, with a reserve for tests
/// that run in parallel.
const PROMPT: Duration = Duration::from_secs(3);

fn good() -> Value {
    json!({
        "owner": {"container-id": "0a1b", "interface": "eth0"},
        "netns": "/run/netns/web",
        "addresses": ["10.0.1.20", "2001:db8::20"],
    })
}

/// The client refuses nothing itself: what the agent says of a request reaches its caller.
async fn refusals_reach_the_caller(fake: &Fake, client: &Client, request: &mut AddEndpoint) {
    request.owner.container_id = "busy".into();
    match client.add_endpoint(request).await {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.code, ErrorCode::EniNotReady);
            assert_eq!(error.field.as_deref(), Some("addresses"));
        }
        other => panic!("{other:?}"),
    }
    client.delete_endpoint(&request.owner).await.unwrap();
    assert_eq!(fake.deleted.recv_timeout(DEADLINE).unwrap(), request.owner);
    // A value that does not fit into a path arrives unchanged, and the error names it.
    request.owner.container_id = "a/b".into();
    match client.delete_endpoint(&request.owner).await {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.field.as_deref(), Some("container-id"));
        }
        other => panic!("{other:?}"),
    }
}

/// The fake counts the fields that arrive.
async fn a_filter_arrives_whole(client: &Client) {
    let filter = FlowFilter {
        pod: Some("10.0.1.20".parse().unwrap()),
        remote: Some("2001:db8::1".parse().unwrap()),
        protocol: Some("tcp".to_owned()),
        all: false,
    };
    assert_eq!(client.nat_flows(&filter).await.unwrap().total, 3);
    assert_eq!(client.nat_flush(&filter).await.unwrap().removed, 3);
    let all = FlowFilter {
        all: true,
        ..FlowFilter::default()
    };
    assert_eq!(client.nat_flush(&all).await.unwrap().removed, 1);
    assert_eq!(client.nat_stats().await.unwrap(), NatStats::default());
}

async fn a_connection_arrives_with_its_ports(client: &Client) {
    let tuple = |source: &str| {
        let destination = "[2001:db8:1::1]:443".parse().unwrap();
        Tuple::new("udp".parse().unwrap(), source.parse().unwrap(), destination).unwrap()
    };
    let explained = client.explain(&tuple("[2001:db8::20]:5353")).await.unwrap();
    assert_eq!(explained.why, "udp [2001:db8::20]:5353 [2001:db8:1::1]:443");
    let explained = client.explain(&tuple("2001:db8::20")).await.unwrap();
    assert_eq!(explained.why, "udp 2001:db8::20 [2001:db8:1::1]:443");
}

#[test]
fn the_client_and_the_server_understand_each_other() {
    let fake = Fake::start(LIMITS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = Client::new(fake.socket());
        let mut request: AddEndpoint = serde_json::from_value(good()).unwrap();
        let attachment = client.add_endpoint(&request).await.unwrap();
        assert_eq!(attachment.addresses.len(), 2);
        assert_eq!(attachment.owner, request.owner);
        let received = fake.requests.recv_timeout(DEADLINE).unwrap();
        assert_eq!(received.netns, Path::new("/run/netns/web"));

        refusals_reach_the_caller(&fake, &client, &mut request).await;
        assert!(client.endpoints().await.unwrap().is_empty());
        assert!(client.enis().await.unwrap().is_empty());
        assert!(client.objects().await.unwrap().is_empty());
        assert!(client.metrics().await.unwrap().is_empty());
        a_filter_arrives_whole(&client).await;
        a_connection_arrives_with_its_ports(&client).await;
        // The agent drops the command: it is stopping.
        match client.status().await {
            Err(ClientError::Refused(error)) => assert_eq!(error.code, ErrorCode::NotReady),
            other => panic!("{other:?}"),
        }
        match Client::new(fake.folder.path().join("none")).enis().await {
            Err(ClientError::Unreachable { .. }) => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn refusals_have_their_status() {
    let fake = Fake::start(LIMITS);
    let busy = good().to_string().replace("0a1b", "busy");
    fake.request("PUT", "/v1/endpoints", &busy)
        .is_error(422, "eni-not-ready", Some("addresses"));
    fake.request("GET", "/v1/status", "")
        .is_error(503, "not-ready", None);
}

fn call(fake: &Fake, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    fake.request(method, path, &body)
}

#[test]
fn addresses_are_asked_for_and_given_back() {
    let fake = Fake::start(LIMITS);
    let without = json!({
        "owner": {"container-id": "0a1b", "interface": "eth0"},
        "netns": "/run/netns/web",
        "families": ["ipv4", "ipv6"],
        "pools": {"ipv4": "blue"},
        "network": "towpath",
        "pod": {"namespace": "web", "name": "front", "uid": "1"},
    });
    let answer = call(&fake, "PUT", "/v1/endpoints", &without);
    assert_eq!(answer.status, 200, "{answer:?}");
    let request = fake.requests.recv_timeout(DEADLINE).unwrap();
    assert!(request.addresses.is_empty());
    assert_eq!(request.ask.families.len(), 2);
    assert_eq!(request.ask.pod.unwrap().to_string(), "web/front");

    let mut lease = without.clone();
    lease.as_object_mut().unwrap().remove("netns");
    let answer = call(&fake, "PUT", "/v1/addresses", &lease);
    assert_eq!(answer.body["expires-seconds"], 600, "{answer:?}");
    let of_owner = "/v1/addresses/0a1b/eth0";
    let nothing = Value::Null;
    assert_eq!(call(&fake, "DELETE", of_owner, &nothing).status, 200);
    let claim = format!("{of_owner}/claim");
    let refused = call(&fake, "POST", &claim, &nothing);
    refused.is_error(404, "unknown-lease", None);
    assert_eq!(refused.body["error"]["retry"], false);
    assert_eq!(call(&fake, "GET", "/v1/pools", &nothing).body, json!([]));
    let list = call(&fake, "GET", "/v1/addresses", &nothing).body;
    assert_eq!(list, json!({"leases": [], "cooling": []}));
}

#[test]
fn what_a_runtime_asks_has_its_answers() {
    let fake = Fake::start(LIMITS);
    let nothing = Value::Null;
    let check = call(&fake, "GET", "/v1/endpoints/0a1b/eth0", &nothing);
    check.is_error(404, "unknown-endpoint", None);
    let ready = call(&fake, "GET", "/v1/ready", &nothing);
    ready.is_error(503, "not-ready", None);
    assert_eq!(ready.body["error"]["retry"], true);
    let owner = json!({"container-id": "0a1b", "interface": "eth0"});
    let collect = json!({"network": "towpath", "valid": [owner]});
    let collected = call(&fake, "POST", "/v1/endpoints/gc", &collect);
    assert_eq!(collected.body, json!({"removed": [owner], "kept": []}));
    // Others' attachments have names that ours cannot have, and there are many.
    let other = json!({"container-id": "/", "interface": "lo"});
    let many = json!({"network": "towpath", "valid": vec![other; 10_000]});
    assert_eq!(call(&fake, "POST", "/v1/endpoints/gc", &many).status, 200);
    let nameless = json!({"network": "", "valid": []});
    let refused = call(&fake, "POST", "/v1/endpoints/gc", &nameless);
    refused.is_error(400, "invalid-field", Some("network"));
}

#[test]
fn a_packet_that_is_none_is_named() {
    let fake = Fake::start(LIMITS);
    let explain =
        |packet: &str| fake.request("GET", &format!("/v1/masquerade/explain/{packet}"), "");
    for (packet, field) in [
        ("gre/10.0.1.20/1.1.1.1", "protocol"),
        ("tcp/10.0.1/1.1.1.1", "source"),
        ("tcp/10.0.1.20/1.1.1.1:x", "destination"),
        ("tcp/10.0.1.20/::1", "destination"),
    ] {
        explain(packet).is_error(400, "invalid-field", Some(field));
    }
    let answer = explain("icmp/10.0.1.20:7/1.1.1.1");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body["why"], "icmp 10.0.1.20:7 1.1.1.1");
}

/// Codes and fields of errors, with the change of a good request that leads to each.
fn wrong_fields() -> Vec<(&'static str, Option<&'static str>, Value)> {
    vec![
        ("invalid-body", Some("owner"), json!({"owner": 7})),
        (
            "invalid-body",
            Some("owner"),
            json!({"owner": {"interface": "eth0"}}),
        ),
        (
            "invalid-body",
            Some("owner.container-id"),
            json!({"owner": {"container-id": null, "interface": "eth0"}}),
        ),
        (
            "invalid-body",
            Some("owner.pod"),
            json!({"owner": {"container-id": "a", "interface": "eth0", "pod": "x"}}),
        ),
        ("invalid-body", Some("pool"), json!({"pool": "default"})),
        (
            "invalid-body",
            Some("addresses[1]"),
            json!({"addresses": ["10.0.1.20", "10.0.1"]}),
        ),
        ("invalid-field", Some("addresses"), json!({"addresses": []})),
        (
            "invalid-field",
            Some("addresses"),
            json!({"addresses": ["10.0.1.20", "10.0.1.21"]}),
        ),
        ("invalid-field", Some("netns"), json!({"netns": "web"})),
        (
            "invalid-field",
            Some("owner.interface"),
            json!({"owner": {"container-id": "a", "interface": "a/b"}}),
        ),
        (
            "invalid-field",
            Some("owner.container-id"),
            json!({"owner": {"container-id": "../a", "interface": "eth0"}}),
        ),
    ]
}

#[test]
fn wrong_fields_are_named() {
    let fake = Fake::start(LIMITS);
    for (code, field, change) in wrong_fields() {
        let mut body = good();
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        fake.request("PUT", "/v1/endpoints", &body.to_string())
            .is_error(400, code, field);
    }
    for path in ["/v1/endpoints/-a/eth0", "/v1/endpoints/%2e%2e/eth0"] {
        fake.request("DELETE", path, "")
            .is_error(400, "invalid-field", Some("container-id"));
    }
    fake.request("DELETE", "/v1/endpoints/a/lo", "").is_error(
        400,
        "invalid-field",
        Some("interface"),
    );
    fake.request("DELETE", "/v1/endpoints/%ff/eth0", "")
        .is_error(400, "invalid-field", Some("path"));
    fake.assert_untouched();
}

#[test]
fn flows_are_asked_for_by_what_there_is_and_flushed_by_what_is_said() {
    let fake = Fake::start(LIMITS);
    assert_eq!(fake.request("GET", "/v1/nat/flows", "").body["total"], 0);
    let every = fake.request("POST", "/v1/nat/flows", "{}");
    assert_eq!((every.status, &every.body["total"]), (200, &json!(0)));
    for (code, field, body) in [
        ("invalid-field", "protocol", json!({"protocol": "TCP"})),
        ("invalid-field", "protocol", json!({"protocol": "256"})),
        ("invalid-body", "pod", json!({"pod": "here"})),
        ("invalid-body", "port", json!({"port": 7})),
    ] {
        for path in ["/v1/nat/flows", "/v1/nat/flush"] {
            fake.request("POST", path, &body.to_string())
                .is_error(400, code, Some(field));
        }
    }
    for (field, body) in [
        ("pod", json!({})),
        ("pod", json!({"all": false, "remote": "10.0.0.1"})),
        ("all", json!({"all": true, "pod": "10.0.0.1"})),
        ("all", json!({"all": true, "protocol": "udp"})),
    ] {
        fake.request("POST", "/v1/nat/flush", &body.to_string())
            .is_error(400, "invalid-field", Some(field));
    }
    fake.request("GET", "/v1/nat/flush", "")
        .is_error(405, "method-not-allowed", None);
    fake.assert_untouched();
}

#[test]
fn what_is_no_json_object_is_refused() {
    let fake = Fake::start(LIMITS);
    let twice = format!("{}{}", good(), good());
    for body in ["", "{", "[]", "null", "\u{0}", "not json", &twice, "7"] {
        fake.request("PUT", "/v1/endpoints", body)
            .is_error(400, "invalid-body", None);
    }
    let deep = fake.request("PUT", "/v1/endpoints", &"[".repeat(5000));
    assert_eq!(deep.status, 400);
    fake.assert_untouched();
}

#[test]
fn unknown_paths_and_versions_say_what_there_is() {
    let fake = Fake::start(LIMITS);
    for (path, code) in [
        ("/", "unknown-version"),
        ("/v2/status", "unknown-version"),
        ("/status", "unknown-version"),
        ("/v1", "not-found"),
        ("/v1/nothing", "not-found"),
        ("/v1/endpoints/a", "not-found"),
    ] {
        let response = fake.request("GET", path, "");
        response.is_error(404, code, None);
        assert_eq!(response.body["supported-versions"], json!(["v1"]), "{path}");
    }
    for (method, path) in [
        ("POST", "/v1/endpoints"),
        ("PUT", "/v1/status"),
        ("POST", "/v1/endpoints/a/eth0"),
    ] {
        fake.request(method, path, &good().to_string())
            .is_error(405, "method-not-allowed", None);
    }
    fake.assert_untouched();
}

#[test]
fn a_truncated_body_is_refused_at_once_and_a_slow_one_in_time() {
    let fake = Fake::start(LIMITS);
    let head = b"PUT /v1/endpoints HTTP/1.1\r\nhost: x\r\ncontent-length: 200\r\n\r\n{\"owner\"";

    let start = Instant::now();
    let mut cut = fake.connect();
    cut.write_all(head).unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    Response::read(&mut cut).is_error(400, "invalid-body", None);
    assert!(start.elapsed() < LIMITS.request, "it waited for more");

    let mut slow = fake.connect();
    slow.write_all(head).unwrap();
    Response::read(&mut slow).is_error(408, "timeout", None);
    fake.assert_untouched();
}

#[test]
fn a_huge_body_is_refused_whether_announced_or_not() {
    let fake = Fake::start(LIMITS);
    let huge = format!("{{\"netns\": \"/{}\"}}", "x".repeat(1 << 20));
    fake.request("PUT", "/v1/endpoints", &huge)
        .is_error(413, "body-too-large", None);
    let chunked = format!(
        "PUT /v1/endpoints HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{huge}\r\n0\r\n\r\n",
        huge.len()
    );
    fake.raw(chunked.as_bytes())
        .is_error(413, "body-too-large", None);
    fake.assert_untouched();
}

/// Unfinished requests of a caller that then sends nothing more.
const UNFINISHED: [&[u8]; 4] = [
    b"",
    b"GET /v1/en",
    b"GET /v1/enis HTTP/1.1\r\nx: y\r\n",
    b"PUT /v1/endpoints HTTP/1.1\r\nhost: x\r\ncontent-length: 200\r\n\r\n{\"owner\"",
];

/// Callers that open connections and send nothing, or a part of a request, delay no other caller.
#[test]
fn idle_callers_do_not_keep_others_out() {
    let fake = Fake::start(ServerLimits::default());
    for count in [64, 300, 3000] {
        let mut idle = Vec::with_capacity(count);
        for (_, unfinished) in (0..count).zip(UNFINISHED.iter().cycle()) {
            let mut stream = fake.connect();
            // The server may have closed it for the next one by now.
            stream.write_all(unfinished).ok();
            idle.push(stream);
        }
        let start = Instant::now();
        let response = fake.request("PUT", "/v1/endpoints", &good().to_string());
        assert_eq!(response.status, 200, "{count}");
        assert!(start.elapsed() < PROMPT, "{count}: {:?}", start.elapsed());
    }
}

/// A request in hand is answered however many others come.
#[test]
fn a_request_in_hand_does_not_give_way() {
    let (sender, received) = mpsc::channel();
    let fake = Fake::answering(ServerLimits::default(), move |command| match command {
        Command::Enis(reply) => {
            sender.send(reply).unwrap();
        }
        Command::Endpoints(reply) => drop(reply.send(Ok(Vec::new()))),
        other => panic!("{other:?}"),
    });
    let mut stream = fake.connect();
    stream
        .write_all(b"GET /v1/enis HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let reply: Reply<_> = received.recv_timeout(DEADLINE).unwrap();
    let idle: Vec<_> = (0..600).map(|_| fake.connect()).collect();
    assert_eq!(fake.request("GET", "/v1/endpoints", "").status, 200);
    reply.send(Ok(Vec::new())).unwrap();
    assert_eq!(Response::read(&mut stream).status, 200);
    drop(idle);
}

#[test]
fn what_is_no_http_gets_no_further() {
    let fake = Fake::start(LIMITS);
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
    ] {
        let mut stream = fake.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"),
            "{answer:?}"
        );
    }
    assert_eq!(fake.request("GET", "/v1/enis", "").status, 200);
}

#[test]
fn the_socket_is_for_root_alone() {
    let fake = Fake::start(LIMITS);
    let mode = std::fs::metadata(fake.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
}

/// The mode of the socket is not all that stands between others and the agent.
#[test]
fn a_caller_who_is_not_root_is_refused_even_where_the_mode_lets_him_in() {
    let fake = Fake::start(LIMITS);
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(fake.folder.path(), 0o755);
    open(&fake.socket(), 0o666);
    let output = Process::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(["socat", "-t", "5", "-"])
        .arg(format!("UNIX-CONNECT:{}", fake.socket().display()))
        .stdin(request_on_stdin())
        .output()
        .expect("run setpriv and socat (packages util-linux and socat), as root");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 403") && text.contains("\"peer-not-root\""),
        "{text:?} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    fake.assert_untouched();
}

fn request_on_stdin() -> std::process::Stdio {
    let mut file = tempfile::tempfile().unwrap();
    let body = good().to_string();
    write!(
        file,
        "PUT /v1/endpoints HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file.into()
}

#[test]
fn an_old_socket_is_replaced_and_the_new_one_removed() {
    let fake = Fake::start(LIMITS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let path = fake.folder.path().join("old.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    runtime.block_on(async {
        let server = Server::bind(&path, LIMITS).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        drop(server);
    });
    assert!(!path.exists());
}

#[test]
fn a_wrong_address_is_named_with_what_is_allowed() {
    let fake = Fake::start(LIMITS);
    for address in ["10.0.1.20/32", "fe80::1%eth0", "10.0.0.020", "web"] {
        let mut body = good();
        body["addresses"] = json!([address]);
        let response = fake.request("PUT", "/v1/endpoints", &body.to_string());
        response.is_error(400, "invalid-body", Some("addresses[0]"));
        let message = response.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(address), "{message}");
        assert!(message.contains("allowed"), "{message}");
    }
    let mut body = good();
    body["owner"] = json!("a/eth0");
    for body in ["null", &body.to_string()] {
        let response = fake.request("PUT", "/v1/endpoints", body);
        let message = response.body["error"]["message"].as_str().unwrap();
        assert!(message.contains("an object with"), "{message}");
    }
    fake.assert_untouched();
}
