//! `NetworkPolicy` objects that select pods of this node while the pods' packets bypass the host's
//! stack, and thus netfilter's policy engines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver::client::Connection;
use apiserver::events::Events;
use apiserver::follow::{self, Key, Resource, Trouble};
use apiserver::objects;
use kubernetes::policies::{Policy, Selected, selecting};
use kubernetes::report::events::Subject;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Signals;
use super::metadata::Metadatas;
use crate::server::{Command, Handle};

/// Time for which changes are collected.
const GATHER: Duration = Duration::from_secs(1);
/// Interval between checks without a sign of a change.
const LOOK: Duration = Duration::from_mins(1);
/// Most pods that an event names.
const NAMED: usize = 5;

/// Network policies that may not be enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unenforced {
    /// Policies that select pods of this node.
    pub(crate) selected: Vec<Selected>,
    /// The reason why policies are not followed.
    pub(crate) error: Option<String>,
}

type Followed = (BTreeMap<Key, Policy>, Option<String>);

/// The parts of the cluster's code that a check of the policies needs.
pub(super) struct Checks {
    pub(super) metadatas: Metadatas,
    /// Signals that a pod was added.
    pub(super) signals: Arc<Signals>,
    pub(super) agent: Handle,
    pub(super) events: Events,
}

/// Follows the policies.
pub(super) fn follow(connection: &Connection, checks: Checks) -> watch::Receiver<Unenforced> {
    let (policies, followed) = watch::channel(Followed::default());
    let resource = Resource {
        versions: vec![objects::policies(&connection.client)],
        lists: connection.lists.clone(),
        config: connection.watching(),
        absent: follow::LOOK_FOR,
        settle: Duration::ZERO,
    };
    tokio::spawn(resource.follow(Policy::read, move |update| {
        policies.send_modify(|(all, error)| match update {
            Ok(new) => {
                all.clone_from(new);
                *error = None;
            }
            // Those that were known stay.
            Err(Trouble::Absent) => *error = None,
            Err(Trouble::Failed(new)) => *error = Some(new),
        });
        !policies.is_closed()
    }));
    let (sender, receiver) = watch::channel(Unenforced::default());
    let watch = Watch {
        followed,
        checks,
        reported: BTreeMap::new(),
    };
    tokio::spawn(watch.run(sender));
    receiver
}

struct Watch {
    followed: watch::Receiver<Followed>,
    checks: Checks,
    /// The pods that an event has named, by the policy's uid.
    reported: BTreeMap<String, BTreeSet<String>>,
}

impl Watch {
    async fn run(mut self, sender: watch::Sender<Unenforced>) {
        while !sender.is_closed() {
            let change = async {
                tokio::select! {
                    Ok(()) = self.followed.changed() => {}
                    () = self.checks.signals.attached.notified() => {}
                    () = self.checks.metadatas.changed() => {}
                }
            };
            if timeout(LOOK, change).await.is_ok() {
                sleep(GATHER).await;
            }
            let Ok(endpoints) = self.checks.agent.ask(Command::Endpoints).await else {
                continue;
            };
            let pods = endpoints.into_iter().filter_map(|endpoint| endpoint.pod);
            let pods: Vec<_> = pods
                .filter_map(|pod| self.checks.metadatas.known(&pod))
                .collect();
            let now = {
                let followed = self.followed.borrow_and_update();
                Unenforced {
                    selected: selecting(followed.0.values(), &pods),
                    error: followed.1.clone(),
                }
            };
            self.tell(&now.selected);
            sender.send_if_modified(|known| {
                let changed = *known != now;
                *known = now;
                changed
            });
        }
    }

    /// Records events for policies that select further pods.
    fn tell(&mut self, selected: &[Selected]) {
        let by_uid = |selected: &Selected| (selected.policy.uid.clone(), selected.pods.clone());
        for one in selected {
            let Selected { policy, pods } = one;
            let reported = self.reported.get(&policy.uid);
            if reported.is_some_and(|reported| pods.is_subset(reported)) {
                continue;
            }
            let subject = Subject {
                api_version: "networking.k8s.io/v1",
                kind: "NetworkPolicy",
                namespace: policy.namespace.clone(),
                name: policy.name.clone(),
                uid: policy.uid.clone(),
            };
            let pods = named(pods);
            self.checks
                .events
                .tell(subject, "NotEnforced", message(&pods));
        }
        self.reported = selected.iter().map(by_uid).collect();
    }
}

fn named(pods: &BTreeSet<String>) -> String {
    let names: Vec<&str> = pods.iter().take(NAMED).map(String::as_str).collect();
    let more = pods.len().saturating_sub(NAMED);
    let names = names.join(", ");
    if more > 0 {
        format!("{names} and {more} more")
    } else {
        names
    }
}

fn message(pods: &str) -> String {
    format!(
        "Towpath takes what pods of this node ({pods}) send and get past the host's stack, so a policy \
         engine that works by netfilter does not see it; with datapath.path: stack it does"
    )
}
