use std::net::TcpListener;
use std::time::Duration;

use apiserver::client::Access;
use kube::Config;
use kubernetes::node::parameters::Parameters;
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::cluster::node::instance::Looked;

const DOCUMENT: &str =
    include_str!("../../../../node-document/tests/fixtures/node-secondary-addresses.json");

const READING: Reading = Reading {
    mark: MarkLayout::DEFAULT,
    mode: IpamMode::MultiPool,
};

/// A task without a server, and its outputs.
fn task() -> (
    NodeTask,
    watch::Receiver<NodeSource>,
    watch::Receiver<Option<Current>>,
) {
    let client = client("http://127.0.0.1:1");
    NodeTask::new(client, "one".to_owned(), READING, None)
}

fn client(server: &str) -> Connection {
    let config = Config::new(server.parse().unwrap());
    Access::from(config)
        .connect(Duration::from_mins(4))
        .unwrap()
}

fn object(uid: &str, version: u32) -> Value {
    let mut object: Value = serde_json::from_str(DOCUMENT).unwrap();
    object["metadata"]["uid"] = uid.into();
    object["metadata"]["resourceVersion"] = version.to_string().into();
    object
}

#[tokio::test]
async fn the_document_never_goes_back_in_time() {
    let (mut task, source, current) = task();
    task.take(object("a", 100));
    assert_eq!(source.borrow().generation, 1);
    let mut older = object("a", 99);
    older["spec"]["ipam"]["pre-allocate"] = json!(77);
    task.take(older.clone());
    assert_eq!(source.borrow().generation, 1, "an event that was in flight");
    older["metadata"]["resourceVersion"] = json!("101");
    task.take(older);
    assert_eq!(source.borrow().generation, 2);
    let current = current.borrow();
    let current = current.as_ref().unwrap();
    assert_eq!(current.generation, 2);
    assert_eq!(current.object["metadata"]["resourceVersion"], "101");
}

/// The object of a backup, whose status lacks an ENI.
fn backup(version: u32) -> Value {
    backup_of("a", version)
}

fn backup_of(uid: &str, version: u32) -> Value {
    let mut object = object(uid, version);
    let enis = object["status"]["eni"]["enis"].as_object_mut().unwrap();
    let first = enis.keys().next().unwrap().clone();
    enis.remove(&first);
    object
}

/// A task whose API server was restored from a backup: a read has an earlier version.
fn restored() -> (
    NodeTask,
    watch::Receiver<NodeSource>,
    watch::Receiver<Option<Current>>,
) {
    let (mut task, source, current) = task();
    task.take(object("a", 500));
    task.ensure();
    task.ensured(Ok(backup(300)));
    (task, source, current)
}

#[tokio::test]
async fn a_restored_object_is_written_to_at_once_and_in_force_after_a_minute() {
    let (mut task, source, current) = restored();
    let shown = || {
        let current = current.borrow();
        let current = current.as_ref().unwrap();
        let version = current.object["metadata"]["resourceVersion"].clone();
        (version, current.in_force, source.borrow().generation)
    };
    // The document of before is in force, without its claims.
    assert_eq!(shown(), (json!("300"), false, 2));
    let error = source.borrow().error.clone().unwrap();
    assert!(error.contains("its status is that of a backup"), "{error}");
    assert_eq!(task.ensuring.due, task.barred, "it is read again then");
    task.take(backup(301));
    assert_eq!(shown(), (json!("301"), false, 2));
    task.barred = Some(Instant::now());
    task.ensure();
    task.ensured(Ok(backup(301)));
    assert_eq!(shown(), (json!("301"), true, 3));
    assert!(source.borrow().error.is_none());
}

#[tokio::test]
async fn an_object_of_a_backup_is_known_by_its_uid_and_by_a_kept_one() {
    let state = tempfile::tempdir().unwrap();
    let restart = || {
        let (task, _source, current) = task();
        (task.keeping(Kept::new(state.path(), "this")), current)
    };
    let is_in_force = |current: &watch::Receiver<Option<Current>>| {
        let current = current.borrow();
        current.as_ref().unwrap().in_force
    };
    let (mut first, _current) = restart();
    first.take(object("a", 500));
    let (mut second, current) = restart();
    second.take(object("a", 499));
    assert!(current.borrow().is_none());
    second.ensure();
    second.ensured(Ok(object("a", 499)));
    assert!(
        !is_in_force(&current),
        "older than what an earlier agent kept"
    );
    let (mut third, current) = restart();
    third.take(object("a", 501));
    assert!(!is_in_force(&current), "the minute begins again");
    third.barred = Some(Instant::now());
    third.take(object("a", 502));
    assert!(is_in_force(&current));
    let (mut fourth, current) = restart();
    fourth.take(object("a", 502));
    assert!(is_in_force(&current), "it was over");
    fourth.take(object("b", 300));
    assert!(!is_in_force(&current), "an object of another uid");
}

