//! The `CiliumPodIPPool` objects, handed on like the documents' files.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use kubernetes::choice::Candidates;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::follow::{Key, Resource, Trouble};
use super::{POOLS_PLACE, RETRY_MAX, client, objects};
use crate::follow::Followed;
use crate::masquerade::Pools;

/// Follows the pools: those for policy and allocation, and those that pods are chosen for.
pub(super) fn follow(
    client: &Client,
    candidates: watch::Sender<Arc<Candidates>>,
) -> watch::Receiver<Followed<Pools>> {
    let (sender, receiver) = watch::channel(Followed::default());
    let pools = Resource {
        versions: vec![objects::pools(client)],
        config: client::watching(),
        absent: RETRY_MAX,
    };
    tokio::spawn(pools.follow(with_type, move |told| {
        let parsed = match told {
            Ok(all) => {
                candidates.send_replace(Arc::new(Candidates::read(all.values())));
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
