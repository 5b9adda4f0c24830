//! Pools that change, overlap, shrink and go.

use std::collections::BTreeMap;

use ipam::Family;
use ipam::cluster::{Ledger, PoolSpec, Takeover};

use super::{blocks, granted, open, pool, shortfalls, want};

fn refusals(ledger: &Ledger, pool: &str) -> Vec<String> {
    ledger.refusals(pool).map(ToString::to_string).collect()
}

fn created(at: &str, spec: PoolSpec) -> PoolSpec {
    PoolSpec {
        created: at.to_owned(),
        ..spec
    }
}

#[test]
fn a_block_that_was_given_back_is_given_again_last() {
    let mut ledger = Ledger::default();
    ledger.set_pool("p", open(pool(&["10.0.0.0/31", "10.0.1.0/31"], (32, 0))));
    ledger.set_node("n", "1", blocks("p", &[]));
    assert_eq!(granted(&mut ledger, "n", &want("p", 1, 0)), ["10.0.0.0/32"]);
    ledger.set_node("n", "2", blocks("p", &[]));
    for (version, block) in [
        ("3", "10.0.0.1/32"),
        ("4", "10.0.1.0/32"),
        ("5", "10.0.1.1/32"),
        ("6", "10.0.0.0/32"),
    ] {
        assert_eq!(granted(&mut ledger, "n", &want("p", 1, 0)), [block]);
        ledger.set_node("n", version, blocks("p", &[]));
    }
}

#[test]
fn a_grant_is_the_same_until_another_version_is_seen() {
    let mut ledger = Ledger::default();
    ledger.set_pool("p", open(pool(&["10.0.0.0/30"], (32, 0))));
    ledger.set_node("n", "7", blocks("p", &[]));
    ledger.set_node("m", "1", blocks("p", &[]));
    let wanted = want("p", 2, 0);
    let first = granted(&mut ledger, "n", &wanted);
    ledger.set_node("n", "7", blocks("p", &[]));
    assert_eq!(granted(&mut ledger, "n", &wanted), first);
    assert_eq!(
        granted(&mut ledger, "m", &wanted),
        ["10.0.0.2/32", "10.0.0.3/32"]
    );
    // The write did not come, and what it would have given is free again.
    ledger.set_node("n", "8", blocks("p", &["10.0.0.0/32"]));
    ledger.set_node("o", "1", blocks("p", &[]));
    assert_eq!(granted(&mut ledger, "o", &wanted), ["10.0.0.1/32"]);
    let full = shortfalls(&mut ledger, "o", &wanted);
    let expected = "CiliumPodIPPool p has no free IPv4 block; 1 addresses are missing; add a CIDR";
    assert_eq!(full, [expected]);
    // A full pool is checked again once a block was released.
    ledger.lose_node("m");
    assert_eq!(granted(&mut ledger, "o", &wanted).len(), 2);
}

#[test]
fn a_pool_that_shrinks_takes_no_block_from_a_node_and_gives_none_twice() {
    let mut ledger = Ledger::default();
    let wide = open(pool(&["10.0.0.0/30", "10.0.1.0/30"], (31, 0)));
    ledger.set_pool("p", wide);
    ledger.set_node("n", "1", blocks("p", &["10.0.1.0/31"]));
    let in_use: Vec<_> = ledger.in_use("p").into_iter().collect();
    assert_eq!(in_use, ["10.0.1.0/30".parse().unwrap()]);
    ledger.set_pool("p", open(pool(&["10.0.0.0/30"], (31, 0))));
    assert_eq!(ledger.view("p").orphans.len(), 1);
    // The orphan meets demand of its node: its agent would give back what came beside it.
    assert!(granted(&mut ledger, "n", &want("p", 2, 0)).is_empty());
    // Another pool that gets the range does not give what the node has.
    ledger.set_pool("q", open(pool(&["10.0.1.0/30"], (32, 0))));
    ledger.set_node("m", "1", blocks("q", &[]));
    let others = ["10.0.1.2/32", "10.0.1.3/32"];
    assert_eq!(granted(&mut ledger, "m", &want("q", 4, 0)), others);
    // It goes with its node.
    ledger.lose_node("n");
    assert!(!ledger.is_used("p"));
    assert_eq!(granted(&mut ledger, "m", &want("q", 4, 0)).len(), 4);
}

