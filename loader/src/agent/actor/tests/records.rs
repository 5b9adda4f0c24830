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

    let mut actor = machine.start().await;
    let state = &actor.reconciler.kernel().model.state;
    let routes = state.routes.iter();
    let to_pod = routes.filter(|route| route.destination.to_string() == "10.0.1.66/32");
    assert_eq!(to_pod.count(), 1, "the route is still there");
    assert_eq!(devices(&actor), [pod.id()].into());
    assert_eq!(actor.status().await.health.state, HealthState::Degraded);
    let thief = endpoint("y", &["10.0.1.66"]);
    let error = add(&mut actor, request(&thief)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressInUse, "{error}");

    actor
        .delete(std::slice::from_ref(&pod.owner))
        .await
        .remove(0)
        .unwrap();
    assert!(devices(&actor).is_empty() && machine.records().is_empty());
    assert_eq!(actor.status().await.health.state, HealthState::Ready);
}

#[tokio::test]
async fn an_endpoint_that_was_removed_from_disk_alone_goes_at_the_next_start() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    actor.store.remove(pod.id()).unwrap();
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
    actor
        .delete(std::slice::from_ref(&gone.owner))
        .await
        .remove(0)
        .unwrap();
    actor.run_pass().await;
    machine.kill(actor);
    let actor = machine.start().await;
    assert_eq!(devices(&actor), [kept.id()].into());

    let mut actor = actor;
    fs::remove_dir_all(machine.folder.path()).unwrap();
    fs::write(machine.folder.path(), "in the way").unwrap();
    actor.run_pass().await;
    let health = actor.status().await.health;
    assert_eq!(health.state, HealthState::Degraded, "{health:?}");
    fs::remove_file(machine.folder.path()).unwrap();
    actor.run_pass().await;
    assert_eq!(actor.status().await.health.state, HealthState::Ready);
}
