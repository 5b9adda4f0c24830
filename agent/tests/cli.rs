//! The command line as a user meets it: exit codes, and errors in one line.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use nix::sys::socket::{Backlog, listen};

fn towpath(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_towpath"))
        .args(args)
        .env_remove("TOWPATH_CONFIG")
        .env_remove("TOWPATH_SOCKET")
        .env_remove("TOWPATH_TIMEOUT")
        .output()
        .expect("run towpath")
}

#[track_caller]
fn fails(args: &[&str], code: i32, words: &[&str]) {
    let output = towpath(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
    for word in words {
        assert!(error.contains(word), "{args:?}: {word:?} is not in {error}");
    }
    // clap's own errors show the usage too.
    assert!(code == 2 || error.lines().count() == 1, "{args:?}: {error}");
}

#[test]
fn no_agent_is_an_exit_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let socket = socket.to_str().unwrap();
    for command in [
        &["status"][..],
        &["enis", "-o", "json"],
        &["endpoints"],
        &["routes"],
        &["metrics"],
        &["nat", "list", "--pod", "10.0.0.1"],
        &["nat", "flush", "--all"],
        &["nat", "stats"],
        &["endpoint", "del", "a"],
        &[
            "endpoint",
            "add",
            "a",
            "--netns",
            "x",
            "--address",
            "10.0.0.1",
        ],
    ] {
        let args = [&["--socket", socket], command].concat();
        fails(&args, 3, &[socket, "no agent answers"]);
    }
}

/// The kernel accepts for a listener that does nothing, until its queue is full.
#[test]
fn an_agent_that_does_not_answer_is_given_up_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let socket = path.to_str().unwrap();
    let ours = format!("process {}, state ", std::process::id());
    let words = [
        socket,
        "accepts but does not answer within 3s",
        &ours,
        "--timeout",
    ];
    let began = Instant::now();
    fails(&["--socket", socket, "status"], 3, &words);
    let took = began.elapsed();
    assert!((3..10).contains(&took.as_secs()), "{took:?}");
    for command in [
        &["ready"][..],
        &["pools"],
        &["nat", "list"],
        &["masq", "explain", "10.0.0.1", "1.1.1.1"],
        &["endpoint", "del", "a"],
    ] {
        let args = [&["--socket", socket, "--timeout", "50ms"], command].concat();
        fails(&args, 3, &["does not answer within 50ms", &ours]);
    }
    // The queue takes one more than it says.
    listener.set_nonblocking(true).unwrap();
    while listener.accept().is_ok() {}
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let held = UnixStream::connect(&path).unwrap();
    fails(
        &["--socket", socket, "--timeout=0.2", "status"],
        3,
        &["does not answer within 200ms"],
    );
    drop((listener, held));
    fails(
        &["--socket", socket, "status"],
        3,
        &["no agent answers", "refused"],
    );
}

#[test]
fn a_wrong_command_line_is_2() {
    fails(&["--timeout", "soon", "status"], 2, &["--timeout", "500ms"]);
    fails(&[], 2, &["Usage"]);
    fails(&["nothing"], 2, &["nothing"]);
    fails(&["status", "-o", "xml"], 2, &["xml", "table", "json"]);
    fails(&["nat", "flush"], 2, &["--pod", "--all"]);
    fails(
        &["nat", "flush", "--all", "--pod", "10.0.0.1"],
        2,
        &["--pod", "--all"],
    );
    fails(&["nat", "list", "--pod", "here"], 2, &["here"]);
    fails(
        &[
            "endpoint",
            "add",
            "a",
            "--netns",
            "x",
            "--address",
            "10.0.0",
        ],
        2,
        &["10.0.0"],
    );
}

#[test]
fn a_bad_configuration_is_named_before_anything_happens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, "datapath:\n  mark-mask: 0xf00f0000\n").unwrap();
    let path = file.to_str().unwrap();
    let words = [path, "datapath.mark-mask", "contiguous"];
    fails(&["config", "check", path], 1, &words);
    fails(&["--config", path, "run"], 1, &words);
    fails(
        &["--config", "/nowhere.yaml", "config", "show"],
        1,
        &["/nowhere.yaml"],
    );

    fs::write(&file, "log-level: debug\n").unwrap();
    assert!(towpath(&["config", "check", path]).status.success());
    let output = towpath(&["--config", path, "config", "show"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with("log-level"));
    let words: Vec<_> = row.unwrap().split_whitespace().take(3).collect();
    assert_eq!(words, ["log-level", "debug", "file"]);
    let output = towpath(&["--config", path, "config", "show", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows.as_array().unwrap().len() > 10);
}

#[test]
fn the_example_is_a_good_configuration_and_the_schema_is_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, towpath(&["config", "example"]).stdout).unwrap();
    let checked = towpath(&["config", "check", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{checked:?}");
    let schema: serde_json::Value =
        serde_json::from_slice(&towpath(&["config", "schema"]).stdout).unwrap();
    assert_eq!(schema["properties"]["socket"]["type"], "string");
    let reference = String::from_utf8(towpath(&["config", "reference"]).stdout).unwrap();
    assert!(reference.contains("\n| `socket` | `/run/towpath/agent.sock` |"));
}

/// A kubeconfig, which names a proxy where there is one.
fn kubeconfig(folder: &Path, proxy: &str) -> String {
    let path = folder.join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: here,
          contexts: [{{name: here, context: {{cluster: ours, user: me}}}}],
          users: [{{name: me, user: {{token: t}}}}],
          clusters: [{{name: ours, cluster: {{server: 'https://10.0.0.1:7443'{proxy}}}}}]}}"
    );
    fs::write(&path, text).expect("a file");
    path.to_str().expect("text").to_owned()
}