#[test]
fn of_two_pools_with_one_address_the_earlier_has_it() {
    let mut ledger = Ledger::default();
    ledger.set_pool(
        "late",
        created(
            "2026-02",
            open(pool(&["10.0.0.0/24", "10.9.0.0/24"], (28, 0))),
        ),
    );
    ledger.set_pool(
        "early",
        created("2026-01", open(pool(&["10.0.0.64/26"], (28, 0)))),
    );
    // The pool that was in force first stays, in any order of events.
    assert!(refusals(&ledger, "late").is_empty());
    let expected = "CIDR 10.0.0.64/26 is refused: it overlaps with 10.0.0.0/24 of CiliumPodIPPool \
                    late; expected addresses of its own";
    assert_eq!(refusals(&ledger, "early"), [expected]);
    // A leader that begins goes by their age, and the rest of the later pool works.
    let mut next = Ledger::default();
    next.set_pool(
        "early",
        created("2026-01", open(pool(&["10.0.0.64/26"], (28, 0)))),
    );
    next.set_pool(
        "late",
        created(
            "2026-02",
            open(pool(&["10.0.0.0/24", "10.9.0.0/24"], (28, 0))),
        ),
    );
    assert!(refusals(&next, "early").is_empty());
    next.set_node("n", "1", blocks("late", &[]));
    assert_eq!(
        granted(&mut next, "n", &want("late", 1, 0)),
        ["10.9.0.0/28"]
    );
    next.lose_pool("early");
    assert!(refusals(&next, "late").is_empty());
}

#[test]
fn addresses_of_the_vpc_and_of_services_are_no_pools() {
    let mut ledger = Ledger::default();
    ledger.set_pool("p", open(pool(&["10.0.0.0/24", "10.96.0.0/24"], (28, 0))));
    ledger.set_node("n", "1", blocks("p", &[]));
    let reserved = [
        ("10.0.0.0/16", "VPC vpc-1"),
        ("10.96.0.0/12", "the cluster's services"),
    ];
    let reserved = reserved.map(|(net, owner)| (net.parse().unwrap(), owner.to_owned()));
    ledger.reserve(reserved.into());
    let found = refusals(&ledger, "p");
    assert!(found[0].contains("10.0.0.0/16 of VPC vpc-1"), "{found:?}");
    assert!(
        found[1].contains("10.96.0.0/12 of the cluster's services"),
        "{found:?}"
    );
    let lacks = shortfalls(&mut ledger, "n", &want("p", 1, 0));
    assert_eq!(lacks, ["CiliumPodIPPool p has no usable IPv4 CIDR"]);
    ledger.reserve(BTreeMap::new());
    assert_eq!(granted(&mut ledger, "n", &want("p", 1, 0)), ["10.0.0.0/28"]);
}

#[test]
fn masks_and_edges_stay_while_the_pool_exists() {
    let mut ledger = Ledger::default();
    ledger.set_pool("p", pool(&["10.0.0.0/24"], (28, 0)));
    let other = open(pool(&["10.0.0.0/24", "10.0.1.0/24"], (30, 0)));
    ledger.set_pool("p", other.clone());
    let found = refusals(&ledger, "p");
    assert_eq!(found.len(), 3);
    let expected = "ipv4.maskSize cannot change from 28 to 30 while the pool exists: 28 stays in \
                    force; create another pool";
    assert!(found.iter().any(|it| it == expected), "{found:?}");
    assert_eq!(
        ledger.view("p").spaces[&Family::V4].blocks,
        32,
        "the CIDR came"
    );
    ledger.lose_pool("p");
    ledger.set_pool("p", other);
    assert!(refusals(&ledger, "p").is_empty());
    assert_eq!(ledger.view("p").spaces[&Family::V4].blocks, 128);
}

#[test]
fn one_bad_cidr_leaves_the_others_of_its_pool() {
    let mut ledger = Ledger::default();
    let spec = open(pool(
        &["10.0.0.0/30", "10.1.0.0/24", "fd00::/64", "fd01::/112"],
        (28, 120),
    ));
    ledger.set_pool("p", spec);
    let expected = [
        "CIDR 10.0.0.0/30 is refused: a block of maskSize 28 is larger; expected a CIDR of /28 or \
         wider",
        "CIDR fd00::/64 is refused: it has more than 65536 blocks of maskSize 120; expected /104 or \
         narrower",
    ];
    assert_eq!(refusals(&ledger, "p"), expected);
    ledger.set_node("n", "1", blocks("p", &[]));
    let found = granted(&mut ledger, "n", &want("p", 1, 1));
    assert_eq!(found, ["10.1.0.0/28", "fd01::/120"]);
}

