//! Following all objects of a resource, of which only a part is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::lists::Lists;
use super::retry::Retry;
use super::{client, objects};

/// Interval at which a missing resource is looked for again.
pub const LOOK_FOR: Duration = Duration::from_secs(30);

/// Namespace, empty where there is none, and name.
pub type Key = (String, String);

/// Reason why there is nothing newer than the last state.
#[derive(Debug)]
pub enum Trouble {
    /// The API server has no such resource, in none of its versions.
    Absent,
    /// It does not answer, or refuses.
    Failed(String),
}

/// A resource that is followed.
pub struct Resource {
    /// Its versions, the newest first: the first that the API server has counts.
    pub versions: Vec<Api<DynamicObject>>,
    /// Initial lists of its objects.
    pub lists: Lists,
    /// Selection of its objects.
    pub config: watcher::Config,
    /// Interval at which it is looked for again while the API server has none of its versions.
    pub absent: Duration,
    /// Time for which removals of objects are held back. When a resource is removed, its objects
    /// are removed first.
    pub settle: Duration,
}

impl Resource {
    /// Follows the resource, and reports the kept objects whenever they may have changed. Ends when
    /// `tell` returns that no receiver is left.
    pub async fn follow<T>(
        self,
        keep: impl Fn(&Value) -> T,
        mut tell: impl FnMut(Result<&BTreeMap<Key, T>, Trouble>) -> bool,
    ) {
        let mut all = All::new(self.settle);
        let mut retry = Retry::default();
        let mut versions = self.versions.iter();
        let mut version = versions.next();
        while let Some(api) = version {
            let mut events = std::pin::pin!(self.lists.follow(api.clone(), self.config.clone()));
            let error = loop {
                let due = all.due();
                let is_whole = tokio::select! {
                    event = events.next() => match event {
                        Some(Ok(event)) => all.take(event, &keep),
                        Some(Err(error)) => break error,
                        None => return,
                    },
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                        match look(api).await {
                            Ok(()) => all.remove(),
                            Err(error) => break error,
                        }
                    }
                };
                // A list that begins says nothing yet of whether the server answers.
                if !is_whole {
                    continue;
                }
                retry.succeeded();
                if !tell(Ok(&all.by_key)) {
                    return;
                }
            };
            all.restore();
            let (trouble, wait) = if !is_absent(&error) {
                // A watch that goes on says so with the next change only; a new one lists all.
                let wait = retry.failed(&error);
                (Trouble::Failed(self.lists.describe(&error)), wait)
            } else if let Some(next) = versions.next() {
                version = Some(next);
                continue;
            } else {
                versions = self.versions.iter();
                version = versions.next();
                retry.succeeded();
                (Trouble::Absent, self.absent)
            };
            if !tell(Err(trouble)) {
                return;
            }
            sleep(wait).await;
        }
    }
}

/// Finds out if the API server still has the resource.
async fn look(api: &Api<DynamicObject>) -> Result<(), watcher::Error> {
    let one = ListParams::default().limit(1);
    let listed = client::in_time(api.list(&one)).await;
    listed.map(drop).map_err(watcher::Error::InitialListFailed)
}

/// True if the API server has no such resource.
fn is_absent(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchStartFailed};
    let (InitialListFailed(kube::Error::Api(status))
    | WatchStartFailed(kube::Error::Api(status))
    | WatchError(status)) = error
    else {
        return false;
    };
    status.code == 404
}

/// The parts that are kept of known objects, and of those of a list that comes in.
struct All<T> {
    by_key: BTreeMap<Key, T>,
    listed: Option<BTreeMap<Key, T>>,
    /// Objects that were removed, and are still among those that are known.
    removed: BTreeSet<Key>,
    /// When these go.
    due: Instant,
    settle: Duration,
}

impl<T> All<T> {
    fn new(settle: Duration) -> Self {
        Self {
            by_key: BTreeMap::new(),
            listed: None,
            removed: BTreeSet::new(),
            due: Instant::now(),
            settle,
        }
    }

    /// When removals are to be looked into; nothing while there are none.
    fn due(&self) -> Option<Instant> {
        (!self.removed.is_empty()).then_some(self.due)
    }

    /// Takes an event; returns true if the set of objects is complete.
    fn take(&mut self, event: Event<DynamicObject>, keep: impl Fn(&Value) -> T) -> bool {
        match event {
            Event::Init => self.listed = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                let listed = self.listed.get_or_insert_default();
                listed.extend(kept(object, keep));
            }
            Event::InitDone => {
                self.by_key = self.listed.take().unwrap_or_default();
                self.restore();
            }
            Event::Apply(object) => {
                self.removed.remove(&key(&object));
                self.by_key.extend(kept(object, keep));
            }
            Event::Delete(object) if self.settle.is_zero() => {
                self.by_key.remove(&key(&object));
            }
            Event::Delete(object) => {
                self.removed.insert(key(&object));
                self.due = Instant::now() + self.settle;
                return false;
            }
        }
        self.listed.is_none()
    }

    /// Forgets removed objects. The answer is true if there is something whole to look at.
    fn remove(&mut self) -> bool {
        for key in std::mem::take(&mut self.removed) {
            self.by_key.remove(&key);
        }
        self.listed.is_none()
    }

    /// Takes back removals that nothing has confirmed.
    fn restore(&mut self) {
        self.removed.clear();
    }
}

