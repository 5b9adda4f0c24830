//! The agent's own addresses: allocated, used on the host, withheld from pods, restored after a
//! restart, and released.

use std::net::IpAddr;

use super::*;
use crate::actor::ingress::{OwnAddresses, owner};
use crate::server::AddressSpec;
use api::types::LeaseState;
use config::Ingress;
use ipam::Family;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An agent that has addresses of its own on the host.
async fn started(machine: &mut Machine, mode: Ingress) -> Actor<ModelHost> {
    let mut actor = machine.boot();
    let report = OwnAddresses::none().report;
    actor.start_ingress(OwnAddresses::new(mode, "default", report));
    give_document(&mut actor);
    actor.run_pass().await;
    actor
}

async fn take(actor: &mut Actor<ModelHost>, addresses: &[&str]) -> Result<(), ApiError> {
    let addresses = addresses.iter().map(|text| ip(text)).collect();
    actor.take_ingress(&owner("n"), addresses).await
}

/// The loopback device's addresses other than its own.
fn on_loopback(actor: &Actor<ModelHost>) -> BTreeSet<IpAddr> {
    let all = actor.reconciler.kernel().model.state.addresses.iter();
    let all = all.filter(|address| address.ifindex == 1);
    let all = all.map(|address| address.net.addr());
    all.filter(|address| !address.is_loopback()).collect()
}

fn listed(actor: &Actor<ModelHost>) -> BTreeSet<IpAddr> {
    let leases = actor.list_addresses().leases.into_iter();
    let own = leases.filter(|lease| lease.state == LeaseState::Agent);
    own.map(|lease| lease.address).collect()
}

#[tokio::test]
async fn they_outlive_the_agent_and_go_when_they_are_given_up() {
    let mut machine = Machine::new();
    let mut actor = started(&mut machine, Ingress::On).await;
    let both = ["10.0.1.70", "2001:db8:0:1:a::70"];
    let addresses: BTreeSet<IpAddr> = both.iter().map(|text| ip(text)).collect();
    take(&mut actor, &both).await.unwrap();
    assert_eq!(on_loopback(&actor), addresses);
    assert_eq!(listed(&actor), addresses);
    assert_eq!(*actor.signals.ingress.borrow(), Some(BTreeSet::new()));
    let before = writes(&actor);
    take(&mut actor, &both).await.unwrap();
    assert_eq!(writes(&actor), before, "a repeated one writes nothing");
    machine.kill(actor);
    let mut actor = started(&mut machine, Ingress::On).await;
    assert_eq!(writes(&actor), before, "nor does a restart");
    assert_eq!(*actor.signals.ingress.borrow(), Some(addresses.clone()));
    actor.leave_ingress(&owner("n")).await.unwrap();
    assert!(on_loopback(&actor).is_empty() && listed(&actor).is_empty());
    machine.kill(actor);
    let actor = started(&mut machine, Ingress::On).await;
    assert!(on_loopback(&actor).is_empty() && listed(&actor).is_empty());
}

#[tokio::test]
async fn an_agent_that_has_them_switched_off_takes_them_off_the_host() {
    let mut machine = Machine::new();
    let mut actor = started(&mut machine, Ingress::On).await;
    take(&mut actor, &["10.0.1.70"]).await.unwrap();
    machine.kill(actor);
    let mut actor = started(&mut machine, Ingress::Off).await;
    // Until its keeper gives it up, it stays, and no other owner gets it.
    assert_eq!(listed(&actor).len(), 1);
    assert_eq!(on_loopback(&actor), listed(&actor));
    assert_eq!(*actor.signals.ingress.borrow(), Some(BTreeSet::new()));
    actor.leave_ingress(&owner("n")).await.unwrap();
    assert!(on_loopback(&actor).is_empty() && listed(&actor).is_empty());
}

#[tokio::test]
async fn what_is_a_pods_or_nobodys_is_refused_and_no_pod_gets_what_is_the_agents() {
    let mut machine = Machine::new();
    let mut actor = started(&mut machine, Ingress::On).await;
    let pod = endpoint("x", &["10.0.1.66", "2001:db8:0:1:a::66"]);
    make(&mut actor, pod).await.unwrap();
    for (address, code) in [
        ("10.0.1.66", ErrorCode::AddressInUse),
        ("192.0.2.7", ErrorCode::AddressNotOwned),
        ("10.0.0.10", ErrorCode::AddressOfHost),
    ] {
        let error = take(&mut actor, &[address]).await.unwrap_err();
        assert_eq!(error.code, code, "{address}: {error}");
        assert!(error.message.contains(address), "{error}");
        assert!(on_loopback(&actor).is_empty() && listed(&actor).is_empty());
    }
    take(&mut actor, &["10.0.1.70"]).await.unwrap();
    let request = request(&endpoint("y", &["10.0.1.70"]));
    let error = add(&mut actor, request).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressOfHost);
    assert!(error.message.contains("the agent's own"), "{error}");
    // No runtime knows it, and none may have it collected.
    let collected = actor.collect(api::types::GcRequest {
        network: "pods".to_owned(),
        valid: Vec::new(),
    });
    assert_eq!(collected.await.agent.len(), 2);
    assert_eq!(on_loopback(&actor), [ip("10.0.1.70")].into());
}

