//! The `CiliumPodIPPool` objects, handed on like the documents' files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver::client::{Connection, REPLY_TIMEOUT};
use apiserver::follow::{self, Key, Resource, Trouble};
use apiserver::objects;
use kubernetes::pool::pool_selection::Candidates;
use loader::intent::masquerade::Pools;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::warnings::POOLS_TOPIC;
use super::{ClusterWarnings, POOLS_PLACE};
use sources::follow::Followed;
use sources::kept::Kept;
use sources::pools;

/// Time for which removals are held back. Before the resource itself is removed, the API server
/// removes its objects.
const SETTLE: Duration = Duration::from_secs(5);

/// Follows the pools: those for policy and allocation, and those that pods are chosen for. The kept
/// ones are in force where the server does not answer after the agent's start.
pub(super) fn follow(
    connection: &Connection,
    candidates: watch::Sender<Option<Arc<Candidates>>>,
    warnings: ClusterWarnings,
    kept: Kept,
) -> watch::Receiver<Followed<Pools>> {
    let (sender, receiver) = watch::channel(Followed::default());
    let pools = Resource {
        versions: objects::pool_versions(&connection.client),
        lists: connection.lists.clone(),
        config: connection.watching(),
        absent: follow::LOOK_FOR,
        settle: SETTLE,
    };
    let task = Arc::new(Mutex::new(Task::new(sender, candidates, warnings, kept)));
    let waiting = Arc::downgrade(&task);
    tokio::spawn(async move {
        sleep(REPLY_TIMEOUT).await;
        if let Some(task) = waiting.upgrade() {
            locked(&task).fail("the API server has not answered yet".to_owned());
        }
    });
    tokio::spawn(pools.follow(with_type, move |update| locked(&task).take(update)));
    receiver
}

fn locked(task: &Mutex<Task>) -> MutexGuard<'_, Task> {
    // A thread that panicked with the lock has left no partial change.
    task.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pools as they are known.
struct Task {
    sender: watch::Sender<Followed<Pools>>,
    candidates: watch::Sender<Option<Arc<Candidates>>>,
    warnings: ClusterWarnings,
    place: Kept,
    /// Those that an earlier agent kept, until the server has given some.
    kept: Option<Arc<Pools>>,
    is_served: bool,
}

impl Task {
    fn new(
        sender: watch::Sender<Followed<Pools>>,
        candidates: watch::Sender<Option<Arc<Candidates>>>,
        warnings: ClusterWarnings,
        place: Kept,
    ) -> Self {
        let read = |text: &str| pools::read(POOLS_PLACE.as_ref(), text, None);
        Self {
            kept: place.read_as(POOLS_PLACE, read).map(Arc::new),
            sender,
            candidates,
            warnings,
            place,
            is_served: false,
        }
    }

    /// Takes a change; returns true while there are receivers.
    fn take(&mut self, update: Result<&BTreeMap<Key, Value>, Trouble>) -> bool {
        match update {
            Ok(all) => {
                self.is_served = true;
                self.choose_from(all.values());
                let last = self.sender.borrow().value.clone();
                let last = last.or_else(|| self.kept.take());
                self.read(parse(all, last.as_deref()));
            }
            Err(Trouble::Absent) if self.is_served => {
                self.fail(format!("the API server has no {POOLS_PLACE} any more"));
            }
            Err(Trouble::Absent) => {
                self.candidates.send_replace(Some(Arc::default()));
                self.read(Ok(Pools::absent(format!(
                    "the API server has no {POOLS_PLACE}, which is looked for again: no pool has an \
                     object"
                ))));
            }
            Err(Trouble::Failed(error)) => {
                self.fail(format!("the pools are not followed: {error}"));
            }
        }
        !self.sender.is_closed()
    }

