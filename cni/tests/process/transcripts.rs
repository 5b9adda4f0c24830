//! Recorded requests and answers: the contract with older and newer agents, and the results of every
//! version of the specification.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{Agent, Answer, Call, Request, World};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Transcript {
    /// Description of the transcript.
    #[serde(rename = "about")]
    _about: String,
    call: Recorded,
    exchanges: Vec<Exchange>,
    outcome: Expected,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    command: String,
    #[serde(default)]
    ipam: bool,
    #[serde(default)]
    environment: BTreeMap<String, Option<String>>,
    config: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exchange {
    request: Asked,
    answer: Given,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    method: String,
    path: String,
    #[serde(default)]
    body: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    status: u16,
    body: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    exit: i32,
    #[serde(default)]
    printed: Value,
}

/// Gives the configuration this test's socket and queue.
fn localised(world: &World, recorded: &Recorded) -> Value {
    let mut config = recorded.config.clone();
    let local = if recorded.ipam {
        &mut config["ipam"]
    } else {
        &mut config
    };
    local["socket"] = json!(world.socket());
    local["state-dir"] = json!(world.path().join("state"));
    config
}

fn replay(file: &Path) {
    let name = file.file_name().unwrap().display();
    let text = std::fs::read_to_string(file).unwrap();
    let transcript: Transcript =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let world = World::new();
    let mut answers: VecDeque<_> = transcript
        .exchanges
        .iter()
        .map(|exchange| Answer::Json(exchange.answer.status, exchange.answer.body.clone()))
        .collect();
    let agent = Agent::start(&world, move |_request| {
        answers.pop_front().unwrap_or(Answer::Close)
    });
    let recorded = &transcript.call;
    let mut call = Call::new(&world, &recorded.command, &localised(&world, recorded));
    if recorded.ipam {
        call = call.under_the_ipam_name();
    }
    for (variable, value) in &recorded.environment {
        call = match value {
            Some(value) => call.with(variable, value),
            None => call.without(variable),
        };
    }
    let outcome = call.run();
    let expected: Vec<_> = transcript
        .exchanges
        .into_iter()
        .map(|exchange| Request {
            method: exchange.request.method,
            path: exchange.request.path,
            body: exchange.request.body,
        })
        .collect();
    assert_eq!(agent.requests(), expected, "{name}");
    assert_eq!(outcome.printed, transcript.outcome.printed, "{name}");
    assert_eq!(outcome.code, Some(transcript.outcome.exit), "{name}");
}

#[test]
fn every_transcript_is_replayed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 20, "{} transcripts", files.len());
    for file in files {
        replay(&file);
    }
}
