//! Entries of ENIs that go bad, and the numbers that ENIs keep.

use api::types::Readiness;
use flows::Mark;
use loader::intent::Problem;
use loader::intent::{Eni, Node, OtherEni};

use super::*;

const REASON: &str = "status.eni.enis.eni-1.mac: missing; allowed: a unicast MAC address";

/// Hands a changed document to the agent.
fn document(actor: &mut Actor<ModelHost>, change: impl FnOnce(&mut Node)) {
    let mut node = fixture::intent().node;
    change(&mut node);
    let generation = actor.documents.source.generation + 1;
    let (_sender, mut receiver) = watch::channel(NodeSource {
        is_refused: false,
        value: Some(Arc::new(node)),
        error: None,
        generation,
    });
    actor.take_document(&mut receiver);
}

/// The entry of ENI 1 becomes unusable.
fn spoil(node: &mut Node) {
    let eni = node.enis.remove(&EniNumber(1)).unwrap();
    node.others.push(OtherEni {
        id: eni.id,
        device_index: Some(1),
        mac: None,
        readiness: Readiness::not_ready(REASON),
        whole: None,
    });
}

fn objects(actor: &Actor<ModelHost>) -> (BTreeMap<MapKey, MapEntry>, usize) {
    let state = &actor.reconciler.kernel().model.state;
    (state.maps.clone(), state.routes.len() + state.rules.len())
}

#[tokio::test]
async fn an_entry_that_goes_bad_leaves_what_is_set_up() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    actor.run_pass().await;
    let before = objects(&actor);

    document(&mut actor, spoil);
    actor.run_pass().await;
    assert_eq!(objects(&actor), before);
    let eni = actor.enis().into_iter().find(|eni| eni.id == "eni-1");
    let eni = eni.unwrap();
    let reason = eni.readiness.reason().unwrap();
    assert!(reason.starts_with(REASON), "{reason}");
    assert!(matches!(eni.readiness, Readiness::NotReady { .. }));
    assert_eq!(eni.number, Some(EniNumber(1)));
    assert!(actor.endpoints()[0].readiness.is_ready());
    let error = add(&mut actor, request(&endpoint("y", &["10.0.1.67"])));
    assert_eq!(error.await.unwrap_err().code, ErrorCode::EniNotReady);
    // Its neighbours give addresses.
    make(&mut actor, endpoint("z", &["10.0.2.66"]))
        .await
        .unwrap();

    // And so it is after a restart of the agent.
    machine.kill(actor);
    let mut actor = machine.boot();
    document(&mut actor, spoil);
    actor.run_pass().await;
    let after = objects(&actor).0;
    for (key, entry) in &before.0 {
        assert_eq!(after.get(key), Some(entry));
    }

    document(&mut actor, |_| {});
    actor.run_pass().await;
    assert!(actor.enis().iter().all(|eni| eni.readiness.is_ready()));
}

#[tokio::test]
async fn a_refused_address_stays_with_the_pod_that_has_it() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.20"]);
    make(&mut actor, pod.clone()).await.unwrap();
    let without = |node: &mut Node| {
        let eni = node.enis.get_mut(&EniNumber(1)).unwrap();
        eni.blocks.remove(&"10.0.1.20/32".parse().unwrap());
    };
    document(&mut actor, |node| {
        without(node);
        node.unfollowed.refused.push(Problem {
            path: "status.eni.enis.eni-1.addresses[0]".to_owned(),
            message: "\"10.0.1.2O\" is refused".to_owned(),
        });
    });
    actor.run_pass().await;
    assert!(actor.endpoints()[0].readiness.is_ready());
    let pool = crate::allocation::adapter::node_pools(&actor.intent.node, BTreeSet::new());
    let address = "10.0.1.20".parse().unwrap();
    assert!(
        pool.enis
            .iter()
            .all(|eni| !eni.addresses.contains(&address))
    );

    // An address that the document no longer lists does not belong to the ENI any more.
    document(&mut actor, without);
    actor.run_pass().await;
    assert!(!actor.endpoints()[0].readiness.is_ready());
}

#[tokio::test]
async fn a_number_stays_with_its_eni_also_over_a_restart() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let numbers = |actor: &Actor<ModelHost>| -> BTreeMap<String, EniNumber> {
        let enis = actor.intent.node.enis.values();
        enis.map(|eni| (eni.id.clone(), eni.number)).collect()
    };
    let index = |node: &mut Node, name: u8, device_index: u32| {
        let eni = node.enis.remove(&EniNumber(name)).unwrap();
        node.enis.insert(
            EniNumber(name),
            Eni {
                device_index,
                ..eni
            },
        );
    };
    let before = numbers(&actor);
    // Other indexes, with which a new agent would number otherwise.
    let swapped = |node: &mut Node| {
        index(node, 1, 2);
        index(node, 2, 1);
    };
    document(&mut actor, swapped);
    actor.run_pass().await;
    assert_eq!(numbers(&actor), before);
    machine.kill(actor);
    let mut actor = machine.boot();
    document(&mut actor, swapped);
    actor.run_pass().await;
    assert_eq!(numbers(&actor), before);
    // Without the record, the datapath's maps give the numbers.
    machine.kill(actor);
    fs::remove_file(machine.state.path().join("enis.json")).unwrap();
    let mut actor = machine.boot();
    actor.reconciler.kernel_mut().observe().await.unwrap();
    document(&mut actor, swapped);
    assert_eq!(numbers(&actor), before);
}

#[tokio::test]
async fn a_number_is_given_again_only_once_nothing_carries_it() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    document(&mut actor, |node| {
        node.enis.remove(&EniNumber(1));
    });
    actor.run_pass().await;
    let next = |node: &mut Node| {
        let eni = node.enis.remove(&EniNumber(1)).unwrap();
        let id = "eni-9".to_owned();
        node.enis.insert(EniNumber(1), Eni { id, ..eni });
    };
    // No sweep has looked yet.
    document(&mut actor, next);
    let number = |actor: &Actor<ModelHost>, id: &str| {
        let mut enis = actor.intent.node.enis.values();
        enis.find(|eni| eni.id == id).map(|eni| eni.number)
    };
    assert_eq!(number(&actor, "eni-9"), Some(EniNumber(3)));
    // The ENI itself gets its own back.
    document(&mut actor, |_| {});
    assert_eq!(number(&actor, "eni-1"), Some(EniNumber(1)));

    document(&mut actor, |node| {
        node.enis.remove(&EniNumber(1));
    });
    actor.run_pass().await;
    let mark = Mark {
        value: 2 << 24,
        mask: 0x3f00_0000,
    };
    let resting = actor
        .documents
        .numbering
        .resting(actor.intent.settings.mark);
    assert_eq!(resting.get(&EniNumber(1)), Some(&mark));
    actor.observers.nat.swept();
    actor.run_pass().await;
    document(&mut actor, next);
    assert_eq!(number(&actor, "eni-9"), Some(EniNumber(1)));
}

#[tokio::test]
async fn a_number_rests_where_another_eni_comes_in_the_same_document() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    document(&mut actor, |node| {
        let eni = node.enis.remove(&EniNumber(1)).unwrap();
        let id = "eni-9".to_owned();
        node.enis.insert(EniNumber(1), Eni { id, ..eni });
    });
    let mut enis = actor.intent.node.enis.values();
    let new = enis.find(|eni| eni.id == "eni-9").map(|eni| eni.number);
    assert_eq!(new, Some(EniNumber(3)));
}
