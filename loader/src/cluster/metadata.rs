//! What is known of this node's pods and of all namespaces: labels, and the annotations that choose
//! pools. It is followed, so that pods can be added while the API server is away.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as follow_all};
use kube::{Api, Client};
use kubernetes::choice::Metadata;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::client::{self, Connection};
use super::{cause, objects, retry};
use crate::api::{Command, Handle};
use crate::intent::PodRef;

/// The annotations that are kept begin so.
const OURS: &str = "ipam.cilium.io/";
/// By which a static pod's object names the pod that the node knows.
const STATIC: [&str; 2] = ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"];

/// Namespace and name.
type Key = (String, String);
type Known = Arc<Mutex<HashMap<Key, Metadata>>>;

/// Pods and namespaces.
#[derive(Clone)]
pub(super) struct Metadatas {
    client: Client,
    pods: Known,
    namespaces: Known,
    /// Pods came, changed or went.
    changed: Arc<Notify>,
}

/// Why a pod is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    /// The API server has none.
    #[error("{0} does not exist")]
    Missing(String),
    /// The API server does not say.
    #[error(
        "{what} is not known, and the API server does not answer: {}",
        cause::chain(error)
    )]
    Unreachable {
        /// What was looked for.
        what: String,
        /// Why there is no answer.
        error: kube::Error,
    },
}

impl Metadatas {
    /// Begins to follow both.
    pub(super) fn follow(connection: &Connection, node: &str, agent: &Handle) -> Self {
        let client = &connection.client;
        let pods = objects::metadata(client, "Pod", "pods");
        let on_node = connection
            .watching()
            .fields(&format!("spec.nodeName={node}"));
        let namespaces = objects::metadata(client, "Namespace", "namespaces");
        let changed = Arc::new(Notify::new());
        Self {
            client: client.clone(),
            // For a list, the server finds a node's pods by an index. For a stream, it would go
            // through all pods of the cluster.
            pods: follow(
                follow_all(pods, on_node),
                Some((Arc::clone(&changed), agent.clone())),
            ),
            namespaces: follow(
                connection.lists.follow(namespaces, connection.watching()),
                None,
            ),
            changed,
        }
    }

    /// What is known without being followed.
    #[cfg(test)]
    pub(super) fn fixed(client: Client, pods: &[Metadata], namespaces: &[Metadata]) -> Self {
        let known = |all: &[Metadata]| -> Known {
            let keyed = all.iter().map(|one| {
                let key = (one.namespace.clone(), one.name.clone());
                (key, one.clone())
            });
            Arc::new(Mutex::new(keyed.collect()))
        };
        Self {
            client,
            pods: known(pods),
            namespaces: known(namespaces),
            changed: Arc::default(),
        }
    }

    /// A pod of this node, if it is followed.
    pub(super) fn known(&self, pod: &PodRef) -> Option<Metadata> {
        let key = (pod.namespace.clone(), pod.name.clone());
        known(&self.pods, &key).filter(|known| is_of(known, pod))
    }

    /// Waits until pods came, changed or went. Only one task may wait.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A pod and its namespace. What is not followed yet is asked for.
    pub(super) async fn of(&self, pod: &PodRef) -> Result<(Metadata, Metadata), Unknown> {
        let of_pod = if let Some(known) = self.known(pod) {
            known
        } else {
            let api = objects::pods_of(&self.client, &pod.namespace);
            let asked = ask(&api, &pod.name, &format!("pod {pod}")).await?;
            if !is_of(&asked, pod) {
                // The one that the runtime means is gone.
                return Err(Unknown::Missing(format!("this pod {pod}")));
            }
            asked
        };
        let key = (String::new(), pod.namespace.clone());
        let of_namespace = if let Some(known) = known(&self.namespaces, &key) {
            known
        } else {
            let api = objects::metadata(&self.client, "Namespace", "namespaces");
            let what = format!("namespace {}", pod.namespace);
            ask(&api, &pod.namespace, &what).await?
        };
        Ok((of_pod, of_namespace))
    }
}

/// Whether it is of the pod that the runtime means, and not of another one of that name.
fn is_of(metadata: &Metadata, pod: &PodRef) -> bool {
    let Some(uid) = &pod.uid else { return true };
    let is_static = || {
        let mut hashes = STATIC
            .iter()
            .filter_map(|key| metadata.annotations.get(*key));
        hashes.any(|hash| hash == uid)
    };
    metadata.uid == *uid || is_static()
}

/// A pod by each uid that a runtime may name it by.
fn names(metadata: &Metadata) -> Vec<PodRef> {
    let hashes = STATIC
        .iter()
        .filter_map(|key| metadata.annotations.get(*key));
    let uids: BTreeSet<&String> = hashes.chain([&metadata.uid]).collect();
    let named = |uid: &String| PodRef {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: Some(uid.clone()),
    };
    uids.into_iter().map(named).collect()
}

async fn ask(api: &Api<PartialObjectMeta>, name: &str, what: &str) -> Result<Metadata, Unknown> {
    match client::in_time(api.get_opt(name)).await {
        Ok(Some(object)) => Ok(kept(object.metadata)),
        Ok(None) => Err(Unknown::Missing(what.to_owned())),
        Err(error) => Err(Unknown::Unreachable {
            what: what.to_owned(),
            error,
        }),
    }
}

