//! Blocks come, serve, move between pools, and go.

use ipam::{Allocator, AnnouncedBlock, BlockView, Draining, Life, Problem};

use super::support::*;

fn view(allocator: &Allocator, cidr: &str) -> BlockView {
    let views = allocator.blocks();
    let found = views.into_iter().find(|view| view.cidr == net(cidr));
    found.unwrap_or_else(|| panic!("no block {cidr}"))
}

#[test]
fn only_ready_enis_serve() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    get(&mut allocator, "a", 0).unwrap();
    set_ready(&mut allocator, &[]);
    assert_eq!(view(&allocator, "10.0.0.16/28").life, Life::Announced);
    for name in ["a", "b"] {
        let error = get(&mut allocator, name, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the IPv4 addresses of pool default wait for eni-1 to be ready"
        );
        assert!(error.is_temporary());
    }
    assert_eq!(
        allocator.orphans().count(),
        0,
        "an ENI that is not ready is not gone"
    );
    assert_eq!(
        allocator.demand()["default"][&V4],
        2,
        "one in use, one waits"
    );
    set_ready(&mut allocator, &["eni-1"]);
    get(&mut allocator, "b", 0).unwrap();
}

/// The fullest block first, single addresses before prefixes: what is empty stays empty.
#[test]
fn blocks_are_filled_one_after_the_other() {
    let blocks = [
        on("eni-1", "default", "10.0.0.16/28"),
        on("eni-2", "default", "10.0.1.16/28"),
        on("eni-2", "default", "10.0.1.5/32"),
        on("eni-1", "default", "10.0.0.5/32"),
    ];
    let mut allocator = ready(&blocks);
    let given: Vec<_> = (0..34)
        .map(|n| get(&mut allocator, &n.to_string(), 0).unwrap())
        .collect();
    let order: Vec<String> = given.iter().map(|lease| lease.block.to_string()).collect();
    assert_eq!(order[..2], ["10.0.0.5/32", "10.0.1.5/32"]);
    assert!(
        order[2..18].iter().all(|block| block == "10.0.0.16/28"),
        "{order:?}"
    );
    assert!(
        order[18..].iter().all(|block| block == "10.0.1.16/28"),
        "{order:?}"
    );
    get(&mut allocator, "one more", 0).unwrap_err();

    // Most of the second prefix's owners go: the next one comes into the first, which is fuller.
    for lease in given.iter().rev().take(10).chain(&given[4..6]) {
        allocator.release(&lease.owner, at(0));
    }
    pass(&mut allocator, 30);
    let next = get(&mut allocator, "one more", 31).unwrap();
    assert_eq!(next.block, net("10.0.0.16/28"));
}

#[test]
fn leases_of_a_removed_eni_are_told_and_their_addresses_not_given() {
    let both = [
        on("eni-1", "default", "10.0.0.16/28"),
        on("eni-2", "default", "10.0.1.5/32"),
    ];
    let mut allocator = ready(&both);
    let single = get(&mut allocator, "a", 0).unwrap();
    let lease = get(&mut allocator, "b", 0).unwrap();
    assert_eq!(single.block, net("10.0.1.5/32"));

    let changes = allocator.observe(announce(&both[1..]));
    assert_eq!(changes.went, [net("10.0.0.16/28")]);
    assert_eq!(changes.orphaned, std::slice::from_ref(&lease));
    let gone = view(&allocator, "10.0.0.16/28");
    assert_eq!(gone.life, Life::Gone);
    assert_eq!((gone.counts.unclaimed, gone.counts.free), (1, 0));
    let error = get(&mut allocator, "b", 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "b/eth0 has address {}, whose block 10.0.0.16/28 is gone",
            lease.address
        )
    );
    let again = allocator.observe(announce(&both[1..]));
    assert_eq!(again.orphaned, [], "reported once; `orphans` has them all");
    assert_eq!(allocator.orphans().collect::<Vec<_>>(), [&lease]);

    // It comes back on the other ENI, in another pool: the address is still not free.
    let back = on("eni-2", "mars", "10.0.0.16/28");
    allocator.observe(announce(&[back, both[1].clone()]));
    assert_eq!(allocator.orphans().count(), 0);
    let error = allocator.allocate(&exactly("c", &lease.address.to_string()), at(0));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("is in use by b/eth0")
    );
    let error = allocator
        .allocate(&any("c", "mars", V4), at(0))
        .unwrap_err();
    assert!(
        error.to_string().contains("no IPv4 address") || error.is_temporary(),
        "{error}"
    );
    let moving = Life::Draining(Draining::MovesTo("mars".to_owned()));
    assert_eq!(view(&allocator, "10.0.0.16/28").life, moving);
}

#[test]
fn an_address_never_moves_between_pools_while_it_is_in_use() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/31")]);
    get(&mut allocator, "a", 0).unwrap();
    allocator.observe(announce(&[on("eni-1", "mars", "10.0.0.16/31")]));
    let of_pool = |allocator: &Allocator| view(allocator, "10.0.0.16/31").pool;
    assert_eq!(of_pool(&allocator).as_deref(), Some("default"));
    get(&mut allocator, "b", 0).unwrap_err();
    allocator
        .allocate(&any("c", "mars", V4), at(0))
        .unwrap_err();
    assert_eq!(
        get(&mut allocator, "a", 0).unwrap().pool.as_deref(),
        Some("default")
    );

    allocator.release(&owner("a"), at(0));
    pass(&mut allocator, 29);
    assert_eq!(
        of_pool(&allocator).as_deref(),
        Some("default"),
        "one of it cools down"
    );
    pass(&mut allocator, 30);
    assert_eq!(of_pool(&allocator).as_deref(), Some("mars"));
    let lease = allocator.allocate(&any("c", "mars", V4), at(31)).unwrap();
    assert_eq!(lease.pool.as_deref(), Some("mars"));
}

