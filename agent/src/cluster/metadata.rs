//! Metadata of this node's pods and of all namespaces: labels, and the annotations that choose
//! pools. It is followed, so that pods can be added while the API server is away.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use api::ids::PodRef;
use apiserver::client::{self, Connection};
use apiserver::patient::patient;
use apiserver::{cause, objects};
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher as follow_all;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use kubernetes::pool::pool_selection::Metadata;
use tokio::sync::Notify;

use super::keeper::Keeper;
use crate::server::{Command, Handle};
use sources::kept::{Kept, Subject};

/// The annotations that are kept begin so.
const OURS: &str = "ipam.cilium.io/";
/// Annotations by which a static pod's object names the pod that the node knows.
const STATIC: [&str; 2] = ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"];

/// Namespace and name.
type Key = (String, String);
type Known = Arc<Mutex<HashMap<Key, Metadata>>>;

/// Objects of a kind.
#[derive(Clone, Debug, Default)]
struct Objects {
    /// Those that are followed.
    known: Known,
    /// Objects that an earlier agent kept, until the server has sent all.
    kept: Known,
}

/// Pods and namespaces.
#[derive(Clone)]
pub(super) struct Metadatas {
    client: Client,
    pods: Objects,
    namespaces: Objects,
    /// Pods came, changed or went.
    changed: Arc<Notify>,
}

/// Reason why a pod is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    /// The API server has none.
    #[error("{0} does not exist")]
    Missing(String),
    /// The API server does not answer.
    #[error(
        "{what} is not known, and the API server does not answer: {}",
        cause::chain(error)
    )]
    Unreachable {
        /// The object that was looked for.
        what: String,
        /// The error of the request.
        error: kube::Error,
    },
}

impl Metadatas {
    /// Begins to follow both.
    pub(super) fn follow(connection: &Connection, node: &str, agent: &Handle, kept: &Kept) -> Self {
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
                Keeper::new(kept.of(Subject::Pods), format!("pods of {node}")),
            ),
            namespaces: follow(
                connection.lists.follow(namespaces, connection.watching()),
                None,
                Keeper::new(kept.of(Subject::Namespaces), "namespaces".to_owned()),
            ),
            changed,
        }
    }

    /// Fixed metadata that is not followed.
    #[cfg(test)]
    pub(super) fn fixed(client: Client, pods: &[Metadata], namespaces: &[Metadata]) -> Self {
        let known = |all: &[Metadata]| Objects {
            known: keyed(all.to_vec()),
            kept: Known::default(),
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
        known(&self.pods.known, &key).filter(|known| is_of(known, pod))
    }

    /// Waits until pods came, changed or went. Only one task may wait.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A pod and its namespace. An object that is not followed yet is requested. If the server does
    /// not answer, the object that an earlier agent kept applies.
    pub(super) async fn of(&self, pod: &PodRef) -> Result<(Metadata, Metadata), Unknown> {
        let (of_pod, is_away) = match self.known(pod) {
            Some(known) => (known, false),
            None => self.ask_pod(pod).await?,
        };
        let key = (String::new(), pod.namespace.clone());
        if let Some(known) = known(&self.namespaces.known, &key) {
            return Ok((of_pod, known));
        }
        let kept = known(&self.namespaces.kept, &key);
        if let Some(kept) = kept.clone().filter(|_| is_away) {
            return Ok((of_pod, kept));
        }
        let api = objects::metadata(&self.client, "Namespace", "namespaces");
        let what = format!("namespace {}", pod.namespace);
        let answer = ask(&api, &pod.namespace, &what).await;
        Ok((of_pod, or_kept(answer, kept)?.0))
    }

    /// A pod that is not followed; true if the server does not answer, and the kept one applies.
    async fn ask_pod(&self, pod: &PodRef) -> Result<(Metadata, bool), Unknown> {
        let api = objects::pods_of(&self.client, &pod.namespace);
        let answer = ask(&api, &pod.name, &format!("pod {pod}")).await;
        let key = (pod.namespace.clone(), pod.name.clone());
        let kept = known(&self.pods.kept, &key).filter(|kept| is_of(kept, pod));
        let (found, is_away) = or_kept(answer, kept)?;
        if !is_of(&found, pod) {
            // The one that the runtime means is gone.
            return Err(Unknown::Missing(format!("this pod {pod}")));
        }
        Ok((found, is_away))
    }
}

/// The server's answer, or else the kept object; true in that case.
fn or_kept(
    answer: Result<Metadata, Unknown>,
    kept: Option<Metadata>,
) -> Result<(Metadata, bool), Unknown> {
    match (answer, kept) {
        (Ok(answer), _) => Ok((answer, false)),
        (Err(Unknown::Unreachable { .. }), Some(kept)) => Ok((kept, true)),
        (Err(error), _) => Err(error),
    }
}

