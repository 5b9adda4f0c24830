//! Events on the Node about refused entries, about netfilter rules that pods' packets bypass, and
//! about a full conntrack, for the operators of the cluster. And events on pods whose packets began
//! to take another path.

use std::collections::BTreeSet;
use std::time::Duration;

use api::ids::PodRef;
use apiserver::events::Events;
use kubernetes::report::events::Subject;
use kubernetes::report::refusals::{Due, Refusals};
use tokio::time::{Instant, sleep};

use crate::server::{Command, Handle, IngressCommand};

/// Interval between checks.
const LOOK: Duration = Duration::from_secs(5);
const REFUSED: &str = "RefusedEntry";
const BYPASSED: &str = "RuleBypassed";
const CUT_OFF: &str = "ConnectionsInvalid";
const FULL: &str = "ConntrackFull";
const INGRESS: &str = "AgentAddressMissing";

/// Runs until the agent takes no commands any more.
pub(super) async fn run(node: String, agent: Handle, events: Events) {
    let began = Instant::now();
    let mut refusals = Refusals::default();
    let mut bypassed = Refusals::default();
    let mut cut_off = BTreeSet::new();
    let mut full = Refusals::default();
    let mut own = Refusals::default();
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
        if let Ok(shortage) = agent.ask(Command::ConntrackShortage).await {
            for Due { problem, message } in full.due(began.elapsed(), shortage) {
                events.tell_problem(Subject::node(&node), FULL, problem, message);
            }
        }
        if let Ok(pods) = agent.ask(Command::CutOffPods).await {
            let reported = std::mem::take(&mut cut_off);
            for (pod, message) in pods {
                // An event without the uid is not shown with the pod.
                let Some(subject) = subject(&pod) else {
                    continue;
                };
                if !reported.contains(&subject.uid) {
                    events.tell(subject.clone(), CUT_OFF, message);
                }
                cut_off.insert(subject.uid);
            }
        }
        let problems = |reply| Command::Ingress(IngressCommand::Problems(reply));
        if let Ok(problems) = agent.ask(problems).await {
            for Due { problem, message } in own.due(began.elapsed(), problems) {
                events.tell_problem(Subject::node(&node), INGRESS, problem, message);
            }
        }
        sleep(LOOK).await;
    }
}

fn subject(pod: &PodRef) -> Option<Subject> {
    Some(Subject {
        api_version: "v1",
        kind: "Pod",
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone()?,
    })
}
