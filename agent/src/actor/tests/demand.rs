//! Demand of the node, and the conditions that it waits for.

use std::time::Duration;

use api::types::AllocationMode;
use ipam::node::AllocatedPool;
use ipam::{EdgeRules, Family};
use ipnet::IpNet;
use loader::intent::{Node, StaticAddress};

use super::allocation::{ask, give, wanted};
use super::*;
use crate::server::AddressSpec;

/// The node's document, changed.
pub(super) fn document(actor: &mut Actor<ModelHost>, change: impl FnOnce(&mut Node)) {
    let mut node = fixture::intent().node;
    change(&mut node);
    let (_sender, mut receiver) = watch::channel(NodeSource {
        is_refused: false,
        value: Some(Arc::new(node)),
        error: None,
        generation: actor.documents.source.generation + 1,
    });
    actor.take_document(&mut receiver);
}

#[tokio::test]
async fn nothing_is_given_before_the_public_address_is_there_but_asked_for() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    document(&mut actor, |node| {
        node.static_address = StaticAddress::Awaited;
    });
    actor.run_pass().await;
    let error = give(&mut actor, wanted("x", ask(&[]))).await.unwrap_err();
    assert_eq!((error.code, error.retry), (ErrorCode::NotReady, true));
    assert!(
        error.message.contains("status.ipam.assigned-static-ip"),
        "{error}"
    );
    let ready = actor.ready().unwrap_err();
    assert_eq!(ready.code, ErrorCode::NotReady);
    assert!(ready.message.contains("static-ip-tags"), "{ready}");
    let waiting = actor.status().await.allocation.waiting;
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert!(waiting[0].contains("static-ip-tags"), "{waiting:?}");
    assert!(
        actor.addresses.demand(&actor.intent).is_some(),
        "it asks all the same"
    );

    document(&mut actor, |node| {
        node.static_address = StaticAddress::Assigned;
    });
    actor.run_pass().await;
    actor.ready().unwrap();
    let first = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    // That it goes is no reason to stop.
    document(&mut actor, |node| {
        node.static_address = StaticAddress::Awaited;
    });
    actor.run_pass().await;
    give(&mut actor, wanted("y", ask(&[]))).await.unwrap();
    machine.kill(actor);

    // A new agent waits again, and its pods keep their addresses.
    let mut actor = machine.boot();
    document(&mut actor, |node| {
        node.static_address = StaticAddress::Awaited;
    });
    actor.run_pass().await;
    let again = add(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    assert_eq!(again, first);
    give(&mut actor, wanted("z", ask(&[]))).await.unwrap_err();
}

/// The agent waits for missing conditions only.
#[tokio::test]
async fn only_what_is_missing_is_waited_for() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    let allocation = actor.status().await.allocation;
    assert_eq!(allocation.mode, AllocationMode::File);
    let waiting = allocation.waiting;
    assert_eq!(waiting, ["a first look at the kernel", "the node document"]);
    document(&mut actor, |_| {});
    actor.update_addresses();
    actor.run_pass().await;
    assert!(actor.status().await.allocation.waiting.is_empty());
}

/// A probe that fails of a full pool would stop a rollout on nodes that serve their pods.
#[tokio::test]
async fn a_full_node_is_degraded_and_still_ready() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    document(&mut actor, |_as_it_is| {});
    actor.run_pass().await;
    assert_eq!(actor.status().await.health.state, HealthState::Ready);
    let mut n = 0;
    let error = loop {
        let container = format!("c{n}");
        match give(&mut actor, wanted(&container, ask(&[Family::V4]))).await {
            Ok(_attached) => n += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code, ErrorCode::PoolExhausted, "{error}");
    let health = actor.status().await.health;
    assert_eq!(health.state, HealthState::Degraded, "{health:?}");
    let is_reported = |reason: &String| {
        reason.starts_with("pool default has no IPv4 address left")
            && reason.contains("give the pool more addresses")
    };
    assert!(health.reasons.iter().any(is_reported), "{health:?}");
    actor.ready().unwrap();

    actor.documents.source.value = None;
    assert_eq!(actor.status().await.health.state, HealthState::NotReady);
    assert_eq!(actor.ready().unwrap_err().code, ErrorCode::NotReady);
}

/// A pool other than the default one is reported as too small only when a pod waits for it.
#[tokio::test]
async fn another_pool_is_exhausted_once_a_pod_waits_for_it() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    document(&mut actor, |_as_it_is| {});
    actor.run_pass().await;
    let pools = [(Family::V4, "mars".to_owned())].into();
    let of_mars = AddressSpec {
        pools,
        ..ask(&[Family::V4])
    };
    actor.with_addresses(wanted("x", of_mars)).unwrap_err();
    let health = actor.status().await.health;
    assert_eq!(health.state, HealthState::Degraded, "{health:?}");
    let reasons = health.reasons.join("\n");
    assert!(reasons.contains("pool mars"), "{reasons}");
    actor.ready().unwrap();
}