#[tokio::test]
async fn addresses_that_are_replaced_are_released() {
    let mut machine = Machine::new();
    let mut actor = started(&mut machine, Ingress::On).await;
    for addresses in [
        &["10.0.1.70", "2001:db8:0:1:a::70"][..],
        &["10.0.1.71", "2001:db8:0:1:a::71"],
        &["10.0.1.71"],
    ] {
        take(&mut actor, addresses).await.unwrap();
        let addresses: BTreeSet<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
        assert_eq!(listed(&actor), addresses);
        assert_eq!(on_loopback(&actor), addresses);
        assert_eq!(actor.ingress_addresses(), addresses);
    }
}

#[tokio::test]
async fn they_outlive_the_namespace_that_answers_for_them() {
    let mut machine = Machine::new();
    let mut actor = started(&mut machine, Ingress::Netns(LIVE.into())).await;
    let both = ["10.0.1.70", "2001:db8:0:1:a::70"];
    let addresses: BTreeSet<IpAddr> = both.iter().map(|text| ip(text)).collect();
    let own = endpoint(&owner("n").container_id, &both);
    let admitted = actor.record_with_leases(own.clone(), &AddressSpec::default());
    actor.finish(vec![admitted]).await.remove(0).unwrap();
    assert_eq!(
        (devices(&actor), listed(&actor)),
        ([own.id()].into(), addresses.clone())
    );
    // The namespace goes, and the devices with it.
    let endpoints = &mut actor.intent.endpoints;
    endpoints.get_mut(&own.id()).unwrap().netns = "/nowhere".into();
    let device = own.id().device();
    let kernel = actor.reconciler.kernel_mut();
    let links = &mut kernel.model.state.links;
    links.retain(|_, link| link.name != device);
    kernel.observe().await.unwrap();
    actor.run_pass().await;
    assert!(actor.intent.endpoints.is_empty() && machine.records().is_empty());
    for _ in 0..2 {
        assert_eq!(listed(&actor), addresses);
        let pod = actor.record_with_leases(endpoint("y", &both), &AddressSpec::default());
        let error = pod.unwrap_err();
        assert_eq!(error.code, ErrorCode::AddressInUse, "{error}");
        machine.kill(actor);
        actor = started(&mut machine, Ingress::Netns(LIVE.into())).await;
    }
    actor.leave_ingress(&owner("n")).await.unwrap();
    assert!(listed(&actor).is_empty());
}

#[tokio::test]
async fn what_their_own_pools_lack_is_drawn_from_the_pods_pool() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    assert_eq!(*actor.signals.ingress.borrow(), None, "nothing is read yet");
    actor.start_ingress(OwnAddresses::none());
    give_document(&mut actor);
    let both: BTreeSet<Family> = Family::ALL.into();
    let early = actor.allocate_ingress(&owner("n"), &both).unwrap();
    assert!(early.is_empty(), "the kernel is not known yet: {early:?}");
    actor.run_pass().await;
    let given = actor.allocate_ingress(&owner("n"), &both).unwrap();
    assert_eq!(given.len(), 2);
    let again = actor.allocate_ingress(&owner("n"), &both).unwrap();
    assert_eq!(again, given);
    actor
        .take_ingress(&owner("n"), given.clone())
        .await
        .unwrap();
    assert_eq!(listed(&actor), given);
    // A node with another name has others, for as long as the earlier ones are not given up.
    let others = actor.allocate_ingress(&owner("m"), &both).unwrap();
    assert!(others.is_disjoint(&given), "{others:?}");
    // Allocated addresses are not in use yet.
    assert_eq!(actor.ingress_addresses(), given);
    actor.leave_ingress(&owner("n")).await.unwrap();
    assert_eq!(actor.ingress_addresses(), BTreeSet::new());
    machine.kill(actor);
    let mut actor = started(&mut machine, Ingress::On).await;
    assert_eq!(*actor.signals.ingress.borrow(), Some(others.clone()));
    let again = actor.allocate_ingress(&owner("m"), &both).unwrap();
    assert_eq!(again, others);
}

#[tokio::test]
async fn a_pool_that_has_none_is_named_and_asked_for_more() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    let report = OwnAddresses::none().report;
    actor.start_ingress(OwnAddresses::new(Ingress::On, "gateways", report));
    give_document(&mut actor);
    actor.run_pass().await;
    let error = actor
        .allocate_ingress(&owner("n"), &[Family::V4].into())
        .unwrap_err();
    assert!(error.message.contains("pool gateways"), "{error}");
    let pools = actor.list_pools();
    let pool = pools
        .iter()
        .find(|pool| pool.pool.as_deref() == Some("gateways"));
    assert!(pool.is_some_and(|pool| pool.requested == 1), "{pools:?}");
}
