use std::net::TcpListener;
use std::time::Duration;

use api::ids::PodRef;
use apiserver::events::Occurrence;
use futures_util::FutureExt as _;
use kube::{Client, Config};
use kubernetes::pool::pool_selection::Metadata;

use super::*;
use crate::server::AddressSpec;

fn metadata(namespace: &str, name: &str, pool: Option<&str>) -> Metadata {
    let pool = pool.map(|pool| ("ipam.cilium.io/ip-pool".to_owned(), pool.to_owned()));
    Metadata {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        annotations: pool.into_iter().collect(),
        ..Metadata::default()
    }
}

/// A gate that knows one pod, of a namespace with an annotation, and requests unknown objects from
/// a server.
fn gate(server: &str) -> (Gate, Arc<Signals>) {
    gate_with_events(server, Events::queue().0)
}

fn gate_with_events(server: &str, events: Events) -> (Gate, Arc<Signals>) {
    let client = Client::try_from(Config::new(server.parse().unwrap())).unwrap();
    let pods = [metadata("shop", "web", None)];
    let namespaces = [metadata("", "shop", Some("blue"))];
    let red = serde_json::json!({
        "metadata": {
            "name": "red", "annotations": {"ipam.towpath.dev/restrict": "namespaces=other"}
        },
        "spec": {"ipv4": {"cidrs": ["10.9.0.0/16"], "maskSize": 28}}
    });
    let (_sender, candidates) = watch::channel(Some(Arc::new(Candidates::read([&red], None))));
    let signals = Arc::new(Signals::default());
    let gate = Gate {
        metadatas: Metadatas::fixed(client, &pods, &namespaces),
        candidates,
        default_pool: "default".to_owned(),
        families: [Family::V4].into(),
        signals: Arc::clone(&signals),
        events,
        choosing: Choosing::default(),
    };
    (gate, signals)
}