fn keyed(all: Vec<Metadata>) -> Known {
    let key = |one: &Metadata| (one.namespace.clone(), one.name.clone());
    let all = all.into_iter().map(|one| (key(&one), one));
    Arc::new(Mutex::new(all.collect()))
}

/// True if the metadata belongs to the runtime's pod, and not to another one of its name.
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

/// Kept fields of an object.
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
    // A thread that panicked with the lock has left no partial change.
    let all = all.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(key).cloned()
}

fn follow(
    events: impl Stream<Item = watcher::Result<Event<PartialObjectMeta>>> + Send + 'static,
    listeners: Option<(Arc<Notify>, Handle)>,
    mut keeper: Keeper,
) -> Objects {
    let objects = Objects {
        known: Known::default(),
        kept: keyed(keeper.read()),
    };
    let sink = Arc::downgrade(&objects.known);
    let kept = Arc::clone(&objects.kept);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(patient(events));
        let mut listed = HashMap::new();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = keeper.due() => {
                    let Some(all) = sink.upgrade() else { return };
                    keeper.write(&all).await;
                    continue;
                }
            };
            let (Some(event), Some(all)) = (event, sink.upgrade()) else {
                return;
            };
            match event {
                Ok(event) => {
                    let is_whole = matches!(event, Event::InitDone);
                    let Taken { gone, is_new } = take(&all, &mut listed, event);
                    if is_whole {
                        kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    }
                    keeper.take_note(is_whole, is_new);
                    if let Some((changed, agent)) = &listeners {
                        changed.notify_one();
                        for pod in gone.iter().flat_map(names) {
                            agent.tell(Command::PodGone(pod)).await;
                        }
                    }
                }
                Err(error) => {
                    let text = cause::chain(&error);
                    tracing::debug!("pods or namespaces are not followed: {text}");
                }
            }
        }
    });
    objects
}

/// Result of an event.
#[derive(Debug, Default)]
struct Taken {
    /// Objects that were deleted, or replaced by others of their names.
    gone: Vec<Metadata>,
    /// True if the known objects have changed.
    is_new: bool,
}

fn take(
    all: &Known,
    listed: &mut HashMap<Key, Metadata>,
    event: Event<PartialObjectMeta>,
) -> Taken {
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
            let is_new = *all != before;
            let is_gone = |(key, one): &(Key, Metadata)| {
                all.get(key).is_none_or(|known| known.uid != one.uid)
            };
            let gone = before.into_iter().filter(is_gone);
            let gone = gone.map(|(_, one)| one).collect();
            return Taken { gone, is_new };
        }
        Event::Apply(object) => {
            let (key, new) = entry(object);
            let uid = new.uid.clone();
            let is_new = all.get(&key) != Some(&new);
            let before = all.insert(key, new);
            let gone = before.into_iter().filter(|one| one.uid != uid).collect();
            return Taken { gone, is_new };
        }
        Event::Delete(object) => {
            let (key, deleted) = entry(object);
            let known = all.remove(&key);
            let is_new = known.is_some();
            let known = known.filter(|one| one.uid != deleted.uid);
            let gone = known.into_iter().chain([deleted]).collect();
            return Taken { gone, is_new };
        }
    }
    Taken::default()
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
            let gone = take(&all, &mut listed, event).gone;
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

    #[tokio::test]
    async fn what_was_kept_counts_where_nobody_answers_and_for_the_pod_that_is_meant() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let one = |namespace: &str, name: &str| Metadata {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: format!("u-{name}"),
            ..Metadata::default()
        };
        let mut all = Metadatas::fixed(Client::try_from(config).unwrap(), &[], &[]);
        all.pods.kept = keyed(vec![one("shop", "web")]);
        let pod = |name: &str, uid: &str| PodRef {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: Some(uid.to_owned()),
        };
        let web = pod("web", "u-web");
        let error = all.of(&web).await.unwrap_err().to_string();
        assert!(error.contains("namespace shop is not known"), "{error}");
        all.namespaces.kept = keyed(vec![one("", "shop")]);
        let (of_pod, of_namespace) = all.of(&web).await.unwrap();
        assert_eq!(
            (of_pod.uid.as_str(), of_namespace.uid.as_str()),
            ("u-web", "u-shop")
        );
        for other in [pod("web", "u-next"), pod("other", "u-other")] {
            let error = all.of(&other).await.unwrap_err().to_string();
            assert!(error.contains("does not answer"), "{error}");
        }
        // Watched metadata take precedence.
        let newer = Metadata {
            labels: [("a".to_owned(), "b".to_owned())].into(),
            ..one("shop", "web")
        };
        all.pods.known = keyed(vec![newer.clone()]);
        assert_eq!(all.of(&web).await.unwrap().0, newer);
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
