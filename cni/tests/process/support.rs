//! A played agent, and the plugin as a runtime calls it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// The container that tests use, and the id of its files (the agent's `EndpointId`).
pub(crate) const CONTAINER: &str = "0a1b2c";
pub(crate) const ENDPOINT_ID: &str = "3cbc86a9b99a";
pub(crate) const NETNS: &str = "/run/netns/web";

/// A request as the agent got it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Option<Value>,
}

/// Response of the simulated agent to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Status and body.
    Json(u16, Value),
    /// The connection is closed without an answer.
    Close,
    /// Nothing, until the other side goes.
    Hang,
}

/// An agent that answers by a function, and records its requests.
pub(crate) struct Agent {
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Agent {
    /// Listens at a world's socket.
    pub(crate) fn start(
        world: &World,
        mut answer: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> Self {
        let listener = UnixListener::bind(world.socket()).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // A plugin that was killed says nothing.
                let Some(request) = receive(&stream) else {
                    continue;
                };
                seen.lock().unwrap().push(request.clone());
                match answer(&request) {
                    Answer::Json(status, body) => send(&mut stream, status, &body),
                    Answer::Close => {}
                    Answer::Hang => {
                        let _gone = stream.read(&mut [0]);
                    }
                }
            }
        });
        Self { requests }
    }

    /// An agent for which everything works.
    pub(crate) fn willing(world: &World) -> Self {
        Self::start(world, willing)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Method and path of each request.
    pub(crate) fn calls(&self) -> Vec<String> {
        let requests = self.requests().into_iter();
        requests
            .map(|request| format!("{} {}", request.method, request.path))
            .collect()
    }
}

/// Answer of an agent for which every request succeeds.
pub(crate) fn willing(request: &Request) -> Answer {
    let body = request.body.as_ref();
    let addresses = body.and_then(|body| body.get("addresses")?.as_array());
    let address = addresses.map_or(json!("10.0.1.20"), |addresses| addresses[0].clone());
    match (request.method.as_str(), request.path.as_str()) {
        ("PUT", "/v1/endpoints") => Answer::Json(200, attachment(&address)),
        ("PUT", "/v1/addresses") => Answer::Json(200, lease(&address)),
        ("GET", path) if path.starts_with("/v1/endpoints/") => {
            let error =
                json!({"code": "unknown-endpoint", "message": "it has none", "retry": false});
            Answer::Json(404, json!({"error": error}))
        }
        ("GET", "/v1/ready") => Answer::Json(200, json!({"ready": true})),
        _ => Answer::Json(200, json!({})),
    }
}

/// An address of ENI 1, as answers have it.
fn given(address: &Value) -> Value {
    json!({
        "address": address,
        "pool": "default",
        "skip-masquerade": false,
        "eni": {"number": 1, "id": "eni-0b", "mac": "0a:11:22:33:44:55"},
        "gateway": "10.0.1.1",
        "subnet": "10.0.1.0/24",
        "vpc-cidrs": ["10.0.0.0/16"]
    })
}

/// The answer to `PUT /v1/endpoints`.
pub(crate) fn attachment(address: &Value) -> Value {
    let mut given = given(address);
    given["pod-gateway"] = json!("169.254.1.1");
    json!({
        "owner": {"container-id": CONTAINER, "interface": "eth0"},
        "netns": NETNS,
        "host-device": "tow3cbc86a9b99a",
        "host-mac": "3e:bc:86:a9:b9:9a",
        "pod-mac": "3a:bc:86:a9:b9:9a",
        "mtu": 9001,
        "addresses": [given]
    })
}

/// The answer to `PUT /v1/addresses`.
pub(crate) fn lease(address: &Value) -> Value {
    json!({
        "owner": {"container-id": CONTAINER, "interface": "eth0"},
        "addresses": [given(address)],
        "expires-seconds": 600
    })
}

fn receive(stream: &UnixStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok()?;
        let field = field.trim();
        if field.is_empty() {
            break;
        }
        if let Some((name, value)) = field.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = (length > 0).then(|| serde_json::from_slice(&body).unwrap());
    Some(Request { method, path, body })
}

fn send(stream: &mut UnixStream, status: u16, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    let text = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
    // A plugin that was killed does not read it.
    stream.write_all(text.as_bytes()).ok();
}

/// A folder for one test: the agent's socket, the queue, plugins.
pub(crate) struct World {
    folder: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("agent.sock")
    }

    pub(crate) fn queue(&self) -> PathBuf {
        self.path().join("state/pending-deletes")
    }

    /// Files of the queue, without the lock.
    pub(crate) fn queued(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.queue()) else {
            return Vec::new();
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != ".lock").collect();
        names.sort();
        names
    }

    /// Folder of the plugins.
    pub(crate) fn plugins(&self) -> PathBuf {
        let folder = self.path().join("bin");
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A shell script as a plugin.
    pub(crate) fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;

        let path = self.plugins().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A configuration with this world's socket and queue.
    pub(crate) fn config(&self, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "name": "towpath",
            "type": "towpath-cni",
            "socket": self.socket(),
            "state-dir": self.path().join("state"),
            "timeout": 2,
        })
    }
}

/// A call of the plugin.
pub(crate) struct Call<'a> {
    world: &'a World,
    name: &'static str,
    variables: BTreeMap<String, String>,
    config: Vec<u8>,
}

/// The outcome of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) printed: Value,
}

impl<'a> Call<'a> {
    pub(crate) fn new(world: &'a World, command: &str, config: &Value) -> Self {
        let variables = BTreeMap::from([
            ("CNI_COMMAND", command.to_owned()),
            ("CNI_CONTAINERID", CONTAINER.to_owned()),
            ("CNI_IFNAME", "eth0".to_owned()),
            ("CNI_NETNS", NETNS.to_owned()),
            ("CNI_PATH", world.plugins().display().to_string()),
        ]);
        Self {
            world,
            name: "towpath-cni",
            variables: variables
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            config: config.to_string().into_bytes(),
        }
    }

    /// Under the name of the IPAM plugin.
    pub(crate) fn under_the_ipam_name(mut self) -> Self {
        self.name = "towpath-ipam";
        self
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.variables.remove(name);
        self
    }

    pub(crate) fn input(mut self, config: &[u8]) -> Self {
        config.clone_into(&mut self.config);
        self
    }

    /// Runs it to its end.
    pub(crate) fn run(&self) -> Outcome {
        let output = self.output();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let printed = if stdout.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
        };
        Outcome {
            code: output.status.code(),
            printed,
        }
    }

    fn output(&self) -> Output {
        let program = self.world.path().join(self.name);
        match std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_towpath-cni"), &program) {
            // An earlier call has made it, or one at the same time.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made.unwrap(),
        }
        let mut child = Command::new(program)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(&self.variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        // It may fail before it reads.
        child.stdin.take().unwrap().write_all(&self.config).ok();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output()));
        let limit = Duration::from_mins(1);
        receiver
            .recv_timeout(limit)
            .expect("the plugin does not end")
            .unwrap()
    }
}

impl Outcome {
    /// Printed result of a successful call.
    pub(crate) fn success(self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.printed);
        self.printed
    }

    /// The code and text of a failure.
    pub(crate) fn failure(self) -> (u64, String) {
        assert_eq!(self.code, Some(1), "{}", self.printed);
        let text = |key| {
            self.printed
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let code = self.printed["code"].as_u64().unwrap();
        (code, format!("{}: {}", text("msg"), text("details")))
    }
}
