//! The `CiliumPodIPPool` objects, handed on like the documents' files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubernetes::choice::Candidates;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::client::Connection;
use super::follow::{self, Key, Resource, Trouble};
use super::remarks::POOLS_TOPIC;
use super::{POOLS_PLACE, Remarks, objects};
use crate::follow::Followed;
use crate::masquerade::Pools;

/// How long removals are held back. Before the resource itself goes, the API server removes its objects.
const SETTLE: Duration = Duration::from_secs(5);

/// Follows the pools: those for policy and allocation, and those that pods are chosen for.
pub(super) fn follow(
    connection: &Connection,
    candidates: watch::Sender<Option<Arc<Candidates>>>,
    remarks: Remarks,
) -> watch::Receiver<Followed<Pools>> {
    let (sender, receiver) = watch::channel(Followed::default());
    let pools = Resource {
        versions: vec![objects::pools(&connection.client)],
        lists: connection.lists.clone(),
        config: connection.watching(),
        absent: follow::LOOK_FOR,
        settle: SETTLE,
    };
    let mut are_served = false;
    tokio::spawn(pools.follow(with_type, move |told| {
        let parsed = match told {
            Ok(all) => {
                are_served = true;
                let read = Candidates::read(all.values());
                remarks.set(POOLS_TOPIC, read.problems());
                candidates.send_replace(Some(Arc::new(read)));
                parse(all, sender.borrow().value.as_deref())
            }
            Err(Trouble::Absent) if are_served => {
                Err(format!("the API server has no {POOLS_PLACE} any more"))
            }
            Err(Trouble::Absent) => {
                candidates.send_replace(Some(Arc::default()));
                Ok(Pools::absent(format!(
                    "the API server has no {POOLS_PLACE}, which is looked for again: no pool has an \
                     object"
                )))
            }
            Err(Trouble::Failed(error)) => Err(format!("the pools are not followed: {error}")),
        };
        sender.send_if_modified(|pools| pools.take(parsed, "pools", POOLS_PLACE));
        !sender.is_closed()
    }));
    receiver
}

fn parse(all: &BTreeMap<Key, Value>, last: Option<&Pools>) -> Result<Pools, String> {
    let items: Vec<&Value> = all.values().collect();
    let list = json!({"kind": "List", "items": items}).to_string();
    Pools::read(POOLS_PLACE.as_ref(), &list, last)
}

/// An object of a list has no type of its own.
fn with_type(object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = json!("cilium.io/v2alpha1");
    object["kind"] = json!("CiliumPodIPPool");
    object
}
