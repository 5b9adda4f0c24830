//! Pools that skip masquerade: on running pods, at once for new flows.

use std::sync::Arc;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::layout::{DIRECT, DIRECT_POOL};
use testkit::fabric::traffic::{Asker, Echo, Session};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Pod};

use crate::masq::{internet, masquerade, scene, seen_now, snat, translated};
use crate::support::{CHANGE, within};

/// Pods of the second pool on both ENIs; they may leave the VPC untranslated.
fn direct_pods(fabric: &mut Fabric) -> [Arc<Pod>; 2] {
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, DIRECT.start).unwrap());
    let addresses: Vec<_> = pods
        .iter()
        .flat_map(|pod| Family::ALL.map(|family| pod.address(family).into()))
        .collect();
    fabric.allow_untranslated(&addresses).unwrap();
    pods
}

fn untranslated(fabric: &Fabric, pod: &Pod, eni: u8) {
    for family in Family::ALL {
        let own = pod.address(family);
        fabric
            .check_seen(pod.at(family), Site::Internet, own, eni)
            .unwrap();
    }
}

/// Pods of the default pool leave translated by both ENIs, those of the second pool as they are.
#[track_caller]
fn the_default_pool_alone_is_translated(settings: Value) {
    let (mut fabric, pods) = scene(settings);
    let direct = direct_pods(&mut fabric);
    for eni in [0_u8, 1] {
        untranslated(&fabric, &direct[usize::from(eni)], eni);
        translated(&fabric, &pods[usize::from(eni)], eni);
    }
    fabric.finish().unwrap();
}

#[test]
fn a_pool_that_skips_leaves_with_its_pods_addresses() {
    the_default_pool_alone_is_translated(json!({}));
}

#[test]
fn only_the_default_pool_is_masqueraded_when_asked() {
    let setting = masquerade(&json!({"only-default-pool": true, "pools": null}));
    the_default_pool_alone_is_translated(setting);
}

#[test]
fn a_change_of_policy_holds_for_new_flows_and_leaves_translated_ones_alone() {
    let (mut fabric, _pods) = scene(json!({}));
    fabric.set_pool(DIRECT_POOL, false).unwrap();
    let direct = direct_pods(&mut fabric);
    for (pod, eni) in direct.iter().zip([0, 1]) {
        for family in Family::ALL {
            let from = pod.at(family);
            let server = Echo::telling(internet(&fabric, family), 0).unwrap();
            let becomes = |skips: bool| {
                fabric.set_pool(DIRECT_POOL, skips).unwrap();
                let wanted = if skips {
                    from.address
                } else {
                    snat(&fabric, eni, family)
                };
                within(CHANGE, "new flows follow the pool's policy", || {
                    let seen = seen_now(from, &server)?;
                    check(seen == wanted, || format!("skips {skips}: seen as {seen}"))
                });
            };
            becomes(false);
            let mut session = Session::open(from, 0, server.address()).unwrap();
            let asker = Asker::open(from, 0, server.address()).unwrap();
            let seen = asker.ask(7).unwrap();
            assert_eq!(session.seen().ip(), snat(&fabric, eni, family));
            becomes(true);
            session.exchange().unwrap();
            assert_eq!(
                asker.ask(7).unwrap(),
                seen,
                "the open flow keeps its address"
            );
            becomes(false);
            session.exchange().unwrap();
            assert_eq!(
                asker.ask(7).unwrap(),
                seen,
                "the open flow keeps its address"
            );
        }
    }
    fabric.finish().unwrap();
}