    fn choose_from<'a>(&self, objects: impl IntoIterator<Item = &'a Value>) {
        let last = self.candidates.borrow().clone();
        let last = last.or_else(|| {
            let kept = self.kept.as_ref()?;
            Some(Arc::new(Candidates::read(kept.documents(), None)))
        });
        let read = Candidates::read(objects, last.as_deref());
        self.warnings.set(POOLS_TOPIC, read.problems());
        self.candidates.send_replace(Some(Arc::new(read)));
    }

    /// Takes what was read of the server's answer, and keeps it for a later agent.
    fn read(&mut self, parsed: Result<Pools, String>) {
        let is_good = parsed.is_ok();
        self.kept = None;
        let take = |pools: &mut Followed<Pools>| pools.take(parsed, "pools", POOLS_PLACE);
        let is_new = self.sender.send_if_modified(take);
        if let Some(pools) = self
            .sender
            .borrow()
            .value
            .as_ref()
            .filter(|_| is_new && is_good)
        {
            self.place.write(POOLS_PLACE, &pools.text());
        }
    }

    /// Records the reason for which there are no newer pools. Before the first read, the kept ones
    /// are in force.
    fn fail(&mut self, reason: String) {
        let is_known = self.sender.borrow().value.is_some();
        let kept = self.kept.take().filter(|_| !is_known);
        if let Some(kept) = &kept {
            self.choose_from(kept.documents());
        }
        self.sender.send_if_modified(|pools| {
            let begins = kept.is_some();
            pools.value = kept.or_else(|| pools.value.take());
            let reason = if pools.is_kept() {
                format!("{reason}; the pools kept from before the restart are in force")
            } else {
                reason
            };
            pools.fail(reason, "pools", POOLS_PLACE) || begins
        });
    }
}

fn parse(all: &BTreeMap<Key, Value>, last: Option<&Pools>) -> Result<Pools, String> {
    let items: Vec<&Value> = all.values().collect();
    let list = json!({"kind": "List", "items": items}).to_string();
    pools::read(POOLS_PLACE.as_ref(), &list, last)
}

