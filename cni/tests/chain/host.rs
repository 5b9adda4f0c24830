//! A host of two namespaces, and the plugins on it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Debian's folder of the reference plugins.
pub(crate) const REFERENCE_PLUGINS: &str = "/usr/lib/cni";
/// The container, as in the transcripts.
pub(crate) const CONTAINER: &str = "0a1b2c";

/// Requests as they came: method, path and body.
pub(crate) type Requests = Arc<Mutex<Vec<String>>>;

/// A namespace for the host and one for the pod.
pub(crate) struct Host {
    folder: TempDir,
    node: String,
    pod: String,
}

impl Host {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |kind| format!("towpath-{kind}-{}-{number}", std::process::id());
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
            node: name("host"),
            pod: name("pod"),
        };
        for name in [&host.node, &host.pod] {
            run(&["ip", "netns", "add", name]);
            run(&["ip", "-netns", name, "link", "set", "lo", "up"]);
        }
        for name in ["towpath-cni", "towpath-ipam"] {
            symlink(env!("CARGO_BIN_EXE_towpath-cni"), host.path(name)).unwrap();
        }
        host
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn pod_path(&self) -> String {
        format!("/run/netns/{}", self.pod)
    }

    /// The devices that the agent would have made for the transcripts' container.
    pub(crate) fn add_endpoint(&self) {
        run(&[
            "ip",
            "-netns",
            &self.node,
            "link",
            "add",
            "tow3cbc86a9b99a",
            "address",
            "3e:bc:86:a9:b9:9a",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "address",
            "3a:bc:86:a9:b9:9a",
            "netns",
            &self.pod,
        ]);
        run(&[
            "ip",
            "-netns",
            &self.node,
            "link",
            "set",
            "tow3cbc86a9b99a",
            "up",
        ]);
        run(&["ip", "-netns", &self.pod, "link", "set", "eth0", "up"]);
        run(&[
            "ip",
            "-netns",
            &self.pod,
            "address",
            "add",
            "10.0.1.20/32",
            "dev",
            "eth0",
        ]);
    }

    /// An ENI's device in the subnet of the transcripts.
    pub(crate) fn add_eni(&self) {
        run(&[
            "ip", "-netns", &self.node, "link", "add", "eni0", "type", "veth", "peer", "name",
            "vpc0",
        ]);
        run(&["ip", "-netns", &self.node, "link", "set", "vpc0", "up"]);
        run(&[
            "ip",
            "-netns",
            &self.node,
            "address",
            "add",
            "10.0.1.10/24",
            "dev",
            "eni0",
        ]);
        run(&["ip", "-netns", &self.node, "link", "set", "eni0", "up"]);
    }

    /// Simulates an agent with these answers; a path without one, or with null, is an unknown
    /// endpoint.
    pub(crate) fn agent(&self, answers: Vec<(&'static str, Value)>) -> Requests {
        let listener = UnixListener::bind(self.path("agent.sock")).unwrap();
        let requests = Requests::default();
        let seen = Arc::clone(&requests);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(&stream);
                let (mut request, mut length) = (String::new(), 0);
                reader.read_line(&mut request).unwrap();
                loop {
                    let mut field = String::new();
                    reader.read_line(&mut field).unwrap();
                    if field.trim().is_empty() {
                        break;
                    }
                    if let Some(text) = field.strip_prefix("Content-Length:") {
                        length = text.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let request = request.trim_end().trim_end_matches(" HTTP/1.0").to_owned();
                let answer = answers
                    .iter()
                    .find(|(name, value)| *name == request && !value.is_null());
                let body = String::from_utf8(body).unwrap();
                seen.lock().unwrap().push(format!("{request} {body}"));
                let (status, answer) = match answer {
                    Some((_, answer)) => (200, answer.clone()),
                    None => (
                        404,
                        json!({"error": {"code": "unknown-endpoint", "message": "?"}}),
                    ),
                };
                write!(stream, "HTTP/1.0 {status} X\r\n\r\n{answer}").unwrap();
            }
        });
        requests
    }

    /// A configuration of ours for this host.
    pub(crate) fn config(&self, version: &str, kind: &str) -> Value {
        json!({"cniVersion": version, "name": "towpath", "type": kind,
            "socket": self.path("agent.sock"), "state-dir": self.path("state")})
    }

    /// Calls a plugin for the interface eth0: what it printed, and whether it succeeded.
    pub(crate) fn plugin(&self, kind: &str, command: &str, config: &Value) -> (Value, bool) {
        self.plugin_at("eth0", kind, command, config)
    }

    /// Calls a plugin for an interface: its printed result, and true if it succeeded.
    pub(crate) fn plugin_at(
        &self,
        interface: &str,
        kind: &str,
        command: &str,
        config: &Value,
    ) -> (Value, bool) {
        let ours = self.path(kind);
        let program = if ours.exists() {
            ours
        } else {
            Path::new(REFERENCE_PLUGINS).join(kind)
        };
        let folders = format!("{}:{REFERENCE_PLUGINS}", self.folder.path().display());
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.node])
            .arg(program)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", CONTAINER)
            .env("CNI_NETNS", self.pod_path())
            .env("CNI_IFNAME", interface)
            .env("CNI_PATH", folders)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(config.to_string().as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let printed = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (printed, output.status.success())
    }

    pub(crate) fn in_host(&self, command: &[&str]) -> String {
        run(&[&["ip", "netns", "exec", self.node.as_str()], command].concat())
    }

    pub(crate) fn in_pod(&self, command: &[&str]) -> String {
        run(&[&["ip", "netns", "exec", self.pod.as_str()], command].concat())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for name in [&self.node, &self.pod] {
            // Whatever a test did, both go.
            Command::new("ip")
                .args(["netns", "delete", name])
                .status()
                .ok();
        }
    }
}

fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
