//! Following all objects of a resource, of which only a part is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use tokio::time::sleep;

use super::lists::Lists;
use super::objects;
use super::retry::Retry;

/// Namespace, empty where there is none, and name.
pub(super) type Key = (String, String);

/// Why there is nothing newer than what was told last.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The API server has no such resource, in none of its versions.
    Absent,
    /// It does not answer, or refuses.
    Failed(String),
}

/// A resource that is followed.
pub(super) struct Resource {
    /// Its versions, the newest first: the first that the API server has counts.
    pub(super) versions: Vec<Api<DynamicObject>>,
    /// How its objects come.
    pub(super) lists: Lists,
    /// Which of its objects.
    pub(super) config: watcher::Config,
    /// How soon it is asked for again where the API server has none of them.
    pub(super) absent: Duration,
}

impl Resource {
    /// Follows it, and tells what is kept of its objects whenever that may have changed. Ends when
    /// `tell` says that nobody listens any more.
    pub(super) async fn follow<T>(
        self,
        keep: impl Fn(&Value) -> T,
        mut tell: impl FnMut(Result<&BTreeMap<Key, T>, Trouble>) -> bool,
    ) {
        let mut all = All::default();
        let mut retry = Retry::default();
        let mut versions = self.versions.iter();
        let mut version = versions.next();
        while let Some(api) = version {
            let mut events = std::pin::pin!(self.lists.follow(api.clone(), self.config.clone()));
            let error = loop {
                match events.next().await {
                    Some(Ok(event)) => {
                        if !all.take(event, &keep) {
                            // A list that begins says nothing yet of whether the server answers.
                            continue;
                        }
                        retry.succeeded();
                        if !tell(Ok(&all.by_key)) {
                            return;
                        }
                    }
                    Some(Err(error)) => break error,
                    None => return,
                }
            };
            let (trouble, wait) = if !is_absent(&error) {
                // A watch that goes on says so with the next change only; a new one lists all.
                let wait = retry.failed(&error);
                (Trouble::Failed(error.to_string()), wait)
            } else if let Some(next) = versions.next() {
                version = Some(next);
                continue;
            } else {
                versions = self.versions.iter();
                version = versions.next();
                (Trouble::Absent, self.absent)
            };
            if !tell(Err(trouble)) {
                return;
            }
            sleep(wait).await;
        }
    }
}

/// Whether the API server has no such resource.
fn is_absent(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    matches!(
        error,
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status))
            if status.code == 404
    )
}

/// What is kept of the objects as they are known, and of those of a list that comes in.
struct All<T> {
    by_key: BTreeMap<Key, T>,
    listed: Option<BTreeMap<Key, T>>,
}

impl<T> Default for All<T> {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            listed: None,
        }
    }
}

impl<T> All<T> {
    /// Takes an event; whether there is something whole to look at.
    fn take(&mut self, event: Event<DynamicObject>, keep: impl Fn(&Value) -> T) -> bool {
        match event {
            Event::Init => self.listed = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                let listed = self.listed.get_or_insert_default();
                listed.extend(kept(object, keep));
            }
            Event::InitDone => self.by_key = self.listed.take().unwrap_or_default(),
            Event::Apply(object) => self.by_key.extend(kept(object, keep)),
            Event::Delete(object) => {
                self.by_key.remove(&key(&object));
            }
        }
        self.listed.is_none()
    }
}

fn key(object: &DynamicObject) -> Key {
    let metadata = &object.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    (text(&metadata.namespace), text(&metadata.name))
}

fn kept<T>(object: DynamicObject, keep: impl Fn(&Value) -> T) -> Option<(Key, T)> {
    let key = key(&object);
    // What came as JSON can be JSON.
    let object = objects::value(object).ok()?;
    Some((key, keep(&object)))
}

#[cfg(test)]
mod tests {
    use super::super::lists::{Answer, Played};
    use super::*;

    #[tokio::test]
    async fn a_resource_is_absent_when_the_server_has_none_of_its_versions() {
        let absent = || Answer::refusal(404, "the server could not find the requested resource");
        let server = Played::new([absent(), absent()]);
        let resource = Resource {
            versions: objects::service_cidrs(&server.client),
            lists: Lists::default(),
            config: watcher::Config::default(),
            absent: Duration::from_hours(1),
        };
        let mut told = Vec::new();
        let following = resource.follow(Value::clone, |new| {
            told.push(new.map(BTreeMap::len));
            false
        });
        let ended = tokio::time::timeout(Duration::from_secs(10), following).await;
        assert!(ended.is_ok(), "it is told at once");
        assert!(matches!(told[..], [Err(Trouble::Absent)]), "{told:?}");
        let path = |version| format!("/apis/networking.k8s.io/{version}/servicecidrs");
        let asked = ["v1", "v1beta1"].map(|version| (path(version), true));
        assert_eq!(server.asked(), asked, "it is not listed in vain");
    }
}