/// An object of a list has no type of its own.
fn with_type(object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = json!("cilium.io/v2alpha1");
    object["kind"] = json!("CiliumPodIPPool");
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use sources::kept::Subject;

    struct Agent {
        task: Task,
        pools: watch::Receiver<Followed<Pools>>,
        candidates: watch::Receiver<Option<Arc<Candidates>>>,
    }

    fn agent(state: &std::path::Path, boot: &str) -> Agent {
        let (sender, pools) = watch::channel(Followed::default());
        let (choose, candidates) = watch::channel(None);
        let kept = Kept::new(state, boot).of(Subject::Pools);
        Agent {
            task: Task::new(sender, choose, ClusterWarnings::default(), kept),
            pools,
            candidates,
        }
    }

    impl Agent {
        fn names(&self) -> Option<Vec<String>> {
            let pools = self.pools.borrow().value.clone()?;
            let candidates = self.candidates.borrow().clone().unwrap();
            let names: Vec<_> = pools.names().map(str::to_owned).collect();
            assert!(names.iter().all(|name| candidates.has(name)), "{names:?}");
            Some(names)
        }

        fn is_away(&mut self) {
            assert!(self.task.take(Err(Trouble::Failed("away".to_owned()))));
        }

        fn lists(&mut self, names: &[&str]) {
            let all = names.iter().map(|&name| {
                let object = with_type(&json!({
                    "metadata": {"name": name, "annotations": {
                        "ipam.cilium.io/skip-masquerade": "true",
                        "ipam.towpath.dev/restrict": "selectors"
                    }},
                    "spec": {
                        "ipv4": {"cidrs": ["10.9.0.0/16"], "maskSize": 28},
                        "podSelector": {"matchLabels": {"app": name}}
                    }
                }));
                ((String::new(), name.to_owned()), object)
            });
            assert!(self.task.take(Ok(&all.collect())));
        }
    }

    #[test]
    fn pools_outlive_the_agent_where_the_server_is_away_and_none_comes_back() {
        let state = tempfile::tempdir().unwrap();
        let mut first = agent(state.path(), "this");
        first.is_away();
        assert_eq!(first.names(), None, "nothing was kept yet");
        first.lists(&["blue", "red"]);
        let known = first.candidates.borrow().clone().unwrap();

        let mut second = agent(state.path(), "this");
        assert_eq!(second.names(), None, "the server may answer");
        second.is_away();
        assert_eq!(second.names().unwrap(), ["blue", "red"]);
        assert_eq!(second.candidates.borrow().clone().unwrap(), known);
        let error = second.pools.borrow().error.clone().unwrap();
        assert!(
            error.contains("away") && error.contains("kept from before"),
            "{error}"
        );
        let policy = |agent: &Agent| {
            agent
                .pools
                .borrow()
                .value
                .as_ref()
                .unwrap()
                .for_allocation()
        };
        assert_eq!(policy(&second), policy(&first));
        second.lists(&["blue"]);
        assert_eq!(second.names().unwrap(), ["blue"]);
        assert_eq!(second.pools.borrow().error, None);
        second.is_away();
        assert_eq!(second.names().unwrap(), ["blue"]);

        let mut third = agent(state.path(), "this");
        third.is_away();
        assert_eq!(
            third.names().unwrap(),
            ["blue"],
            "the other one was deleted"
        );
        let mut fourth = agent(state.path(), "this");
        fourth.lists(&["green"]);
        fourth.is_away();
        assert_eq!(fourth.names().unwrap(), ["green"]);
    }

    #[test]
    fn after_a_slip_in_a_pool_a_restart_finds_the_last_good_selectors_and_restriction() {
        let state = tempfile::tempdir().unwrap();
        let all = |selector: &Value, annotations: &Value| {
            let object = with_type(&json!({
                "metadata": {"name": "blue", "annotations": annotations},
                "spec": {
                    "ipv4": {"cidrs": ["10.9.0.0/16"], "maskSize": 28},
                    "podSelector": selector
                }
            }));
            BTreeMap::from([((String::new(), "blue".to_owned()), object)])
        };
        let restriction = json!({"ipam.towpath.dev/restrict": "namespaces=shop"});
        let good = all(&json!({"matchLabels": {"app": "blue"}}), &restriction);
        let slip = all(&json!({"matchLabels": 7}), &json!(7));
        let pod = |namespace: &str| kubernetes::pool::pool_selection::Metadata {
            namespace: namespace.to_owned(),
            labels: [("app".to_owned(), "blue".to_owned())].into(),
            ..Default::default()
        };
        let check = |agent: &Agent, expected: [&str; 2]| {
            let candidates = agent.candidates.borrow().clone().unwrap();
            let chosen = ["shop", "other"].map(|namespace| {
                let none = kubernetes::pool::pool_selection::Metadata::default();
                let pod = pod(namespace);
                let chosen = candidates.choose(ipam::Family::V4, &pod, &none, "default");
                chosen.unwrap().pool
            });
            assert_eq!(chosen, expected);
        };
        let mut first = agent(state.path(), "this");
        assert!(first.task.take(Ok(&slip)));
        check(&first, ["default", "default"]);
        assert!(first.task.take(Ok(&good)));
        check(&first, ["blue", "default"]);
        assert!(first.task.take(Ok(&slip)));
        check(&first, ["blue", "default"]);

        let mut away = agent(state.path(), "this");
        away.is_away();
        check(&away, ["blue", "default"]);
        let mut second = agent(state.path(), "this");
        assert!(second.task.take(Ok(&slip)));
        check(&second, ["blue", "default"]);
    }

    #[test]
    fn of_another_boot_or_damaged_they_are_not_used() {
        let state = tempfile::tempdir().unwrap();
        agent(state.path(), "this").lists(&["blue"]);
        let mut other = agent(state.path(), "other");
        other.is_away();
        assert_eq!(other.names(), None);
        let path = state.path().join("pools.json");
        let good = std::fs::read_to_string(&path).unwrap();
        for bad in [&good[..good.len() / 2], &good.replace("List", "Lost"), ""] {
            std::fs::write(&path, bad).unwrap();
            let mut damaged = agent(state.path(), "this");
            damaged.is_away();
            assert_eq!(damaged.names(), None, "{bad}");
        }
    }
}