/// Both say the same of the same file.
#[test]
fn what_is_checked_is_what_the_agent_would_say() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let path = file.to_str().unwrap();
    let cluster = |more: &str| format!("kubernetes: {{enabled: true, node-name: n, {more}}}\n");
    let with = |kubeconfig: &str| cluster(&format!("kubeconfig: {kubeconfig}"));
    let proxied = kubeconfig(folder.path(), ", proxy-url: 'ftp://me:secret@proxy.corp'");
    let long = format!("socket: /{}\n", "x".repeat(120));
    for (text, words) in [
        ("datapath: {mark-mask: 0xf00f0000}\n", "datapath.mark-mask"),
        ("nonsense: 1\n", "nonsense"),
        (&long, "socket: "),
        (
            "http: {address: '127.0.0.1:9971'}\nmetrics: {address: '0.0.0.0:9971'}\n",
            "metrics.address: 0.0.0.0:9971 is refused beside http.address",
        ),
        (
            &(with(&proxied) + "masquerade: {pools: /x}\n"),
            "masquerade.pools is refused with kubernetes.enabled",
        ),
        (&with(&proxied), "proxy-url: \"ftp://...@proxy.corp\""),
        (&with("/nowhere"), "kubernetes.kubeconfig: /nowhere"),
        (&cluster(""), "kubernetes.kubeconfig is null"),
        (
            "kubernetes: {enabled: true}\n",
            "kubernetes.node-name: missing",
        ),
        (
            &cluster("cni-configuration: /nowhere"),
            "kubernetes.cni-configuration: /nowhere",
        ),
    ] {
        fs::write(&file, text).unwrap();
        fails(&["config", "check", path], 1, &[words]);
        let checked = towpath(&["config", "check", path]);
        let run = towpath(&["--config", path, "run"]);
        assert_eq!(run.status.code(), Some(1), "{text}");
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said(&checked), said(&run), "{text}");
        assert!(!said(&run).contains("secret"));
    }
}

/// Variables that others inject are no reason to stop, whatever they say.
#[test]
fn a_proxy_of_the_environment_is_none_of_the_agent_s() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    for proxy in [
        "",
        ", proxy-url: 'http://proxy.corp:3128'",
        ", proxy-url: 'socks5://p:1080'",
    ] {
        let kubeconfig = kubeconfig(folder.path(), proxy);
        let text =
            format!("kubernetes: {{enabled: true, node-name: n, kubeconfig: {kubeconfig}}}\n");
        fs::write(&file, text).unwrap();
        for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "http_proxy"] {
            for value in [
                "http://10.0.0.99:3128",
                "proxy.corp:3128",
                "socks5://p",
                "::",
                "a b",
            ] {
                for exceptions in ["", "10.0.0.0/8", "localhost,,:x,", "*"] {
                    let output = Command::new(env!("CARGO_BIN_EXE_towpath"))
                        .args(["config", "check"])
                        .arg(&file)
                        .env(name, value)
                        .env("NO_PROXY", exceptions)
                        .output()
                        .unwrap();
                    let error = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{name}={value}: {error}");
                }
            }
        }
    }
}

#[test]
fn what_may_not_be_meant_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let [file, agent, node] =
        ["config.yaml", "agent", "node.json"].map(|name| folder.path().join(name));
    fs::write(&agent, "nonMasqueradeCIDRs: [x]\n").unwrap();
    let enis = r#"{"status": {"eni": {"enis": {"eni-0": {"mac": "none"}}}},
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode"}"#;
    fs::write(&node, enis).unwrap();
    let text = format!(
        "datapath: {{mark-mask: 0xffff}}\nnode: {{document: {}}}\n\
         masquerade: {{ip-masq-agent: {{enabled: true, path: {}}}}}\n",
        node.display(),
        agent.display()
    );
    fs::write(&file, text).unwrap();
    let output = towpath(&["config", "check", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    for words in [
        "warning: datapath.mark-mask: 0x0000ffff has bits of kube-proxy (0xc000)",
        "nonMasqueradeCIDRs[0]",
        "node.json: status.eni.enis.eni-0.mac: \"none\" is refused; allowed: a unicast MAC",
        "config.yaml is good",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = towpath(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(
            String::from_utf8(output.stdout)
                .unwrap()
                .contains("towpath")
        );
    }
}

#[test]
fn a_good_configuration_can_be_said_as_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    fs::write(&file, "log-level: debug\n").expect("a file");
    let output = towpath(&[
        "config",
        "check",
        file.to_str().expect("text"),
        "-o",
        "json",
    ]);
    assert!(output.status.success());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["good"], true, "{value}");
    assert_eq!(value["file"], file.to_str().expect("text"), "{value}");
}

#[test]
fn a_bad_configuration_is_said_as_json_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    fs::write(&file, "datapath:\n  mark-mask: 0xf00f0000\n").expect("a file");
    let path = file.to_str().expect("text");
    let output = towpath(&["config", "check", path, "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["good"], false, "{value}");
    assert_eq!(value["file"], path, "{value}");
    let error = value["error"].as_str().expect("a message");
    assert!(error.contains("datapath.mark-mask"), "{error}");
    let message = String::from_utf8(output.stderr).expect("text");
    assert_eq!(message, format!("towpath: {error}\n"));
}

#[test]
fn a_reader_that_is_gone_changes_no_exit_code() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_towpath"))
        .args(["--socket", "/nowhere/agent.sock", "status"])
        .env_remove("TOWPATH_CONFIG")
        .stderr(writer)
        .status()
        .expect("run towpath");
    assert_eq!(status.code(), Some(3));
}
