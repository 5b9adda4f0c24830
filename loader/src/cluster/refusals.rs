//! Events on the Node about entries that are refused: an operator of the cluster looks there.

use std::time::Duration;

use apiserver::events::Events;
use kubernetes::refusals::{Due, Refusals};
use kubernetes::reports::Subject;
use tokio::time::{Instant, sleep};

use crate::api::{Command, Handle};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(5);
const REASON: &str = "RefusedEntry";

/// Runs until the agent takes no commands any more.
pub(super) async fn run(node: String, agent: Handle, events: Events) {
    let began = Instant::now();
    let mut refusals = Refusals::default();
    while !agent.is_closed() {
        if let Ok(refused) = agent.ask(Command::Refused).await {
            let refused = refused.iter().map(ToString::to_string);
            for Due { problem, message } in refusals.due(began.elapsed(), refused) {
                events.tell_problem(subject(&node), REASON, problem, message);
            }
        }
        sleep(LOOK).await;
    }
}

/// A Node as the kubelet refers to it, by which `kubectl describe node` finds the events: the uid is
/// the name.
fn subject(node: &str) -> Subject {
    Subject {
        api_version: "v1",
        kind: "Node",
        namespace: String::new(),
        name: node.to_owned(),
        uid: node.to_owned(),
    }
}
