//! The plugin's recorded transcripts against the agent's API: its parser of requests, its types of
//! answers, and the plugin's reading of these.
//!
//! `cni/tests/process` replays the same files with a fake agent that gives the recorded answers.
//! That shows the plugin's behaviour with an older or a newer agent. This is the other half: the
//! agent understands requests of older plugins, refuses a newer plugin's field as the plugin
//! expects, and gives the recorded answers of an agent of this version.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use api::{ApiError, ErrorCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use towpath::server::{AddressCommand, Command, Reply};
use towpath_cni::failure::Failure;
use towpath_cni::request::config::{Config, Invocation, Role};
use towpath_cni::request::environment::Variables;
use towpath_cni::spec::SpecVersion;
use towpath_cni::verbs;

use crate::fake::{Fake, LIMITS, Response};

/// Error codes that only an agent of another version answers.
const OF_OTHERS: [&str; 5] = [
    "invalid-body",
    "unknown-version",
    "not-found",
    "method-not-allowed",
    "quota-of-the-moon",
];

/// Requests of the first plugins, which had no pools, networks and pods.
fn of_the_first_plugins() -> Vec<(&'static str, &'static str, Value)> {
    let owner = json!({"container-id": "0a1b2c", "interface": "eth0"});
    let attach = json!({"owner": owner, "netns": "/run/netns/web", "addresses": ["10.0.1.20"]});
    vec![
        ("PUT", "/v1/endpoints", attach),
        ("DELETE", "/v1/endpoints/0a1b2c/eth0", Value::Null),
        ("GET", "/v1/status", Value::Null),
        ("GET", "/v1/endpoints", Value::Null),
    ]
}

fn transcripts() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cni/tests/transcripts");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: &PathBuf| {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        (
            name,
            serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap(),
        )
    };
    files.iter().map(read).collect()
}

fn exchanges(transcript: &Value) -> &[Value] {
    transcript["exchanges"].as_array().unwrap()
}

/// True if an agent of this version gives all the recorded answers.
fn is_of_today(name: &str, transcript: &Value) -> bool {
    let code = |exchange: &Value| {
        let code = &exchange["answer"]["body"]["error"]["code"];
        code.as_str().unwrap_or_default().to_owned()
    };
    let mut codes = exchanges(transcript).iter().map(code);
    !name.contains("newer-agent")
        && !name.contains("older-agent")
        && !codes.any(|code| OF_OTHERS.contains(&code.as_str()))
}

/// A recorded answer as the agent itself gives it.
fn typed<T: DeserializeOwned>(answer: &Value) -> Result<T, ApiError> {
    let body = &answer["body"];
    if answer["status"] == 200 {
        Ok(serde_json::from_value(body.clone()).unwrap_or_else(|error| panic!("{error}: {body}")))
    } else {
        let mut error = body["error"].clone();
        if error.get("field").is_none() {
            error["field"] = Value::Null;
        }
        Err(serde_json::from_value(error).unwrap_or_else(|error| panic!("{error}: {body}")))
    }
}

fn say<T>(reply: Reply<T>, answer: Result<T, ApiError>) {
    reply.send(answer).ok();
}

/// Success says nothing more.
fn done(answer: &Value) -> Result<(), ApiError> {
    if answer["status"] == 200 {
        return Ok(());
    }
    typed::<Value>(answer).map(drop)
}

/// Sends a recorded answer as the agent's.
fn give(command: Command, answer: &Value) {
    match command {
        Command::AddEndpoint(_, reply) => say(reply, typed(answer)),
        Command::DeleteEndpoint(_, reply) | Command::Ready(reply) => say(reply, done(answer)),
        Command::CheckEndpoint(_, reply) => say(reply, typed(answer)),
        Command::Collect(_, reply) => say(reply, typed(answer)),
        Command::Endpoints(reply) => say(reply, typed(answer)),
        Command::Status(reply) => say(reply, typed(answer)),
        Command::Addresses(AddressCommand::Lease(_, reply)) => say(reply, typed(answer)),
        Command::Addresses(AddressCommand::Claim(_, reply) | AddressCommand::Release(_, reply)) => {
            say(reply, done(answer));
        }
        Command::Addresses(AddressCommand::List(reply)) => say(reply, typed(answer)),
        other => panic!("no plugin asks for {other:?}"),
    }
}

/// An agent that gives these answers, one after the other.
fn agent(answers: impl IntoIterator<Item = Value>) -> Fake {
    let answers: Arc<Mutex<VecDeque<Value>>> = Arc::new(Mutex::new(answers.into_iter().collect()));
    Fake::answering(LIMITS, move |command| {
        let answer = answers.lock().unwrap().pop_front();
        give(command, &answer.expect("a request that is not recorded"));
    })
}

fn ask(fake: &Fake, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    fake.request(method, path, &body)
}

fn code(response: &Response) -> Option<&str> {
    response.body["error"]["code"].as_str()
}