/// A sender of events, and what it sends next.
fn heard() -> (
    Events,
    impl FnMut() -> Option<(Subject, &'static str, String)>,
) {
    let (events, mut occurrences) = Events::queue();
    let next = move || {
        let Occurrence {
            subject,
            reason,
            message,
            ..
        } = occurrences.try_recv().ok()?;
        Some((subject, reason, message))
    };
    (events, next)
}

fn owner() -> Owner {
    Owner {
        container_id: "one".to_owned(),
        interface: "eth0".to_owned(),
    }
}

fn request(pod: &str) -> EndpointRequest {
    let pod = PodRef {
        namespace: "shop".to_owned(),
        name: pod.to_owned(),
        uid: None,
    };
    EndpointRequest {
        owner: owner(),
        netns: "/run/netns/one".into(),
        addresses: BTreeSet::new(),
        ask: Box::new(AddressSpec {
            pod: Some(pod),
            ..AddressSpec::default()
        }),
    }
}

#[tokio::test]
async fn a_pod_gets_the_pool_of_its_namespace_and_is_told_why_it_is_empty() {
    let (events, mut heard) = heard();
    let (gate, signals) = gate_with_events("http://127.0.0.1:1", events);
    let (sender, commands) = mpsc::channel(1);
    let mut actor = gate.guard(commands);
    let (reply, answer) = oneshot::channel();
    sender
        .send(Command::AddEndpoint(request("web"), reply))
        .await
        .unwrap();
    let Some(Command::AddEndpoint(request, reply)) = actor.recv().await else {
        panic!("no add")
    };
    assert_eq!(request.ask.pools, [(Family::V4, "blue".to_owned())].into());
    let error = ApiError::new(ErrorCode::PoolUnknown, "pool blue is unknown on this node");
    reply.send(Err(error)).unwrap();
    let message = answer.await.unwrap().unwrap_err().message;
    assert_eq!(
        message,
        "pool blue is unknown on this node (pool blue: annotation ipam.cilium.io/ip-pool of its \
         namespace; there is no CiliumPodIPPool blue)"
    );
    let signal = tokio::time::timeout(Duration::from_secs(5), signals.waiting.notified());
    signal.await.expect("the writer hears that a pod waits");
    let (subject, reason, text) = heard().unwrap();
    assert_eq!((reason, text), ("PoolUnknown", message));
    assert_eq!(
        (subject.name.as_str(), subject.uid.as_str()),
        ("web", "uid-web")
    );
}

#[tokio::test]
async fn what_is_wrong_with_pools_is_told_of_the_pod_and_nothing_else_is() {
    let (events, mut heard) = heard();
    let (gate, _) = gate_with_events("http://127.0.0.1:1", events);
    let error = |code| Refusal::from(ApiError::new(code, "why"));
    let ask = request("web").ask;
    for (code, expected) in [
        (ErrorCode::PoolExhausted, Some("PoolExhausted")),
        (ErrorCode::PoolNotReady, Some("PoolNotReady")),
        (ErrorCode::PoolUnknown, Some("PoolUnknown")),
        (ErrorCode::NotReady, None),
        (ErrorCode::SetUpFailed, None),
    ] {
        gate.tell(&ask, &error(code));
        assert_eq!(heard().map(|(_, reason, _)| reason), expected);
    }
    let ambiguous = ChoiceError::Ambiguous {
        pod: "shop/web".to_owned(),
        family: Family::V4,
        pools: vec!["a".to_owned(), "b".to_owned()],
    };
    gate.tell(&ask, &Refusal::from(ambiguous));
    let (_, reason, message) = heard().unwrap();
    assert_eq!(reason, "PoolAmbiguous");
    assert!(
        message.contains("pools a and b all select pod shop/web"),
        "{message}"
    );
    // An unknown pod has no uid.
    gate.tell(&request("unknown").ask, &error(ErrorCode::PoolUnknown));
    assert_eq!(heard(), None);
}

/// Addresses without an endpoint are a pod's too.
#[tokio::test]
async fn a_pod_of_another_network_gets_the_pool_of_its_namespace() {
    let (gate, signals) = gate("http://127.0.0.1:1");
    let (sender, commands) = mpsc::channel(1);
    let mut actor = gate.guard(commands);
    let EndpointRequest {
        owner,
        addresses,
        ask,
        ..
    } = request("web");
    let request = AddressRequest {
        owner: owner.clone(),
        addresses,
        ask,
    };
    let (reply, _answer) = oneshot::channel();
    let lease = Command::Addresses(AddressCommand::Lease(request, reply));
    sender.send(lease).await.unwrap();
    let Some(Command::Addresses(AddressCommand::Lease(request, _reply))) = actor.recv().await
    else {
        panic!("no lease")
    };
    assert_eq!(request.ask.pools, [(Family::V4, "blue".to_owned())].into());
    let (reply, _answer) = oneshot::channel();
    let release = Command::Addresses(AddressCommand::Release(owner, reply));
    sender.send(release).await.unwrap();
    assert!(actor.recv().await.is_some());
    let signal = signals.changed.notified().now_or_never();
    assert!(
        signal.is_none(),
        "until the actor is done nothing has changed"
    );
}

#[tokio::test]
async fn an_explicit_pool_or_address_counts_more() {
    let (gate, _) = gate("http://127.0.0.1:1");
    let mut with_pool = request("web");
    with_pool.ask.pools.insert(Family::V4, "green".to_owned());
    let mut with_address = request("web");
    with_address.addresses.insert([10, 0, 0, 1].into());
    for request in [with_pool, with_address] {
        assert!(gate.choose(&request).await.is_ok_and(|all| all.is_empty()));
    }
}

#[tokio::test]
async fn a_pool_that_the_request_names_has_to_admit_the_pod() {
    let (events, mut heard) = heard();
    let (gate, _) = gate_with_events("http://127.0.0.1:1", events);
    let mut named = request("web");
    named.ask.pools.insert(Family::V4, "red".to_owned());
    let refusal = gate.choose(&named).await.err().unwrap();
    assert_eq!(
        refusal.error.message,
        "pool red is refused to pod shop/web, for which the request names it: \
         ipam.towpath.dev/restrict of the pool admits pods of some namespaces (namespaces=other); \
         allowed: another pool, or a pod that it admits"
    );
    gate.tell(&named.ask, &refusal);
    assert_eq!(heard().unwrap().1, "PoolRestricted");
    // A request that names no pod is the node administrator's own.
    named.ask.pod = None;
    assert!(gate.choose(&named).await.is_ok());
}

#[tokio::test]
async fn no_pool_is_chosen_before_the_pools_are_known() {
    let (mut gate, _) = gate("http://127.0.0.1:1");
    gate.candidates = watch::channel(None).1;
    let mut named = request("web");
    named.ask.pools.insert(Family::V4, "red".to_owned());
    for request in [request("web"), named] {
        let error = gate.choose(&request).await.err().unwrap().error;
        assert_eq!(error.code, ErrorCode::NotReady, "{error}");
        assert!(error.message.contains("pools were not read yet"), "{error}");
    }
}

#[tokio::test]
async fn a_delete_ends_an_add_whose_pool_is_not_known_yet() {
    // It takes connections and answers nothing, until it goes.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (gate, _) = gate(&format!("http://{}", server.local_addr().unwrap()));
    let (sender, commands) = mpsc::channel(1);
    let mut actor = gate.guard(commands);
    let (reply, answer) = oneshot::channel();
    sender
        .send(Command::AddEndpoint(request("unknown"), reply))
        .await
        .unwrap();
    let (deleted, _) = oneshot::channel();
    sender
        .send(Command::DeleteEndpoint(owner(), deleted))
        .await
        .unwrap();
    let passed = actor.recv().await;
    assert!(
        matches!(passed, Some(Command::DeleteEndpoint(..))),
        "{passed:?}"
    );
    drop(server);
    let error = answer.await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::NotReady);
    assert!(error.message.contains("was deleted"), "{error}");
    assert!(actor.try_recv().is_err(), "nothing comes after the delete");
}

#[tokio::test]
async fn a_pod_that_nobody_knows_is_not_added_to_the_default_pool() {
    let (gate, _) = gate("http://127.0.0.1:1");
    let error = gate.choose(&request("unknown")).await.err().unwrap();
    let error = error.error;
    assert_eq!(error.code, ErrorCode::NotReady);
    assert!(
        error.message.contains("pod shop/unknown is not known"),
        "{error}"
    );
}
