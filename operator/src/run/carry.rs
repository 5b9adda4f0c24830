//! Works, carried out once each. Repetitions are the fleet's.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use apiserver::client::within;
use apiserver::events::Events;
use apiserver::write::Failure as Refusal;
use apiserver::{cause, objects};
use cloud::Failure;
use cloud::node::{Outcome, Step};
use ec2::Ec2;
use fleet::{About, Event, Input, Part, Task, Work, Written};
use ipam::Time;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kubernetes::report::events::Subject;
use serde_json::Value;

use super::WRITE;
use super::clock::moment;

/// A plan is good for so long. A process that was stopped after it may lead no more.
const GOOD_FOR: Duration = Duration::from_secs(5);
const NOT_SENT: &str = "not sent: this operator was stopped for a while";
/// A call goes no further after so long. Its client gives it up before, unless the process was stopped
/// while it waited, as for credentials.
const GOES_ON_FOR: Duration = Duration::from_secs(6);
const NO_REPLY: &str = "no reply: this operator was stopped for a while";

/// The objects of one page of a list.
const PAGE: u32 = 500;
/// The time limit of a page.
const LIST: Duration = Duration::from_secs(5);

/// The clients of EC2 and of the API server.
#[derive(Clone)]
pub(super) struct Carrier {
    pub(super) ec2: Arc<dyn Ec2>,
    pub(super) nodes: Api<DynamicObject>,
    pub(super) events: Events,
}

impl Carrier {
    /// Carries out a work of that time's plan. Events have no answer.
    pub(super) async fn carry_out(self, work: Work, planned: Time) -> Option<Input> {
        let id = work.id;
        let written = match work.task {
            Task::Call(step) => {
                let outcome = self.call(&step, planned).await;
                return Some(Input::Answer { id, outcome });
            }
            Task::Read(query) => {
                let page = self.ec2.read(&query).await;
                return Some(Input::Page { id, page });
            }
            Task::Event(event) => {
                self.report(event);
                return None;
            }
            Task::List => {
                let objects = self.list().await;
                return Some(Input::Listed { id, objects });
            }
            Task::Patch { name, part, body } => self.patch(&name, part, body).await,
            Task::PatchPool {
                name,
                version,
                body,
            } => self.patch_pool(&name, &version, body).await,
            Task::Advertise { name, body } => {
                let nodes = objects::kubernetes_nodes(&self.nodes.clone().into_client());
                let parameters = PatchParams::default();
                let patch = Patch::Merge(body);
                answer(within(WRITE, nodes.patch_status(&name, &parameters, &patch)).await)
            }
            Task::Delete { name, uid, version } => self.delete(&name, uid, version).await,
        };
        Some(Input::Written { id, written })
    }

    async fn call(&self, step: &Step, planned: Time) -> Outcome {
        let failed = |reason| Outcome::Failed(Failure::unanswered(step.action(), reason));
        let clock = || moment().ok().map(|at| at.now);
        match clock() {
            Some(begun) if !is_stale(planned, begun) => {
                let outcome = unless_stopped(self.ec2.step(step), begun, clock).await;
                outcome.unwrap_or_else(|| failed(NO_REPLY))
            }
            _ => failed(NOT_SENT),
        }
    }

    async fn patch(&self, name: &str, part: Part, body: Value) -> Written {
        let parameters = PatchParams::default();
        let patch = Patch::Merge(body);
        let patched = match part {
            Part::Spec | Part::Metadata => {
                within(WRITE, self.nodes.patch(name, &parameters, &patch)).await
            }
            Part::Status => within(WRITE, self.nodes.patch_status(name, &parameters, &patch)).await,
        };
        answer(patched)
    }

    async fn patch_pool(&self, name: &str, version: &str, body: Value) -> Written {
        let pools = objects::pools_of(&self.nodes.clone().into_client(), version);
        let parameters = PatchParams::default();
        let patch = Patch::Merge(body);
        answer(within(WRITE, pools.patch(name, &parameters, &patch)).await)
    }