/// What is kept of an object.
fn kept(metadata: ObjectMeta) -> Metadata {
    let is_kept = |key: &String| key.starts_with(OURS) || STATIC.contains(&key.as_str());
    let annotations = metadata.annotations.unwrap_or_default().into_iter();
    Metadata {
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default(),
        annotations: annotations.filter(|(key, _)| is_kept(key)).collect(),
    }
}

fn known(all: &Known, key: &Key) -> Option<Metadata> {
    // Who panicked with the lock has not left anything half done.
    let all = all.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(key).cloned()
}

fn follow(
    events: impl Stream<Item = watcher::Result<Event<PartialObjectMeta>>> + Send + 'static,
    told: Option<(Arc<Notify>, Handle)>,
) -> Known {
    let all = Known::default();
    let sink = Arc::downgrade(&all);
    let events = events.default_backoff();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        let mut listed = HashMap::new();
        while let Some(event) = events.next().await {
            let Some(all) = sink.upgrade() else { return };
            match event {
                Ok(event) => {
                    let gone = take(&all, &mut listed, event);
                    if let Some((changed, agent)) = &told {
                        changed.notify_one();
                        for pod in gone.iter().flat_map(names) {
                            agent.tell(Command::PodGone(pod)).await;
                        }
                    }
                }
                Err(error) => {
                    let told = cause::chain(&error);
                    tracing::debug!("pods or namespaces are not followed: {told}");
                    // Beside the wait that grows with failures.
                    sleep(retry::asked(&error).unwrap_or_default()).await;
                }
            }
        }
    });
    all
}

/// Takes an event; those that are no more, or have been replaced by others of their names.
fn take(
    all: &Known,
    listed: &mut HashMap<Key, Metadata>,
    event: Event<PartialObjectMeta>,
) -> Vec<Metadata> {
    let entry = |object: PartialObjectMeta| {
        let kept = kept(object.metadata);
        ((kept.namespace.clone(), kept.name.clone()), kept)
    };
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(object) => listed.extend([entry(object)]),
        Event::InitDone => {
            let before = std::mem::replace(&mut *all, std::mem::take(listed));
            let is_gone = |(key, one): &(Key, Metadata)| {
                all.get(key).is_none_or(|known| known.uid != one.uid)
            };
            return before
                .into_iter()
                .filter(is_gone)
                .map(|(_, one)| one)
                .collect();
        }
        Event::Apply(object) => {
            let (key, new) = entry(object);
            let uid = new.uid.clone();
            let before = all.insert(key, new);
            return before.into_iter().filter(|one| one.uid != uid).collect();
        }
        Event::Delete(object) => {
            let (key, deleted) = entry(object);
            let known = all.remove(&key).filter(|one| one.uid != deleted.uid);
            return known.into_iter().chain([deleted]).collect();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_the_one_that_the_runtime_means() {
        let pod = |uid: Option<&str>| PodRef {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: uid.map(str::to_owned),
        };
        let mut known = Metadata {
            uid: "u-1".to_owned(),
            ..Metadata::default()
        };
        assert!(is_of(&known, &pod(None)) && is_of(&known, &pod(Some("u-1"))));
        assert!(
            !is_of(&known, &pod(Some("u-2"))),
            "one of that name before it"
        );
        // The object of a static pod has a uid of its own.
        let mirror = (STATIC[0].to_owned(), "u-2".to_owned());
        known.annotations.extend([mirror]);
        assert!(is_of(&known, &pod(Some("u-2"))));
    }

    #[test]
    fn pods_that_are_no_more_are_told_by_each_name() {
        let object = |name: &str, uid: &str| PartialObjectMeta {
            metadata: ObjectMeta {
                namespace: Some("shop".to_owned()),
                name: Some(name.to_owned()),
                uid: Some(uid.to_owned()),
                annotations: Some([(STATIC[1].to_owned(), format!("hash-{uid}"))].into()),
                ..ObjectMeta::default()
            },
            types: None,
            _phantom: std::marker::PhantomData,
        };
        let (all, mut listed) = (Known::default(), HashMap::new());
        let mut gone = |event| {
            let gone = take(&all, &mut listed, event);
            let names = gone.iter().flat_map(names).filter_map(|pod| pod.uid);
            names.collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        for name in ["a", "b", "c"] {
            assert_eq!(gone(Event::Apply(object(name, name))), none);
        }
        assert_eq!(gone(Event::Delete(object("a", "a"))), ["a", "hash-a"]);
        assert_eq!(gone(Event::Apply(object("b", "b-2"))), ["b", "hash-b"]);
        assert_eq!(gone(Event::Init), none);
        assert_eq!(gone(Event::InitApply(object("b", "b-2"))), none);
        assert_eq!(gone(Event::InitDone), ["c", "hash-c"], "in between");
    }

    #[test]
    fn only_what_chooses_pools_is_kept() {
        let annotations = [
            "ipam.cilium.io/ip-pool",
            "kubernetes.io/config.hash",
            "other",
        ];
        let annotations = annotations.map(|key| (key.to_owned(), "x".repeat(9)));
        let kept = kept(ObjectMeta {
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        });
        assert_eq!(kept.annotations.len(), 2);
        assert!(!kept.annotations.contains_key("other"));
    }
}
