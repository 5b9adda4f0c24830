//! Single addresses: allocation, reports, release.

use std::net::IpAddr;

use kubernetes::node::crd_mode::{FlatOutlook, FlatPool};
use kubernetes::node::handshake::Release;

use super::allocation::{ask, give, given, wanted};
use super::demand::document;
use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Sets a document with single addresses of ENI 1, some of which have a release state of the
/// operator.
fn flat(actor: &mut Actor<ModelHost>, pool: &[&str], release: &[(&str, Release)]) {
    let addresses = pool.iter().map(|one| (ip(one), "eni-1".to_owned()));
    let release = release.iter().map(|(one, state)| (ip(one), *state));
    let flat = FlatPool {
        addresses: addresses.collect(),
        release: release.collect(),
    };
    document(actor, |node| node.flat = Some(flat));
}

fn flat_demand(actor: &mut Actor<ModelHost>) -> FlatOutlook {
    actor.update_addresses();
    let demand = actor.addresses.demand(&actor.intent).unwrap();
    demand.flat.unwrap()
}

#[tokio::test]
async fn only_the_pool_is_given_and_who_has_what_is_told() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    flat(&mut actor, &["10.0.1.20", "10.0.1.64", "10.0.1.9"], &[]);
    actor.run_pass().await;
    let mut all = Vec::new();
    for name in ["x", "y"] {
        all.extend(given(
            &give(&mut actor, wanted(name, ask(&[]))).await.unwrap(),
        ));
    }
    all.sort();
    // The last of the pool is not the ENI's.
    assert_eq!(all, [ip("10.0.1.20"), ip("10.0.1.64")]);
    let error = give(&mut actor, wanted("z", ask(&[]))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::PoolExhausted);
    let used = flat_demand(&mut actor).used;
    assert_eq!(used.keys().copied().collect::<Vec<_>>(), all);
    assert!(used.values().all(|entry| entry.resource == "eni-1"));
    let owners: BTreeSet<_> = used.values().map(|entry| entry.owner.as_str()).collect();
    assert_eq!(owners, ["x/eth0", "y/eth0"].into());
}

#[tokio::test]
async fn what_goes_back_is_kept_from_pods_and_what_is_held_does_not() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    let pool = ["10.0.1.20", "10.0.1.64"];
    flat(&mut actor, &pool, &[]);
    actor.run_pass().await;
    let held = given(&give(&mut actor, wanted("x", ask(&[]))).await.unwrap())[0];
    let marked = pool.map(|one| (one, Release::MarkedForRelease));
    flat(&mut actor, &pool, &marked);
    actor.run_pass().await;
    for (address, answer) in flat_demand(&mut actor).release {
        let expected = if address == held {
            Release::DoNotRelease
        } else {
            Release::ReadyForRelease
        };
        assert_eq!(answer, expected, "{address}");
    }
    let error = give(&mut actor, wanted("y", ask(&[]))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::PoolExhausted, "{error}");
    // It cools down, and is held as long.
    actor
        .delete(&[endpoint("x", &[]).owner])
        .await
        .remove(0)
        .unwrap();
    assert_eq!(
        flat_demand(&mut actor).release[&held],
        Release::DoNotRelease
    );
    // The operator takes its word back.
    flat(&mut actor, &pool, &[]);
    actor.run_pass().await;
    assert!(flat_demand(&mut actor).release.is_empty());
    give(&mut actor, wanted("y", ask(&[]))).await.unwrap();
}

/// An address that the operator requests back stays available to waiting pods until the node has
/// agreed.
#[tokio::test]
async fn what_pods_wait_for_does_not_go_back() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    let pool = ["10.0.1.20", "10.0.1.64"];
    flat(&mut actor, &[], &[]);
    actor.run_pass().await;
    give(&mut actor, wanted("a", ask(&[]))).await.unwrap_err();
    let marked = pool.map(|one| (one, Release::MarkedForRelease));
    flat(&mut actor, &pool, &marked);
    actor.run_pass().await;
    let kept = |actor: &mut Actor<ModelHost>| {
        let answers = flat_demand(actor).release.into_iter();
        let kept = answers.filter(|(_, answer)| *answer == Release::DoNotRelease);
        kept.map(|(address, _)| address).collect::<Vec<_>>()
    };
    let promised = kept(&mut actor);
    assert_eq!(promised.len(), 1, "one pod waits");
    give(&mut actor, wanted("b", ask(&[]))).await.unwrap();
    let error = give(&mut actor, wanted("c", ask(&[]))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::PoolExhausted, "{error}");
    assert_eq!(
        kept(&mut actor),
        promised,
        "what is being released stays so"
    );
}
