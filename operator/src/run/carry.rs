//! Works, carried out once each. Repetitions are the fleet's.

use std::sync::Arc;

use apiserver::client::within;
use apiserver::events::Events;
use apiserver::write::Failure;
use apiserver::{cause, objects};
use ec2::Ec2;
use fleet::{Event, Input, Part, Task, Work, Written};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kubernetes::reports::Subject;
use serde_json::Value;

use super::WRITE;

/// The way to EC2 and to the API server.
#[derive(Clone)]
pub(super) struct Carrier {
    pub(super) ec2: Arc<dyn Ec2>,
    pub(super) nodes: Api<DynamicObject>,
    pub(super) events: Events,
}

impl Carrier {
    /// Carries out a work. Events have no answer.
    pub(super) async fn carry_out(self, work: Work) -> Option<Input> {
        let id = work.id;
        let written = match work.task {
            Task::Call(step) => {
                let outcome = self.ec2.step(&step).await;
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
            Task::Patch { name, part, body } => self.patch(&name, part, body).await,
            Task::Delete { name, uid, version } => self.delete(&name, uid, version).await,
        };
        Some(Input::Written { id, written })
    }

    async fn patch(&self, name: &str, part: Part, body: Value) -> Written {
        let parameters = PatchParams::default();
        let patch = Patch::Merge(body);
        let patched = match part {
            Part::Spec => within(WRITE, self.nodes.patch(name, &parameters, &patch)).await,
            Part::Status => within(WRITE, self.nodes.patch_status(name, &parameters, &patch)).await,
        };
        match patched.map(objects::value) {
            Ok(Ok(object)) => Written::Done(Some(Box::new(object))),
            Ok(Err(_unreadable)) => Written::Done(None),
            Err(error) => failed(&error),
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
        let subject = Subject::node(&event.node);
        self.events.tell(subject, event.reason.name(), event.text);
    }
}

fn failed(error: &kube::Error) -> Written {
    let retry_after = match Failure::from(error) {
        Failure::Conflict => return Written::Conflict,
        Failure::Absent => return Written::Gone,
        Failure::Busy(wait) => Some(wait),
        Failure::Refused | Failure::Unknown => None,
    };
    Written::Failed {
        reason: cause::chain(error),
        retry_after,
    }
}
