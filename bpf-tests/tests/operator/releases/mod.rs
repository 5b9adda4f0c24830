//! Addresses that go back to EC2 while pods come and go on two nodes: no pod's address is taken, and
//! no ENI sends a packet with a source that it does not own.

mod guests;
mod scene;

use anyhow::Result;
use serde_json::json;
use testkit::cloud::SiteSpec;
use testkit::fabric::eventually::{check, eventually};

use self::guests::Guests;
use self::scene::Scene;
use crate::bed::SOON;

/// Pods of a node at the most and at the least.
const PODS: [usize; 2] = [60, 6];
/// Pods that a node adds while its addresses go back.
const ADDS: usize = 20;

/// The releases to see.
fn wanted() -> usize {
    match std::env::var_os("TOWPATH_FULL") {
        Some(_) => 1_000,
        None => 25,
    }
}

/// One round: pods go, and new ones come as soon as the release of addresses begins.
fn round(scene: &Scene, guests: &mut [Guests<'_>; 2]) -> Result<()> {
    let [most, least] = PODS;
    let [one, other] = guests;
    while one.count() < most {
        one.add(other)?;
        other.add(one)?;
    }
    one.all_exchange(other)?;
    other.all_exchange(one)?;
    for node in [&mut *one, &mut *other] {
        while node.count() > least {
            node.remove()?;
        }
    }
    let begun = || check(scene.marked()? > 0, || "no block is marked".to_owned());
    eventually(SOON, "addresses go back", begun)?;
    for _ in 0..ADDS {
        one.add(other)?;
        other.add(one)?;
    }
    let over = || {
        let marked = scene.marked()?;
        check(marked == 0, || format!("{marked} blocks are marked"))
    };
    eventually(2 * SOON, "the releases are over", over)?;
    one.all_exchange(other)?;
    other.all_exchange(one)
}

fn play(scene: &Scene) -> Result<()> {
    let [one, other] = scene.nodes.as_slice() else {
        anyhow::bail!("there are two nodes");
    };
    let mut guests = [Guests::on(one)?, Guests::on(other)?];
    let mut rounds = 0;
    while scene.site.unassigned() < wanted() {
        round(scene, &mut guests)?;
        rounds += 1;
        let released = scene.site.unassigned();
        println!("round {rounds}: {released} addresses released so far");
    }
    Ok(())
}

#[test]
fn no_packet_is_foreign_while_addresses_go_back_and_pods_come() {
    let site = SiteSpec {
        kind: "m5.4xlarge",
        operator: json!({"addresses": {"release": "on", "release-delay": "3s"}}),
        ..SiteSpec::default()
    };
    let settings = json!({
        "ipam": {"release": "on"}, "kubernetes": {"ipam": {"pre-allocate": 16}}
    });
    let scene = Scene::create(site, &settings).unwrap();
    if let Err(error) = play(&scene) {
        println!("{}", scene.logs());
        panic!("{error:#}");
    }
    scene.finish().unwrap();
}
