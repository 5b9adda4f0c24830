//! Endpoints whose records are lost.

use api::types::{GcRequest, LeaseState};

use super::*;

/// A machine with two endpoints, whose state folder is lost.
async fn machine() -> (Machine, [Endpoint; 2]) {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pods = [
        endpoint("x", &["10.0.1.66", "2001:db8:0:1:a::66"]),
        endpoint("y", &["10.0.0.20"]),
    ];
    for pod in &pods {
        make(&mut actor, pod.clone()).await.unwrap();
    }
    machine.kill(actor);
    machine.lose_state();
    (machine, pods)
}

fn ids(pods: &[Endpoint]) -> BTreeSet<EndpointId> {
    pods.iter().map(Endpoint::id).collect()
}

#[tokio::test]
async fn endpoints_without_a_record_are_served_and_keep_their_addresses() {
    let (mut machine, pods) = Box::pin(machine()).await;
    let kernel = machine.kernel.as_ref().unwrap();
    let (before, steps) = (kernel.state.clone(), kernel.steps.len());
    let mut actor = machine.start().await;
    assert_eq!(writes(&actor), steps, "nothing is changed");
    assert_eq!(actor.reconciler.kernel().model.state, before);
    for (status, pod) in actor.endpoints().iter().zip(&pods) {
        assert!(status.orphaned && status.readiness.is_ready(), "{status:?}");
        let addresses: BTreeSet<_> = status.addresses.iter().map(|a| a.address).collect();
        assert!(pods.iter().any(|pod| pod.addresses == addresses), "{pod:?}");
    }
    let health = actor.status().await.health;
    assert_eq!(health.state, HealthState::Degraded, "{health:?}");
    let listed = actor.list_addresses().leases;
    assert!(
        listed
            .iter()
            .all(|lease| lease.state == LeaseState::Orphaned),
        "{listed:?}"
    );
    assert_eq!(listed.len(), 3);

    let thief = endpoint("z", &["10.0.1.66"]);
    let error = add(&mut actor, request(&thief)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressInUse, "{error}");

    // Changes by other programs are repaired.
    let routes = &mut actor.reconciler.kernel_mut().model.state.routes;
    routes.retain(|route| route.destination.to_string() != "10.0.1.66/32");
    actor.run_pass().await;
    assert_eq!(actor.reconciler.kernel().model.state, before);
    assert!(machine.records().is_empty(), "nothing is written of them");

    actor
        .delete(&[pods[0].owner.clone()])
        .await
        .remove(0)
        .unwrap();
    assert_eq!(devices(&actor), ids(&pods[1..]));
    assert!(machine.records().is_empty());
}

#[tokio::test]
async fn an_orphan_is_an_orphan_again_until_its_record_is_back() {
    let (mut machine, pods) = Box::pin(machine()).await;
    for _ in 0..2 {
        let actor = machine.start().await;
        assert_eq!(devices(&actor), ids(&pods));
        assert_eq!(actor.orphans(), 2);
        machine.kill(actor);
    }
    let mut store = Store::open(machine.folder.path()).unwrap().0;
    store.put(&pods[0]).unwrap();
    let mut actor = machine.start().await;
    assert_eq!(
        actor.orphans(),
        1,
        "a part of the folder may be lost as well"
    );
    assert_eq!(actor.intent.endpoints[&pods[0].id()].owner, pods[0].owner);
    // The device of the other one goes with its pod.
    let gone = actor
        .reconciler
        .kernel()
        .model
        .state
        .devices_of(|id| id == pods[1].id());
    actor
        .reconciler
        .kernel_mut()
        .model
        .unplug(*gone.first().unwrap());
    actor.run_pass().await;
    actor.run_pass().await;
    assert_eq!((actor.orphans(), devices(&actor)), (0, ids(&pods[..1])));
    assert_eq!(actor.status().await.health.state, HealthState::Ready);
}

#[tokio::test]
async fn a_runtime_that_does_not_know_an_orphan_collects_it() {
    let (mut machine, pods) = Box::pin(machine()).await;
    let mut actor = machine.start().await;
    let request = |network: &str| GcRequest {
        network: network.to_owned(),
        valid: vec![pods[0].owner.clone()],
    };
    let mut other = endpoint("other", &["10.0.1.67"]);
    other.about.network = Some("another".to_owned());
    make(&mut actor, other.clone()).await.unwrap();
    let collected = actor.collect(request("net")).await;
    assert_eq!((collected.removed.len(), collected.kept.len()), (0, 1));
    actor.delete(&[other.owner]).await.remove(0).unwrap();

    let collected = actor.collect(request("net")).await;
    assert_eq!(collected.removed, [pods[1].id().unknown_owner()]);
    assert_eq!(devices(&actor), ids(&pods[..1]));
}

#[tokio::test]
async fn the_owner_that_is_added_again_gets_a_new_device() {
    let (mut machine, pods) = Box::pin(machine()).await;
    let mut actor = machine.start().await;
    let id = pods[1].id();
    let device = |actor: &Actor<ModelHost>| {
        let state = &actor.reconciler.kernel().model.state;
        state.devices_of(|one| one == id)
    };
    let before = device(&actor);
    add(&mut actor, request(&pods[1])).await.ok();
    assert_ne!(device(&actor), before);
}

#[tokio::test]
async fn a_delete_that_was_cut_short_leaves_no_orphan() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    actor.reconciler.kernel_mut().model.refuse =
        Box::new(|step| matches!(step, StepKind::DeleteDevice(_)));
    delete(&mut actor, &pod.owner).await;
    machine.kill(actor);
    let mut actor = machine.start().await;
    assert_eq!((actor.orphans(), devices(&actor).len()), (0, 1));
    actor.reconciler.kernel_mut().model.refuse = Box::new(|_| false);
    actor.run_pass().await;
    assert!(devices(&actor).is_empty());
    assert!(machine.records().is_empty());
    // Its owner may come again.
    make(&mut actor, pod.clone()).await.unwrap();
    machine.kill(actor);
    assert_eq!(devices(&machine.start().await), ids(&[pod]));
}

#[tokio::test]
async fn nothing_is_planned_while_the_kernel_cannot_be_read() {
    let (mut machine, pods) = Box::pin(machine()).await;
    machine.kernel.as_mut().unwrap().budget = Some(0);
    let mut actor = machine.start().await;
    let error = actor
        .delete(&[pods[0].owner.clone()])
        .await
        .remove(0)
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::NotReady);
    actor.reconciler.kernel_mut().model.budget = None;
    actor.run_pass().await;
    assert_eq!(devices(&actor), ids(&pods));
}
