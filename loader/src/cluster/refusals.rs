//! Events on the Node about entries that are refused, and about rules of netfilter that pods' packets go
//! past: an operator of the cluster looks there.

use std::time::Duration;

use apiserver::events::Events;
use kubernetes::refusals::{Due, Refusals};
use kubernetes::reports::Subject;
use tokio::time::{Instant, sleep};

use crate::server::{Command, Handle};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(5);
const REFUSED: &str = "RefusedEntry";
const BYPASSED: &str = "RuleBypassed";

/// Runs until the agent takes no commands any more.
pub(super) async fn run(node: String, agent: Handle, events: Events) {
    let began = Instant::now();
    let mut refusals = Refusals::default();
    let mut bypassed = Refusals::default();
    while !agent.is_closed() {
        if let Ok(refused) = agent.ask(Command::Refused).await {
            let refused = refused.iter().map(ToString::to_string);
            for Due { problem, message } in refusals.due(began.elapsed(), refused) {
                events.tell_problem(Subject::node(&node), REFUSED, problem, message);
            }
        }
        if let Ok(rules) = agent.ask(Command::BypassedRules).await {
            for Due { problem, message } in bypassed.due(began.elapsed(), rules) {
                events.tell_problem(Subject::node(&node), BYPASSED, problem, message);
            }
        }
        sleep(LOOK).await;
    }
}
