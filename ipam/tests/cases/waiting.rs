//! Pods that wait: what of them outlives their sandboxes, and what is kept for them.

use std::time::Duration;

use ipam::{AllocateError, Allocator, Announcement, Family, Formula, Pod, Request, Settings};

use crate::support::*;

pub(crate) fn pod(name: &str, uid: u32) -> Pod {
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: Some(format!("{name}-{uid}")),
    }
}

/// Requests of a pod's sandbox, one of each family.
pub(crate) fn asks(sandbox: &str, pod: &Pod, pool: &str, families: &[Family]) -> Vec<Request> {
    let request = |family: &Family| Request {
        pod: Some(pod.clone()),
        ..any(sandbox, pool, *family)
    };
    families.iter().map(request).collect()
}

/// An attempt as a runtime makes it: the sandbox is deleted at once where it gets nothing.
pub(crate) fn attempt(
    allocator: &mut Allocator,
    requests: &[Request],
    seconds: u64,
) -> Result<(), AllocateError> {
    let given = allocator.allocate_all(requests, at(seconds)).map(drop);
    if given.is_err() {
        allocator.release(&requests[0].owner, at(seconds));
    }
    given
}

/// Demand of a pool: IPv4, IPv6.
fn requested(allocator: &Allocator, pool: &str) -> (u64, u64) {
    let demand = allocator.demand();
    let of = |family| demand.get(pool).and_then(|of| of.get(&family)).copied();
    (of(V4).unwrap_or(0), of(V6).unwrap_or(0))
}

/// Announcement of a node that has these blocks of plain pools.
pub(crate) fn plain_blocks(blocks: &[(&str, &str)]) -> Announcement {
    let plain = blocks.iter().map(|(pool, cidr)| plain(pool, cidr));
    Announcement {
        plain: blocks.iter().map(|(pool, _)| (*pool).to_owned()).collect(),
        ..announce(&plain.collect::<Vec<_>>())
    }
}

#[test]
fn the_end_of_a_sandbox_leaves_its_pod_waiting_and_each_pod_counts_once() {
    let mut allocator = ready(&[]);
    let web = pod("web", 1);
    for n in 0..8 {
        let requests = asks(&format!("sandbox-{n}"), &web, "mars", &[V4]);
        attempt(&mut allocator, &requests, n * 12).unwrap_err();
        assert_eq!(requested(&allocator, "mars"), (1, 0), "attempt {n}");
    }
    attempt(&mut allocator, &[any("nameless", "mars", V4)], 90).unwrap_err();
    assert_eq!(requested(&allocator, "mars"), (2, 0));
    pass(&mut allocator, 7 * 12 + 299);
    assert_eq!(requested(&allocator, "mars"), (2, 0));
    pass(&mut allocator, 7 * 12 + 300);
    assert_eq!(requested(&allocator, "mars"), (1, 0), "its time is over");
    pass(&mut allocator, 90 + 300);
    assert_eq!(requested(&allocator, "mars"), (0, 0));
}

#[test]
fn both_families_are_asked_for_and_kept_until_the_pod_has_both() {
    for blocks in [
        ["10.10.0.0/32", "fd00::/128"],
        ["10.10.0.0/31", "fd00::/127"],
    ] {
        for first in [0, 1] {
            let mut allocator = ready(&[]);
            let web = pod("web", 1);
            let requests = |n: u32| asks(&format!("sandbox-{n}"), &web, "mars", &[V4, V6]);
            attempt(&mut allocator, &requests(1), 0).unwrap_err();
            assert_eq!(requested(&allocator, "mars"), (1, 1));
            allocator.observe(plain_blocks(&[("mars", blocks[first])]));
            assert_eq!(allocator.give_back_plain(), [], "{}", blocks[first]);
            attempt(&mut allocator, &requests(2), 12).unwrap_err();
            assert_eq!(requested(&allocator, "mars"), (1, 1));
            assert_eq!(allocator.give_back_plain(), [], "{}", blocks[first]);
            allocator.observe(plain_blocks(&blocks.map(|block| ("mars", block))));
            attempt(&mut allocator, &requests(3), 24).unwrap();
            assert_eq!(
                requested(&allocator, "mars"),
                (1, 1),
                "in use, and nobody waits"
            );
            assert!(allocator.waiters().is_empty());
        }
    }
}

#[test]
fn a_pod_that_is_gone_waits_no_more_and_neither_does_one_in_another_pool() {
    let mut allocator = ready(&[]);
    let (old, new) = (pod("db-0", 1), pod("db-0", 2));
    attempt(&mut allocator, &asks("a", &old, "mars", &[V4, V6]), 0).unwrap_err();
    attempt(&mut allocator, &asks("b", &old, "venus", &[V4, V6]), 12).unwrap_err();
    assert_eq!(requested(&allocator, "mars"), (0, 0));
    assert_eq!(requested(&allocator, "venus"), (1, 1));
    attempt(&mut allocator, &asks("c", &new, "mars", &[V4]), 24).unwrap_err();
    assert_eq!(requested(&allocator, "venus"), (0, 0), "it is another pod");
    assert!(!allocator.forget(&old));
    assert_eq!(requested(&allocator, "mars"), (1, 0));
    assert!(allocator.forget(&new));
    assert_eq!(requested(&allocator, "mars"), (0, 0));
}

