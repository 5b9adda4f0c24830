//! The `CiliumPodIPPool` objects, handed on like the documents' files.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher as follow_all};
use kubernetes::choice::Candidates;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::client::Connection;
use super::{POOLS_PLACE, RETRY, RETRY_MAX, Remarks, objects};
use crate::follow::Followed;
use crate::masquerade::Pools;

/// The topic of what there is to tell.
const TOPIC: &str = "pools";

/// Follows the pools: those for policy and allocation, and those that pods are chosen for.
pub(super) fn follow(
    connection: &Connection,
    candidates: watch::Sender<Arc<Candidates>>,
    remarks: Remarks,
) -> watch::Receiver<Followed<Pools>> {
    let (sender, receiver) = watch::channel(Followed::default());
    let connection = connection.clone();
    let follow = move || {
        let pools = objects::pools(&connection.client);
        follow_all(pools, connection.watching()).default_backoff()
    };
    tokio::spawn(async move {
        let mut events = std::pin::pin!(follow());
        let mut all = All::default();
        let mut failures: u32 = 0;
        loop {
            let event = tokio::select! {
                () = sender.closed() => return,
                event = events.next() => event,
            };
            let parsed = match event {
                None => return,
                Some(Ok(event)) => {
                    failures = 0;
                    if !all.take(event) {
                        continue;
                    }
                    let read = Candidates::read(all.by_name.values());
                    remarks.set(TOPIC, read.problems());
                    candidates.send_replace(Arc::new(read));
                    all.parse()
                }
                Some(Err(error)) => {
                    let error = Err(format!("the pools are not followed: {error}"));
                    sender.send_if_modified(|pools| pools.take(error, "pools", POOLS_PLACE));
                    let wait = RETRY * 2u32.pow(failures.min(6));
                    failures = failures.saturating_add(1);
                    sleep(wait.min(RETRY_MAX)).await;
                    // A watch that goes on says so with the next change only; a new one lists all.
                    events.set(follow());
                    continue;
                }
            };
            sender.send_if_modified(|pools| pools.take(parsed, "pools", POOLS_PLACE));
        }
    });
    receiver
}

/// The objects as they are known, and those of a list that comes in.
#[derive(Default)]
struct All {
    by_name: BTreeMap<String, Value>,
    listed: Option<BTreeMap<String, Value>>,
}

impl All {
    /// Takes an event; whether there is something whole to look at.
    fn take(&mut self, event: Event<DynamicObject>) -> bool {
        let name = |object: &DynamicObject| object.metadata.name.clone().unwrap_or_default();
        match event {
            Event::Init => self.listed = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                let (name, object) = (name(&object), objects::value(object));
                if let (Some(listed), Ok(object)) = (&mut self.listed, object) {
                    listed.insert(name, object);
                }
            }
            Event::InitDone => self.by_name = self.listed.take().unwrap_or_default(),
            Event::Apply(object) => {
                let (name, object) = (name(&object), objects::value(object));
                if let Ok(object) = object {
                    self.by_name.insert(name, object);
                }
            }
            Event::Delete(object) => {
                self.by_name.remove(&name(&object));
            }
        }
        self.listed.is_none()
    }

    fn parse(&self) -> Result<Pools, String> {
        let items: Vec<Value> = self.by_name.values().map(with_type).collect();
        Pools::read(
            POOLS_PLACE.as_ref(),
            &json!({"kind": "List", "items": items}).to_string(),
        )
    }
}

/// An object of a list has no type of its own.
fn with_type(object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = json!("cilium.io/v2alpha1");
    object["kind"] = json!("CiliumPodIPPool");
    object
}