/// The list began before a write that was answered first.
#[tokio::test]
async fn an_older_list_is_no_backup_and_is_followed_by_a_read() {
    let (mut task, source, current) = task();
    task.take(object("a", 500));
    let list = serde_json::from_value(backup(499)).unwrap();
    task.take_event(Event::InitApply(list));
    assert!(current.borrow().as_ref().unwrap().in_force);
    assert!(task.ensuring.due.is_some());
    task.ensure();
    task.take(object("a", 501));
    task.ensured(Ok(object("a", 500)));
    assert!(current.borrow().as_ref().unwrap().in_force);
    assert_eq!(source.borrow().error, None);
}

#[tokio::test]
async fn enis_stay_in_force_until_an_object_made_anew_has_some() {
    let (mut task, source, current) = task();
    let in_force = || current.borrow().as_ref().unwrap().in_force;
    task.take(object("a", 100));
    let enis = source.borrow().value.as_ref().unwrap().enis.len();
    assert!(enis > 0 && in_force());
    let mut anew = object("b", 7);
    anew["status"] = json!({});
    task.miss();
    assert_eq!(
        source.borrow().refused(),
        None,
        "a missing one is not refused"
    );
    assert!(current.borrow().is_none());
    assert!(
        source
            .borrow()
            .error
            .as_ref()
            .unwrap()
            .contains("there is no CiliumNode one")
    );
    task.take(anew);
    assert_eq!(source.borrow().value.as_ref().unwrap().enis.len(), enis);
    assert!(!in_force());
    task.take(object("b", 8));
    assert!(in_force() && source.borrow().error.is_none());
    let mut bad = object("b", 9);
    bad["status"]["eni"]["enis"] = json!(7);
    task.take(bad);
    let refused = source.borrow().refused().map(str::to_owned).unwrap();
    assert!(refused.contains("status.eni.enis"), "{refused}");
    task.fail("the server is away");
    assert_eq!(source.borrow().refused(), None);
}

#[tokio::test]
async fn the_last_good_object_outlives_the_agent() {
    let state = tempfile::tempdir().unwrap();
    let restart = |boot: &str| {
        let (task, source, current) = task();
        (task.keeping(Kept::new(state.path(), boot)), source, current)
    };
    let (mut before, source, _current) = restart("this");
    before.take(object("a", 100));
    let node = source.borrow().value.clone().unwrap();

    let (mut task, source, current) = restart("this");
    assert_eq!(source.borrow().value.as_ref(), Some(&node));
    assert!(source.borrow().is_kept() && current.borrow().is_none());
    task.fail("the server is away");
    assert!(source.borrow().is_kept());
    let mut anew = object("b", 7);
    anew["status"] = json!({});
    task.take(anew);
    assert!(
        source.borrow().is_kept(),
        "one without ENIs takes none away"
    );
    assert!(!current.borrow().as_ref().unwrap().in_force);
    task.take(object("b", 8));
    let taken = source.borrow();
    assert!(!taken.is_kept() && taken.error.is_none());

    let (_task, source, _current) = restart("other");
    assert!(source.borrow().value.is_none());
}

const DOCUMENTS_INSTANCE: &str = "i-0aa11bb22cc33dd44";

#[tokio::test]
async fn a_document_of_another_instance_is_refused_whenever_that_becomes_known() {
    let state = tempfile::tempdir().unwrap();
    for other in [Identity::Unknown, Identity::Awaited] {
        let (sender, identity) = watch::channel(other.clone());
        let (task, source, current) = task();
        let mut task = task.of_instance(identity);
        task = task.keeping(Kept::new(state.path(), "this"));
        task.take(object("a", 100));
        let is_awaited = other == Identity::Awaited;
        assert_eq!(source.borrow().value.is_none(), is_awaited, "{other:?}");
        sender.send_replace(Identity::Known("i-0new".to_owned()));
        task.take_identity();
        assert_eq!(source.borrow().value, None, "{other:?}");
        assert!(!current.borrow().as_ref().unwrap().in_force);
        let error = source.borrow().error.clone().unwrap();
        assert!(
            error.contains(DOCUMENTS_INSTANCE) && error.contains("\"i-0new\""),
            "{error}"
        );
        // It is written for this one.
        let mut mended = object("a", 101);
        mended["spec"]["instance-id"] = json!("i-0new");
        task.take(mended);
        assert!(source.borrow().value.is_some() && source.borrow().error.is_none());
        // And is overwritten: what is in force stays.
        task.take(object("a", 102));
        assert!(source.borrow().value.is_some());
        assert!(
            source
                .borrow()
                .error
                .as_ref()
                .unwrap()
                .contains("another machine's")
        );
        sources::kept::remove(state.path()).unwrap();
    }
}