#[test]
fn reserved_ranges_are_in_no_block() {
    let mut ledger = Ledger::default();
    let mut spec = open(pool(&["10.30.0.0/24"], (26, 0)));
    if let Some(space) = spec.spaces.get_mut(&Family::V4) {
        let range = ("10.30.0.1".parse().unwrap(), "10.30.0.63".parse().unwrap());
        space.reserved.push(range);
    }
    ledger.set_pool("p", spec);
    ledger.set_node("n", "1", blocks("p", &[]));
    let found = granted(&mut ledger, "n", &want("p", 1000, 0));
    assert_eq!(found, ["10.30.0.64/26", "10.30.0.128/26", "10.30.0.192/26"]);
}

#[test]
fn a_pool_that_is_being_deleted_gives_nothing_and_keeps_what_nodes_have() {
    let mut ledger = Ledger::default();
    let spec = open(pool(&["10.0.0.0/24"], (28, 0)));
    ledger.set_pool("p", spec.clone());
    ledger.set_node("n", "1", blocks("p", &["10.0.0.16/28"]));
    ledger.set_pool(
        "p",
        PoolSpec {
            is_deleted: true,
            ..spec
        },
    );
    let lacks = shortfalls(&mut ledger, "n", &want("p", 17, 0));
    assert_eq!(
        lacks,
        ["CiliumPodIPPool p is being deleted and gives no more blocks"]
    );
    assert!(ledger.is_used("p"));
    assert!(ledger.view("p").orphans.is_empty());
    ledger.set_node("n", "2", blocks("p", &[]));
    assert!(!ledger.is_used("p"));
}

#[test]
fn two_nodes_with_one_block_are_named_and_both_keep_it() {
    let mut ledger = Ledger::default();
    ledger.set_pool("p", open(pool(&["10.0.0.0/30"], (31, 0))));
    ledger.set_node("a", "1", blocks("p", &["10.0.0.0/31"]));
    ledger.set_node("b", "1", blocks("p", &["10.0.0.0/31"]));
    ledger.set_node("c", "1", blocks("p", &["10.0.0.2/31"]));
    let conflicts = ledger.conflicts();
    assert_eq!(conflicts.len(), 1);
    let nodes: Vec<_> = conflicts.into_values().flatten().collect();
    assert_eq!(nodes, ["a", "b"]);
    assert_eq!(ledger.rivals("a").len(), 1);
    assert!(ledger.rivals("c").is_empty());
    assert_eq!(ledger.used_pools(), ["p".to_owned()].into());
    // It is free when both are gone, not before.
    ledger.lose_node("a");
    ledger.set_node("d", "1", blocks("p", &[]));
    assert!(granted(&mut ledger, "d", &want("p", 1, 0)).is_empty());
    ledger.lose_node("b");
    assert_eq!(granted(&mut ledger, "d", &want("p", 1, 0)), ["10.0.0.0/31"]);
}

#[test]
fn one_write_gives_no_more_blocks_than_an_object_can_hold() {
    let mut ledger = Ledger::default();
    ledger.set_pool("p", open(pool(&["10.0.0.0/16"], (32, 0))));
    ledger.set_node("n", "1", blocks("p", &[]));
    assert_eq!(
        granted(&mut ledger, "n", &want("p", u32::MAX, 0)).len(),
        1024
    );
    assert_eq!(
        granted(&mut ledger, "n", &want("p", u32::MAX, 0)).len(),
        1024
    );
}

#[test]
fn nothing_is_granted_before_every_node_with_unmet_demand_was_touched() {
    let mut ledger = Ledger::default();
    ledger.set_pool("p", open(pool(&["10.0.0.0/24"], (28, 0))));
    ledger.set_node("a", "1", blocks("p", &[]));
    ledger.set_node("b", "1", blocks("p", &["10.0.0.0/28"]));
    // By the pool's own rules the block is enough; another leader may have known others.
    assert!(ledger.is_unmet("b", &want("p", 16, 0)));
    assert!(!ledger.is_unmet("b", &want("p", 14, 0)));
    assert!(!ledger.is_unmet("c", &want("p", 14, 0)));
    let mut takeover = Takeover::begin(["a".to_owned(), "b".to_owned()].into());
    assert!(takeover.awaits("a") && !takeover.is_over());
    takeover.touched("a");
    assert_eq!(takeover.untouched().collect::<Vec<_>>(), ["b"]);
    takeover.touched("b");
    assert!(takeover.is_over() && Takeover::default().is_over());
}