    /// Lists every object. Without a version, the API server asks its store.
    async fn list(&self) -> Result<Vec<Value>, String> {
        let mut all = Vec::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let listed = within(LIST, self.nodes.list(&page)).await;
            let listed = listed.map_err(|error| {
                let cause = cause::chain(&error);
                tracing::warn!("list CiliumNodes: {cause}");
                cause
            })?;
            let next = listed.metadata.continue_.filter(|it| !it.is_empty());
            for object in listed.items {
                all.extend(objects::value(object).ok());
            }
            match next {
                Some(next) => page = page.continue_token(&next),
                None => return Ok(all),
            }
        }
    }

    async fn delete(&self, name: &str, uid: String, version: String) -> Written {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid),
                resource_version: Some(version),
            }),
            ..DeleteParams::default()
        };
        match within(WRITE, self.nodes.delete(name, &parameters)).await {
            Ok(_) => Written::Done(None),
            Err(error) => failed(&error),
        }
    }

    fn report(&self, event: Event) {
        let subject = match event.about {
            About::Node(name) => Subject::node(&name),
            About::Pool { name, uid } => Subject {
                api_version: "cilium.io/v2alpha1",
                kind: "CiliumPodIPPool",
                namespace: String::new(),
                name,
                uid,
            },
        };
        self.events.tell(subject, event.reason.name(), event.text);
    }
}

fn answer(patched: kube::Result<DynamicObject>) -> Written {
    match patched.map(objects::value) {
        Ok(Ok(object)) => Written::Done(Some(Box::new(object))),
        Ok(Err(_unreadable)) => Written::Done(None),
        Err(error) => failed(&error),
    }
}

fn failed(error: &kube::Error) -> Written {
    let retry_after = match Refusal::from(error) {
        Refusal::Conflict => return Written::Conflict,
        Refusal::Absent => return Written::Gone,
        Refusal::Busy(wait) => Some(wait),
        Refusal::Refused | Refusal::Unknown => None,
    };
    Written::Failed {
        reason: cause::chain(error),
        retry_after,
    }
}

/// Reports if a call must not be sent any more.
fn is_stale(planned: Time, now: Time) -> bool {
    now.since(planned) >= GOOD_FOR
}

/// Awaits a call that began at this time; none if the process was stopped. The call does nothing more
/// then: it may not have been sent yet, and another operator can lead by now.
async fn unless_stopped<T>(
    call: impl Future<Output = T>,
    begun: Time,
    clock: impl Fn() -> Option<Time>,
) -> Option<T> {
    let mut call = pin!(call);
    poll_fn(|context| match clock() {
        Some(now) if now.since(begun) < GOES_ON_FOR => call.as_mut().poll(context).map(Some),
        _ => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The call waits for something before it is sent, and the process is stopped in that time.
    #[tokio::test]
    async fn a_call_that_waits_while_the_process_is_stopped_is_not_sent() {
        for (stopped, is_sent) in [(0, true), (5_999, true), (6_000, false), (600_000, false)] {
            let begun = Time::from_millis(5_000);
            let (now, sent) = (Cell::new(begun), Cell::new(false));
            let call = async {
                tokio::task::yield_now().await;
                sent.set(true);
            };
            let clock = || {
                let at = now.get();
                now.set(begun.after(Duration::from_millis(stopped)));
                Some(at)
            };
            let outcome = unless_stopped(call, begun, clock).await;
            assert_eq!(
                (outcome.is_some(), sent.get()),
                (is_sent, is_sent),
                "{stopped} ms"
            );
        }
    }

    #[test]
    fn a_call_is_not_sent_long_after_its_plan() {
        let planned = Time::from_millis(5_000);
        assert!(!is_stale(planned, Time::from_millis(9_999)));
        assert!(is_stale(planned, Time::from_millis(10_000)));
        // A plan that is in the future by the call's clock is not stale.
        assert!(!is_stale(planned, Time::from_millis(4_000)));
    }
}
