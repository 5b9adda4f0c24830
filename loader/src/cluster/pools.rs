//! The `CiliumPodIPPool` objects, handed on like the documents' files.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubernetes::choice::Candidates;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::client::Connection;
use super::follow::{Key, Resource, Trouble};
use super::{POOLS_PLACE, Remarks, objects, retry};
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
    let pools = Resource {
        versions: vec![objects::pools(&connection.client)],
        lists: connection.lists.clone(),
        config: connection.watching(),
        absent: retry::LONGEST,
    };
    tokio::spawn(pools.follow(with_type, move |told| {
        let parsed = match told {
            Ok(all) => {
                let read = Candidates::read(all.values());
                remarks.set(TOPIC, read.problems());
                candidates.send_replace(Arc::new(read));
                parse(all)
            }
            Err(Trouble::Absent) => Err(format!("the API server has no {POOLS_PLACE}")),
            Err(Trouble::Failed(error)) => Err(format!("the pools are not followed: {error}")),
        };
        sender.send_if_modified(|pools| pools.take(parsed, "pools", POOLS_PLACE));
        !sender.is_closed()
    }));
    receiver
}

fn parse(all: &BTreeMap<Key, Value>) -> Result<Pools, String> {
    let items: Vec<&Value> = all.values().collect();
    Pools::read(
        POOLS_PLACE.as_ref(),
        &json!({"kind": "List", "items": items}).to_string(),
    )
}

/// An object of a list has no type of its own.
fn with_type(object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = json!("cilium.io/v2alpha1");
    object["kind"] = json!("CiliumPodIPPool");
    object
}