fn key(object: &DynamicObject) -> Key {
    let metadata = &object.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    (text(&metadata.namespace), text(&metadata.name))
}

fn kept<T>(object: DynamicObject, keep: impl Fn(&Value) -> T) -> Option<(Key, T)> {
    let key = key(&object);
    // An object that came as JSON can be JSON.
    let object = objects::value(object).ok()?;
    Some((key, keep(&object)))
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use serde_json::json;

    use super::super::lists::{Answer, Played, added, end};
    use super::*;

    /// Long enough to be seen, and no more.
    const BRIEF: Duration = Duration::from_millis(200);

    fn resource(versions: Vec<Api<DynamicObject>>) -> Resource {
        Resource {
            versions,
            lists: Lists::default(),
            config: watcher::Config::default(),
            absent: BRIEF,
            settle: BRIEF,
        }
    }

    fn services(client: &Client) -> Resource {
        resource(vec![objects::services(client)])
    }

    /// The first reports, as names or trouble.
    async fn reports(resource: Resource, count: usize) -> Vec<String> {
        let mut reports = Vec::new();
        let following = resource.follow(Value::clone, |new| {
            reports.push(match new {
                Ok(all) => {
                    let names: Vec<_> = all.keys().map(|(_, name)| name.as_str()).collect();
                    names.join(" ")
                }
                Err(trouble) => format!("{trouble:?}"),
            });
            reports.len() < count
        });
        let ended = tokio::time::timeout(Duration::from_secs(10), following).await;
        assert!(ended.is_ok(), "{reports:?}");
        reports
    }

    fn absent() -> Answer {
        Answer::refusal(404, "the server could not find the requested resource")
    }

    #[tokio::test]
    async fn a_resource_is_absent_when_the_server_has_none_of_its_versions() {
        let server = Played::new([absent(), absent()]);
        let versions = objects::service_cidrs(&server.client);
        assert_eq!(reports(resource(versions), 1).await, ["Absent"]);
        let path = |version| format!("/apis/networking.k8s.io/{version}/servicecidrs");
        let requests = ["v1", "v1beta1"].map(|version| (path(version), true));
        assert_eq!(server.requests(), requests, "it is not listed in vain");
    }

    #[tokio::test]
    async fn an_absent_resource_is_looked_for_within_a_minute() {
        let came = Answer::Open(vec![added("a"), end()]);
        let server = Played::new([absent(), absent(), came]);
        let began = Instant::now();
        let reports = reports(services(&server.client), 3).await;
        assert_eq!(reports, ["Absent", "Absent", "a"]);
        let took = began.elapsed();
        assert!(took >= 2 * BRIEF && took < 10 * BRIEF, "{took:?}");
        assert!(
            LOOK_FOR < Duration::from_mins(1),
            "and as often in a cluster"
        );
    }

    #[tokio::test]
    async fn objects_that_go_with_their_resource_stay_known() {
        let gone = json!({"type": "DELETED", "object": added("a")["object"]});
        let both = vec![added("a"), added("b"), end(), gone];
        // The server ends the watch, or leaves it open. Then the existence of the resource is
        // checked.
        for first in [Answer::Ended(both.clone()), Answer::Open(both.clone())] {
            let server = Played::new([first, absent()]);
            let reports = reports(services(&server.client), 2).await;
            assert_eq!(reports, ["a b", "Absent"]);
        }
        let server = Played::new([Answer::Open(both), Answer::list(&["b"])]);
        let reports = reports(services(&server.client), 2).await;
        assert_eq!(
            reports,
            ["a b", "b"],
            "it is there: the object alone has gone"
        );
    }

    #[tokio::test]
    async fn a_list_tells_what_has_really_gone() {
        let gone = json!({"type": "DELETED", "object": added("a")["object"]});
        let back = added("a");
        let server = Played::new([
            Answer::Open(vec![added("a"), end(), gone.clone(), back]),
            Answer::refusal(500, "no list is expected"),
        ]);
        assert_eq!(reports(services(&server.client), 2).await, ["a", "a"]);
        let server = Played::new([
            Answer::Ended(vec![added("a"), added("b"), end(), gone]),
            Answer::refusal(500, "away"),
            Answer::Open(vec![added("b"), end()]),
        ]);
        let reports = reports(services(&server.client), 3).await;
        assert_eq!([&reports[0], &reports[2]], ["a b", "b"]);
        assert!(reports[1].starts_with("Failed("), "{reports:?}");
    }
}