/// Each recorded request is understood, and this agent gives each recorded answer of an agent of
/// its version.
#[test]
fn what_is_recorded_is_what_the_agent_understands_and_says() {
    let mut count = 0;
    for (name, transcript) in transcripts() {
        let is_of_today = is_of_today(&name, &transcript);
        for exchange in exchanges(&transcript) {
            count += 1;
            let failed =
                json!({"status": 500, "body": {"error": ApiError::new(ErrorCode::Internal, "x")}});
            let answer = if is_of_today {
                &exchange["answer"]
            } else {
                &failed
            };
            let fake = agent([answer.clone()]);
            let request = &exchange["request"];
            let text = |key: &str| request[key].as_str().unwrap();
            let response = ask(&fake, text("method"), text("path"), &request["body"]);
            assert_eq!(
                json!(response.status),
                answer["status"],
                "{name}: {response:?}"
            );
            if is_of_today {
                assert_eq!(response.body, answer["body"], "{name}");
            }
        }
    }
    assert!(count > 40, "{count} exchanges");
}

#[test]
fn the_first_plugins_are_understood() {
    for (method, path, body) in of_the_first_plugins() {
        let failed = ApiError::new(ErrorCode::Internal, "it got through");
        let fake = agent([json!({"status": 500, "body": {"error": failed}})]);
        let response = ask(&fake, method, path, &body);
        assert_eq!(
            code(&response),
            Some("internal"),
            "{method} {path}: {response:?}"
        );
    }
}

/// The transcript `add-older-agent` has the plugin's reaction to `invalid-body`: it omits the
/// field.
#[test]
fn a_field_of_a_newer_plugin_is_refused_by_name() {
    for (name, transcript) in transcripts() {
        for exchange in exchanges(&transcript) {
            let request = &exchange["request"];
            if request["method"] != "PUT" {
                continue;
            }
            let mut body = request["body"].clone();
            body["of-tomorrow"] = json!(1);
            let fake = agent([]);
            let response = ask(&fake, "PUT", request["path"].as_str().unwrap(), &body);
            response.is_error(400, "invalid-body", Some("of-tomorrow"));
            assert_eq!(response.body["error"]["retry"], false, "{name}");
        }
    }
}

/// The environment of a recorded call.
struct Recorded(BTreeMap<String, String>);

impl Variables for Recorded {
    fn get(&self, name: &str) -> Option<OsString> {
        self.0.get(name).map(OsString::from)
    }
}

/// The plugin as it is, with the agent's interface as it is.
fn call(fake: &Fake, recorded: &Value) -> Result<Value, (Failure, SpecVersion)> {
    let is_ipam = recorded["ipam"] == true;
    let mut config = recorded["config"].clone();
    let local = if is_ipam {
        &mut config["ipam"]
    } else {
        &mut config
    };
    local["socket"] = json!(fake.socket());
    local["state-dir"] = json!(fake.folder.path().join("state"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let command = text(&recorded["command"]);
    let mut variables = BTreeMap::from([
        ("CNI_COMMAND".to_owned(), command.clone()),
        ("CNI_CONTAINERID".to_owned(), "0a1b2c".to_owned()),
        ("CNI_IFNAME".to_owned(), "eth0".to_owned()),
        ("CNI_NETNS".to_owned(), "/run/netns/web".to_owned()),
        ("CNI_PATH".to_owned(), "/nowhere".to_owned()),
    ]);
    for (name, value) in recorded["environment"].as_object().into_iter().flatten() {
        if value.is_null() {
            variables.remove(name);
        } else {
            variables.insert(name.clone(), text(value));
        }
    }
    let variables = Recorded(variables);
    let role = if is_ipam { Role::Ipam } else { Role::Interface };
    let version = SpecVersion::of(&config).unwrap();
    let run = || {
        let command = towpath_cni::request::environment::command(&variables)?;
        let raw = config.to_string().into_bytes();
        let invocation = Invocation {
            role,
            command,
            version,
        };
        let parsed = Config::parse(invocation, &config, &raw)?;
        verbs::run(role, command, &parsed, &variables)
    };
    match run() {
        Ok(printed) => Ok(printed.unwrap_or_default()),
        Err(failure) => Err((failure, version)),
    }
}

#[test]
fn what_the_agent_says_becomes_what_is_recorded_that_the_plugin_prints() {
    let mut count = 0;
    for (name, transcript) in transcripts() {
        if exchanges(&transcript).is_empty() || !is_of_today(&name, &transcript) {
            continue;
        }
        count += 1;
        let answers = exchanges(&transcript)
            .iter()
            .map(|one| one["answer"].clone());
        let fake = agent(answers);
        let (exit, printed) = match call(&fake, &transcript["call"]) {
            Ok(printed) => (0, printed),
            Err((failure, version)) => (1, failure.to_json(version)),
        };
        let expected = &transcript["outcome"];
        assert_eq!(
            printed,
            *expected.get("printed").unwrap_or(&Value::Null),
            "{name}"
        );
        assert_eq!(json!(exit), expected["exit"], "{name}");
    }
    assert!(count > 20, "{count} transcripts");
}