#[test]
fn a_change_of_mind_before_the_block_is_empty_costs_nothing() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/31")]);
    get(&mut allocator, "a", 0).unwrap();
    allocator.observe(announce(&[on("eni-1", "mars", "10.0.0.16/31")]));
    allocator.observe(announce(&[on("eni-1", "default", "10.0.0.16/31")]));
    get(&mut allocator, "b", 0).unwrap();
}

/// A prefix goes and comes back as single addresses: those that are in use are still theirs.
#[test]
fn blocks_that_share_addresses_with_one_that_went_respect_them() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    let lease = get(&mut allocator, "a", 0).unwrap();
    let singles = ["10.0.0.16/32", "10.0.0.17/32"].map(|cidr| on("eni-2", "default", cidr));
    allocator.observe(announce(&singles));
    assert_eq!(allocator.orphans().count(), 0);
    let next = get(&mut allocator, "b", 0).unwrap();
    assert_ne!(next.address, lease.address);
    get(&mut allocator, "c", 0).unwrap_err();
}

#[test]
fn of_blocks_that_overlap_the_known_one_counts() {
    let known = on("eni-1", "default", "10.0.0.16/28");
    let narrow = on("eni-2", "default", "10.0.0.20/32");
    let wide = on("eni-2", "default", "10.0.0.0/24");
    let mut allocator = ready(std::slice::from_ref(&known));
    let changes = allocator.observe(announce(&[wide.clone(), narrow.clone(), known]));
    let problem = |block: &AnnouncedBlock| Problem::Overlap {
        block: block.clone(),
        other: on("eni-1", "default", "10.0.0.16/28"),
    };
    assert_eq!(changes.problems, [problem(&wide), problem(&narrow)]);
    assert_eq!(changes.appeared, []);
    let changes = allocator.observe(announce(&[narrow, wide]));
    assert_eq!(
        changes.problems[0].to_string(),
        "block 10.0.0.20/32 (eni-2, pool default) is left out: it overlaps block 10.0.0.0/24 \
         (eni-2, pool default)"
    );
}

#[test]
fn a_change_of_edge_rules_holds_at_once_and_takes_nothing() {
    let mut block = plain("default", "10.10.0.0/30");
    let mut allocator = ready(std::slice::from_ref(&block));
    assert_eq!(allocator.counts("default", V4).free, 2);
    block.edges = ipam::EdgeRules::ALL;
    allocator.observe(announce(std::slice::from_ref(&block)));
    assert_eq!(allocator.counts("default", V4).free, 4);
    allocator
        .allocate(&exactly("a", "10.10.0.0"), at(0))
        .unwrap();
    block.edges = ipam::EdgeRules::default();
    allocator.observe(announce(&[block]));
    let counts = allocator.counts("default", V4);
    assert_eq!((counts.free, counts.unclaimed, counts.excluded), (2, 1, 1));
    allocator.release(&owner("a"), at(0));
    pass(&mut allocator, 30);
    let counts = allocator.counts("default", V4);
    assert_eq!((counts.free, counts.excluded), (2, 2));
}

#[test]
fn a_block_that_was_released_and_went_comes_back_as_a_new_one() {
    let blocks = [
        on("eni-1", "default", "10.0.0.16/28"),
        on("eni-1", "default", "10.0.0.32/28"),
    ];
    let mut allocator = ready(&blocks);
    get(&mut allocator, "a", 0).unwrap();
    assert_eq!(allocator.rebalance().released, [net("10.0.0.32/28")]);
    let released = Life::Draining(Draining::Released);
    assert_eq!(view(&allocator, "10.0.0.32/28").life, released);
    allocator.observe(announce(&blocks));
    assert_eq!(
        view(&allocator, "10.0.0.32/28").life,
        released,
        "it was there all the time"
    );
    allocator.observe(announce(&blocks[..1]));
    allocator.observe(announce(&blocks));
    assert_eq!(view(&allocator, "10.0.0.32/28").life, Life::Usable);
}

/// A block is kept while an address of it cools down: the cloud would give it to another node.
#[test]
fn a_block_with_an_address_that_cools_down_is_kept() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    get(&mut allocator, "a", 0).unwrap();
    allocator.release(&owner("a"), at(0));
    assert_eq!(allocator.rebalance().released, []);
    pass(&mut allocator, 30);
    assert_eq!(allocator.rebalance().released, [net("10.0.0.16/28")]);
}

/// As many pods as a node can have, out of a wide block and many narrow ones.
#[test]
fn a_full_node_gets_distinct_addresses() {
    let singles: Vec<_> = (0..250)
        .map(|n| on("eni-1", "default", &format!("10.0.0.{n}/32")))
        .chain([on("eni-2", "default", "2001:db8::/64")])
        .collect();
    let mut allocator = ready(&singles);
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..250 {
        for family in [V4, V6] {
            let request = any(&n.to_string(), "default", family);
            assert!(seen.insert(allocator.allocate(&request, at(0)).unwrap().address));
        }
    }
    assert_eq!(seen.len(), 500);
}