#[tokio::test]
async fn a_document_of_this_instance_waits_for_the_first_answer_and_no_longer() {
    for known in [
        Identity::Unknown,
        Identity::Known(DOCUMENTS_INSTANCE.to_owned()),
    ] {
        let (sender, identity) = watch::channel(Identity::Awaited);
        let (task, source, current) = task();
        let mut task = task.of_instance(identity);
        task.take(object("a", 100));
        assert!(source.borrow().value.is_none());
        sender.send_replace(known);
        task.take_identity();
        assert!(source.borrow().value.is_some() && source.borrow().error.is_none());
        assert!(current.borrow().as_ref().unwrap().in_force);
    }
}

#[tokio::test]
async fn what_cannot_be_read_leaves_the_last_good_one_and_is_told() {
    let (mut task, source, current) = task();
    task.take(object("a", 100));
    let mut bad = object("a", 101);
    bad["status"]["eni"]["enis"] = json!("none");
    task.take(bad);
    let error = source.borrow().error.clone().unwrap();
    assert!(
        error.starts_with("CiliumNode one: status.eni.enis: "),
        "{error}"
    );
    assert!(source.borrow().value.is_some());
    assert!(!current.borrow().as_ref().unwrap().in_force);
}

#[tokio::test]
async fn the_node_is_followed_while_a_server_or_the_metadata_service_is_slow() {
    // It takes connections and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    for looked in [Looked::Asking, Looked::Unknown] {
        let (_looking, instance) = watch::channel(looked.clone());
        let creation = Creation {
            parameters: Parameters::default(),
            claims: None,
            instance,
        };
        let (task, mut source, _current) =
            NodeTask::new(client(&server), "one".to_owned(), READING, Some(creation));
        let (written, from_writer) = mpsc::channel(1);
        let task = tokio::spawn(task.run(from_writer));
        written.send(object("a", 100)).await.unwrap();
        let taken = source.wait_for(|source| source.generation == 1);
        let is_taken = timeout(Duration::from_secs(5), taken).await.is_ok();
        assert!(is_taken, "{looked:?}");
        drop(source);
        task.await.unwrap();
    }
}

#[tokio::test]
async fn what_becomes_known_of_the_instance_is_written_then() {
    let (looking, instance) = watch::channel(Looked::Asking);
    let creation = Creation {
        parameters: Parameters::default(),
        claims: None,
        instance,
    };
    let (mut task, _source, _current) = NodeTask::new(
        client("http://127.0.0.1:1"),
        "one".to_owned(),
        READING,
        Some(creation),
    );
    task.ensuring.due = None;
    looking.send_replace(Looked::Unknown);
    ensuring::news(&mut task.ensuring.creation).await;
    task.ensuring.take_instance();
    assert!(task.ensuring.due.is_none(), "nothing to write");
    looking.send_replace(Looked::Known(
        kubernetes::node::node_template::Instance::default(),
    ));
    drop(looking);
    ensuring::news(&mut task.ensuring.creation).await;
    task.ensuring.take_instance();
    assert!(task.ensuring.due.is_some());
}

/// A task that creates the object, with what earlier agents kept in a folder.
fn creating(state: &std::path::Path) -> NodeTask {
    let creation = Creation {
        parameters: Parameters::default(),
        claims: None,
        instance: watch::channel(Looked::Unknown).1,
    };
    let (task, _source, _current) = NodeTask::new(
        client("http://127.0.0.1:1"),
        "one".to_owned(),
        READING,
        Some(creation),
    );
    task.keeping(Kept::new(state, "this"))
}

#[tokio::test]
async fn an_object_that_is_made_again_has_the_claims_of_the_last_one_in_force() {
    let state = tempfile::tempdir().unwrap();
    let claims = |task: &NodeTask| task.ensuring.creation.as_ref().unwrap().claims.clone();
    let mut task = creating(state.path());
    assert_eq!(claims(&task), None);
    let mut claiming = object("a", 100);
    let enis = claiming["status"]["eni"]["enis"].as_object().unwrap();
    let addresses = enis
        .values()
        .flat_map(|eni| eni["addresses"].as_array().unwrap());
    let mut addresses = addresses.filter_map(Value::as_str);
    let of_eni = format!("{}/32", addresses.find(|it| !it.contains(':')).unwrap());
    let allocated = json!([
        {"pool": "default", "cidrs": [of_eni]}, {"pool": "plain", "cidrs": ["172.16.0.0/24"]}
    ]);
    claiming["spec"]["ipam"]["pools"] = json!({"allocated": allocated});
    task.take(claiming);
    let mut empty = object("b", 7);
    empty["status"] = json!({});
    task.miss();
    task.take(empty);
    let kept = claims(&task).unwrap().allocated;
    assert_eq!(
        kept.len(),
        1,
        "another node may have the plain pool's block: {kept:?}"
    );
    assert_eq!(kept[0].cidrs, std::slice::from_ref(&of_eni));
    let restarted = creating(state.path());
    assert_eq!(claims(&restarted).unwrap().allocated, kept);
}