#[test]
fn nothing_is_asked_for_a_pod_that_can_never_have_all_of_its_addresses() {
    let mut allocator = ready(&[]);
    allocator.observe(Announcement {
        pools: [("mars".to_owned(), [V4].into())].into(),
        ..Announcement::default()
    });
    let requests = asks("a", &pod("web", 1), "mars", &[V4, V6]);
    let error = attempt(&mut allocator, &requests, 0).unwrap_err();
    assert_eq!(error.to_string(), "pool mars has no IPv6 addresses");
    assert_eq!(requested(&allocator, "mars"), (0, 0));
    allocator.observe(Announcement {
        not_masqueraded: [("mars".to_owned(), V6)].into(),
        ..Announcement::default()
    });
    let error = attempt(&mut allocator, &requests, 0).unwrap_err();
    assert!(
        matches!(error, AllocateError::NotMasqueraded { .. }),
        "{error}"
    );
    assert_eq!(requested(&allocator, "mars"), (0, 0));
}

#[test]
fn a_pod_whose_eni_is_not_ready_waits_too() {
    let blocks = [on("eni-3", "default", "10.0.3.16/28")];
    let mut allocator = ready(&blocks);
    let requests = asks("a", &pod("web", 1), "default", &[V4]);
    let error = attempt(&mut allocator, &requests, 0).unwrap_err();
    assert!(matches!(error, AllocateError::NotReady { .. }), "{error}");
    assert_eq!(allocator.waiters()[&("default".to_owned(), V4)], 1);
}

#[test]
fn an_attempt_that_fails_after_its_addresses_were_given_waits_for_as_many() {
    let mut allocator = ready(&[]);
    allocator.observe(plain_blocks(&[("mars", "10.10.0.0/32")]));
    let web = pod("web", 1);
    let requests = asks("a", &web, "mars", &[V4]);
    attempt(&mut allocator, &requests, 0).unwrap();
    let leases = allocator.take_back(&owner("a"));
    allocator.wait(&owner("a"), Some(&web), &leases, at(0));
    allocator.release(&owner("a"), at(0));
    assert_eq!(requested(&allocator, "mars"), (1, 0));
    assert_eq!(allocator.give_back_plain(), []);
    attempt(&mut allocator, &asks("b", &web, "mars", &[V4]), 12).unwrap();
    assert!(allocator.waiters().is_empty());
}

/// Two attachments of one pod are two addresses.
#[test]
fn each_interface_of_a_pod_waits_for_itself() {
    let mut allocator = ready(&[]);
    let web = pod("web", 1);
    let mut second = asks("a", &web, "mars", &[V4]);
    second[0].owner.interface = "net1".to_owned();
    attempt(&mut allocator, &asks("a", &web, "mars", &[V4]), 0).unwrap_err();
    attempt(&mut allocator, &second, 0).unwrap_err();
    assert_eq!(requested(&allocator, "mars"), (2, 0));
    allocator.observe(plain_blocks(&[("mars", "10.10.0.0/32")]));
    attempt(&mut allocator, &asks("b", &web, "mars", &[V4]), 1).unwrap();
    assert_eq!(
        requested(&allocator, "mars"),
        (2, 0),
        "one in use, one waits"
    );
    assert!(allocator.forget(&web));
    assert_eq!(requested(&allocator, "mars"), (1, 0));
}

#[test]
fn a_family_that_is_off_is_kept_in_store_only_where_there_is_some_of_it() {
    let mut allocator = fresh(Settings {
        in_store: [V4].into(),
        ..settings(Formula::Linear, "default=8,mars=2")
    });
    allocator.observe(announce(&[]));
    set_ready(&mut allocator, &["eni-1"]);
    assert_eq!(requested(&allocator, "default"), (8, 0));
    assert_eq!(requested(&allocator, "mars"), (2, 0));
    attempt(&mut allocator, &[any("a", "mars", V6)], 0).unwrap_err();
    assert_eq!(requested(&allocator, "mars"), (2, 3), "somebody waits");
    allocator.advance(at(300), |_| true);
    assert_eq!(requested(&allocator, "mars"), (2, 0));
    allocator.observe(announce(&[on("eni-1", "default", "2001:db8::/80")]));
    assert_eq!(requested(&allocator, "default"), (8, 8), "it has a block");
    attempt(&mut allocator, &[any("a", "default", V6)], 300).unwrap();
    assert_eq!(requested(&allocator, "default"), (8, 9));
    assert!(allocator.settings().waiting == Duration::from_mins(5));
}