#[tokio::test]
async fn demand_that_nobody_answers_is_told_after_two_minutes() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    document(&mut actor, |node| node.pre_allocate = Some(60));
    actor.run_pass().await;
    actor.addresses.demand(&actor.intent).unwrap();
    actor.addresses.age(Duration::from_secs(119));
    actor.addresses.demand(&actor.intent).unwrap();
    assert!(actor.status().await.allocation.unanswered.is_empty());
    actor.addresses.age(Duration::from_secs(1));
    let status = actor.status().await;
    let [unanswered] = status.allocation.unanswered.as_slice() else {
        panic!("{:?}", status.allocation.unanswered);
    };
    assert_eq!(unanswered.pool, "default");
    assert_eq!((unanswered.wanted, unanswered.given), (60, 51));
    assert_eq!(unanswered.seconds, 120);
    assert_eq!(status.health.state, HealthState::Degraded);
    let reasons = status.health.reasons.join("\n");
    let text = "pool default, IPv4: 60 addresses are requested and 51 are given, without a change \
                for 120 s: see the operator's log";
    assert!(reasons.contains(text), "{reasons}");

    document(&mut actor, |node| node.pre_allocate = Some(51));
    actor.run_pass().await;
    actor.addresses.demand(&actor.intent).unwrap();
    let status = actor.status().await;
    assert!(status.allocation.unanswered.is_empty());
    assert_eq!(status.health.state, HealthState::Ready);
}

#[tokio::test]
async fn a_block_that_was_given_back_stays_so_in_the_next_agent() {
    let with_block = |node: &mut Node| {
        node.allocated.push(AllocatedPool {
            pool: "mars".to_owned(),
            edges: EdgeRules::ALL,
            cidrs: vec!["172.20.0.0/28".parse().unwrap()],
        });
    };
    let of_mars = |container: &str| {
        let pools = [(Family::V4, "mars".to_owned())].into();
        let families = [Family::V4];
        wanted(
            container,
            AddressSpec {
                pools,
                ..ask(&families)
            },
        )
    };
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    actor.intent.settings.plain_is_native = true;
    document(&mut actor, with_block);
    actor.run_pass().await;
    let demand = actor.addresses.demand(&actor.intent).unwrap();
    let kept = demand.wanted.allocated.iter().map(|kept| &*kept.pool);
    assert_eq!(kept.collect::<Vec<_>>(), ["default"]);
    let error = actor.with_addresses(of_mars("x")).unwrap_err();
    assert_eq!(error.code, ErrorCode::PoolExhausted, "{error}");
    machine.kill(actor);

    // It is unknown if that was written.
    let mut actor = machine.boot();
    actor.intent.settings.plain_is_native = true;
    document(&mut actor, with_block);
    actor.run_pass().await;
    let error = actor.with_addresses(of_mars("x")).unwrap_err();
    assert_eq!(error.code, ErrorCode::PoolExhausted, "{error}");
    document(&mut actor, |_without| {});
    actor.run_pass().await;
    document(&mut actor, with_block);
    actor.run_pass().await;
    actor.with_addresses(of_mars("x")).unwrap();
}

/// Puts these claims of IPv4 blocks into the document, and returns those that the agent then
/// writes.
async fn claims(actor: &mut Actor<ModelHost>, pre_allocate: u32, claimed: &[IpNet]) -> Vec<IpNet> {
    document(actor, |node| {
        node.pre_allocate = Some(pre_allocate);
        node.allocated.push(AllocatedPool {
            pool: "default".to_owned(),
            edges: EdgeRules::ALL,
            cidrs: claimed.to_vec(),
        });
    });
    actor.run_pass().await;
    let demand = actor.addresses.demand(&actor.intent).unwrap();
    let pools = demand.wanted.allocated.into_iter();
    let blocks = pools.flat_map(|kept| kept.cidrs);
    blocks.filter(|block| block.addr().is_ipv4()).collect()
}

/// An operator that works from a cache may have taken the block while the agent was away.
#[tokio::test]
async fn a_claim_that_a_restart_interrupts_is_not_made_again() {
    let mut machine = Machine::new();
    let settings = "ipam: {release: 'on'}\nkubernetes: {enabled: true, node-name: node}";
    machine.config = Config::parse(settings).unwrap();
    let mut actor = machine.boot();
    let all = claims(&mut actor, 1, &[]).await;
    assert_eq!(claims(&mut actor, 60, &all).await, all);
    actor.addresses.age(Duration::from_mins(1));
    let kept = claims(&mut actor, 1, &all).await;
    assert!(kept.len() < all.len(), "{all:?}");
    assert_eq!(claims(&mut actor, 1, &kept).await, kept);
    assert_eq!(claims(&mut actor, 51, &kept).await, all);
    machine.kill(actor);

    let mut actor = machine.boot();
    assert_eq!(claims(&mut actor, 51, &kept).await, kept);
}
