//! Garbage collection: what a container runtime does not know any more goes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use api::ids::{EndpointId, Owner};
use api::types::{GcKept, GcRequest, GcResult};
use loader::intent::EndpointMeta;

use crate::actor::Actor;
use crate::allocation::Addresses;
use crate::host::kernel::Host;
use crate::host::netns::Netns;

/// Time after the begin of its ADD for which an attachment may be missing in a runtime's list,
/// since the list may be older. It is longer than any ADD takes.
const YOUNG: Duration = Duration::from_secs(30);

impl<K: Host> Actor<K> {
    /// Removes the objects of the network that belong to none of the owners that are alive.
    pub(crate) async fn collect(&mut self, request: GcRequest) -> GcResult {
        let GcRequest { network, valid } = request;
        let valid: BTreeSet<Owner> = valid.into_iter().collect();
        self.take_orphans().await;
        let now = Addresses::now();
        let mut dead: BTreeMap<&Owner, (&EndpointMeta, Option<&Path>)> = BTreeMap::new();
        for (owner, about) in self.addresses.owners() {
            dead.insert(owner, (about, None));
        }
        for endpoint in self.intent.endpoints.values() {
            let netns = Some(endpoint.netns.as_path());
            dead.insert(&endpoint.owner, (&endpoint.about, netns));
        }
        dead.retain(|owner, (about, _)| {
            about.network.as_ref() == Some(&network) && !valid.contains(*owner)
        });
        let mut collected = self.collect_orphans(&network, &valid);
        for (owner, (about, netns)) in dead {
            let age = about.since.map_or(Duration::MAX, |since| now.since(since));
            if age < YOUNG && !netns.is_some_and(|path| Netns::at(path).is_gone()) {
                let reason = format!("its ADD began {} s ago", age.as_secs());
                let owner = owner.clone();
                collected.kept.push(GcKept { owner, reason });
            } else {
                collected.removed.push(owner.clone());
            }
        }
        collected.agent = self.kept_owners();
        let answers = self.delete(&collected.removed).await;
        let removed = std::mem::take(&mut collected.removed);
        for (owner, answer) in removed.into_iter().zip(answers) {
            match answer {
                Ok(()) => {
                    tracing::info!(%owner, network, "collected: the runtime does not list it");
                    collected.removed.push(owner);
                }
                Err(error) => {
                    let reason = error.to_string();
                    collected.kept.push(GcKept { owner, reason });
                }
            }
        }
        collected
    }

    /// Collects endpoints without a readable record that the runtime does not list. Their network
    /// is unknown, so they are removed only if no other network is in use.
    fn collect_orphans(&self, network: &str, valid: &BTreeSet<Owner>) -> GcResult {
        let valid: BTreeSet<EndpointId> = valid.iter().map(EndpointId::of).collect();
        let endpoints = self.intent.endpoints.iter();
        let orphans = endpoints.filter(|(_, one)| one.is_orphan());
        let orphans = orphans.map(|(id, _)| id);
        // Of a pod without a device the record alone may be left.
        let ids: BTreeSet<&EndpointId> = orphans.chain(self.records.corrupt.keys()).collect();
        let dead = ids.into_iter().filter(|id| !valid.contains(id));
        let dead = dead.map(|id| id.unknown_owner());
        let of_owners = self.addresses.owners().values();
        let of_endpoints = self.intent.endpoints.values().map(|one| &one.about);
        let mut networks = of_owners
            .chain(of_endpoints)
            .filter_map(|about| about.network.as_ref());
        let Some(other) = networks.find(|other| *other != network) else {
            return GcResult {
                removed: dead.collect(),
                ..GcResult::default()
            };
        };
        let reason = format!("its record is lost, and it may be of the network {other}");
        let kept = |owner| GcKept {
            owner,
            reason: reason.clone(),
        };
        GcResult {
            kept: dead.map(kept).collect(),
            ..GcResult::default()
        }
    }
}
