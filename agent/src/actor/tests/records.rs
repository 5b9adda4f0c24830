//! Records that were damaged or lost.

use super::*;

#[tokio::test]
async fn a_pod_whose_record_is_lost_keeps_its_network_and_its_address() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    machine.kill(actor);
    let record = machine.folder.path().join(format!("{}.json", pod.id()));
    fs::write(&record, "{").unwrap();

    let before = machine.kernel.as_ref().unwrap().state.clone();
    let mut actor = machine.start().await;
    assert_eq!(actor.reconciler.kernel().model.state, before);
    assert_eq!(devices(&actor), [pod.id()].into());
    let status = actor.status().await;
    assert_eq!(status.health.state, HealthState::Degraded);
    assert_eq!(status.corrupt_records.len(), 1);
    let served = actor.endpoints();
    assert!(
        served
            .iter()
            .all(|one| one.orphaned && one.readiness.is_ready()),
        "{served:?}"
    );
    // Others' changes to it are repaired as those to any endpoint.
    let routes = &mut actor.reconciler.kernel_mut().model.state.routes;
    routes.retain(|route| route.destination.to_string() != "10.0.1.66/32");
    actor.run_pass().await;
    assert_eq!(actor.reconciler.kernel().model.state, before);
    let thief = endpoint("y", &["10.0.1.66"]);
    let error = add(&mut actor, request(&thief)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressInUse, "{error}");

    delete(&mut actor, &pod.owner).await;
    assert!(devices(&actor).is_empty() && machine.records().is_empty());
    assert_eq!(actor.status().await.health.state, HealthState::Ready);
}

#[tokio::test]
async fn an_endpoint_that_was_removed_from_disk_alone_goes_at_the_next_start() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    actor.records.store.remove(pod.id()).unwrap();
    machine.kill(actor);
    let actor = machine.start().await;
    assert!(devices(&actor).is_empty());
}

#[tokio::test]
async fn records_that_somebody_removed_are_written_again() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let (kept, gone) = (endpoint("x", &["10.0.1.66"]), endpoint("y", &["10.0.1.67"]));
    make(&mut actor, kept.clone()).await.unwrap();
    make(&mut actor, gone.clone()).await.unwrap();
    fs::remove_dir_all(machine.folder.path()).unwrap();
    delete(&mut actor, &gone.owner).await;
    actor.run_pass().await;
    machine.kill(actor);
    let actor = machine.start().await;
    assert_eq!(devices(&actor), [kept.id()].into());

    let mut actor = actor;
    fs::remove_dir_all(machine.folder.path()).unwrap();
    fs::write(machine.folder.path(), "no directory").unwrap();
    actor.run_pass().await;
    let health = actor.status().await.health;
    assert_eq!(health.state, HealthState::Degraded, "{health:?}");
    fs::remove_file(machine.folder.path()).unwrap();
    actor.run_pass().await;
    assert_eq!(actor.status().await.health.state, HealthState::Ready);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_goes_with_its_pod() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pods = [endpoint("x", &["10.0.1.66"]), endpoint("y", &["10.0.1.67"])];
    for pod in &pods {
        make(&mut actor, pod.clone()).await.unwrap();
    }
    let devices = pods.each_ref().map(|pod| {
        let view = &actor.passes.last.view.endpoints[&pod.id()];
        view.ifindex.unwrap()
    });
    machine.kill(actor);
    for record in machine.records() {
        fs::write(machine.folder.path().join(record), "{").unwrap();
    }
    let model = machine.kernel.as_mut().unwrap();
    for device in devices {
        model.unplug(device);
    }

    let mut actor = machine.start().await;
    assert_eq!(actor.status().await.corrupt_records.len(), 2);
    delete(&mut actor, &pods[0].owner).await;
    assert_eq!(machine.records().len(), 1, "the pod alone was deleted");
    let request = api::types::GcRequest {
        network: "net".to_owned(),
        valid: Vec::new(),
    };
    let collected = actor.collect(request).await;
    assert_eq!(collected.removed, [pods[1].id().unknown_owner()]);
    assert!(machine.records().is_empty());
    assert_eq!(actor.status().await.health.state, HealthState::Ready);
}
