//! Owners and what they have: requests, claims, releases, cooldown.

use std::collections::BTreeSet;

use ipam::{AllocateError, Announcement, Barrier, Claim, Formula, Owner, Request, Settings, Want};

use super::support::*;

#[test]
fn asking_again_gives_the_same() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    let first = get(&mut allocator, "a", 0).unwrap();
    let again = get(&mut allocator, "a", 5).unwrap();
    assert_eq!(again.address, first.address);
    assert_eq!(again.since, first.since);
    assert_eq!(
        again.claim,
        Claim::Unclaimed { until: at(605) },
        "it waits anew"
    );
    allocator.claim(&owner("a")).unwrap();
    assert_eq!(get(&mut allocator, "a", 6).unwrap().claim, Claim::Claimed);
    let exactly = exactly("a", &first.address.to_string());
    assert_eq!(
        allocator.allocate(&exactly, at(7)).unwrap().address,
        first.address
    );
    assert_eq!(allocator.leases().count(), 1);
}

#[test]
fn an_owner_has_one_address_of_a_family() {
    let blocks = [
        on("eni-1", "default", "10.0.0.16/28"),
        on("eni-2", "mars", "10.0.1.16/28"),
        on("eni-1", "default", "2001:db8::/80"),
    ];
    let mut allocator = ready(&blocks);
    let has = get(&mut allocator, "a", 0).unwrap().address;
    for request in [any("a", "mars", V4), exactly("a", "10.0.0.30")] {
        let error = allocator.allocate(&request, at(0)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("a/eth0 has the IPv4 address {has} of pool default already")
        );
        assert!(!error.is_temporary());
    }
    allocator.allocate(&any("a", "default", V6), at(0)).unwrap();
    let other = Owner {
        interface: "net1".to_owned(),
        ..owner("a")
    };
    let request = Request {
        owner: other,
        ..any("a", "mars", V4)
    };
    allocator.allocate(&request, at(0)).unwrap();
    assert_eq!(allocator.leases().count(), 3);
}

#[test]
fn a_release_is_by_owner_and_twice_is_once() {
    let mut allocator = ready(&[
        on("eni-1", "default", "10.0.0.16/28"),
        on("eni-1", "default", "2001:db8::/80"),
    ]);
    get(&mut allocator, "a", 0).unwrap();
    allocator.allocate(&any("a", "default", V6), at(0)).unwrap();
    get(&mut allocator, "b", 0).unwrap();
    assert_eq!(allocator.release(&owner("a"), at(1)).len(), 2);
    assert_eq!(allocator.release(&owner("a"), at(2)), []);
    assert_eq!(allocator.leases().count(), 1);
}

/// A pod's second sandbox has the pod's name and another id: the first one's late release must not
/// take its address.
#[test]
fn a_late_release_takes_nothing_from_the_next_sandbox() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.5/32")]);
    get(&mut allocator, "first", 0).unwrap();
    allocator.release(&owner("first"), at(0));
    pass(&mut allocator, 30);
    get(&mut allocator, "second", 31).unwrap();
    assert_eq!(allocator.release(&owner("first"), at(32)), []);
    assert_eq!(
        allocator.lease_of(ip("10.0.0.5")).unwrap().owner,
        owner("second")
    );
}

#[test]
fn an_address_cools_down_for_its_time_and_until_flows_are_gone() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.5/32")]);
    get(&mut allocator, "a", 0).unwrap();
    allocator.release(&owner("a"), at(10));

    let error = get(&mut allocator, "b", 11).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pool default has no IPv4 address left (0 of 1 addresses free, 0 in use, 0 unclaimed, 1 \
         cooling down, 0 excluded); more are requested"
    );
    assert!(error.is_temporary());
    let error = allocator
        .allocate(&exactly("b", "10.0.0.5"), at(11))
        .unwrap_err();
    assert!(
        matches!(error, AllocateError::CoolingDown { .. }),
        "{error}"
    );

    assert!(allocator.advance(at(39), |_| true).cooled.is_empty());
    assert!(
        allocator.advance(at(40), |_| false).cooled.is_empty(),
        "it has flows"
    );
    get(&mut allocator, "b", 41).unwrap_err();
    let mut queried = Vec::new();
    let advanced = allocator.advance(at(42), |address| {
        queried.push(address);
        true
    });
    assert_eq!(advanced.cooled, queried);
    get(&mut allocator, "b", 43).unwrap();
}

#[test]
fn it_is_told_when_a_request_in_vain_counts_no_more() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.5/32")]);
    get(&mut allocator, "a", 0).unwrap();
    allocator.claim(&owner("a")).unwrap();
    get(&mut allocator, "b", 0).unwrap_err();
    get(&mut allocator, "c", 60).unwrap_err();
    let forgotten = [299, 300, 301, 360, 361].map(|seconds| {
        let advanced = allocator.advance(at(seconds), |_| true);
        advanced.forgotten
    });
    assert_eq!(forgotten, [0, 1, 0, 1, 0]);
}

/// A clock that is set back must not keep addresses for years.
#[test]
fn a_clock_that_is_set_back_prolongs_nothing() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/31")]);
    get(&mut allocator, "a", 1_000_000).unwrap();
    get(&mut allocator, "b", 1_000_000).unwrap();
    allocator.release(&owner("a"), at(1_000_000));
    get(&mut allocator, "c", 1_000_000).unwrap_err();
    pass(&mut allocator, 0);
    assert_eq!(allocator.advance(at(30), |_| true).cooled.len(), 1);
    assert_eq!(allocator.advance(at(300), |_| true).expired, []);
    assert!(allocator.demand().is_empty() || allocator.demand()["default"][&V4] == 1);
    assert_eq!(allocator.advance(at(600), |_| true).expired.len(), 1);
}

#[test]
fn a_lease_that_nobody_claims_is_taken_back() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    get(&mut allocator, "a", 0).unwrap();
    get(&mut allocator, "b", 0).unwrap();
    allocator.claim(&owner("b")).unwrap();
    assert_eq!(allocator.advance(at(599), |_| true).expired, []);
    let expired = allocator.advance(at(600), |_| true).expired;
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].owner, owner("a"));
    assert_eq!(
        allocator.cooling().count(),
        1,
        "somebody may have begun to use it"
    );
    let error = allocator.claim(&owner("a")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a/eth0 has no address; one that is not claimed in time is taken back"
    );
}

#[test]
fn a_collection_spares_what_is_newer_than_its_list() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    for (name, second) in [("old", 0), ("living", 0), ("new", 10)] {
        get(&mut allocator, name, second).unwrap();
        allocator.claim(&owner(name)).unwrap();
    }
    let living = BTreeSet::from([owner("living")]);
    let collected = allocator.release_others(&living, at(10), at(20));
    let names: Vec<_> = collected
        .iter()
        .map(|l| l.owner.container_id.as_str())
        .collect();
    assert_eq!(names, ["old"]);
}

/// Addresses, the pools that they are asked of, and the reason why each is refused.
const REFUSED_REQUESTS: &[(&str, Option<&str>, &str)] = &[
    ("10.0.0.17", None, "address 10.0.0.17 is in use by a/eth0"),
    (
        "10.9.9.9",
        None,
        "address 10.9.9.9 is in no block of this node",
    ),
    (
        "10.10.0.1",
        Some("default"),
        "address 10.10.0.1 is not of pool default but of mars",
    ),
    (
        "10.10.0.0",
        None,
        "address 10.10.0.0 of block 10.10.0.0/28 is never given: it is the block's first \
             address, and the pool has no allowFirstIP",
    ),
    (
        "10.10.0.15",
        None,
        "address 10.10.0.15 of block 10.10.0.0/28 is never given: it is the block's last \
             address, and the pool has no allowLastIP",
    ),
    (
        "10.0.0.20",
        None,
        "address 10.0.0.20 of block 10.0.0.16/28 is never given: it is excluded",
    ),
    (
        "10.0.3.17",
        None,
        "the IPv4 addresses of pool default wait for eni-3 to be ready",
    ),
    (
        "10.0.2.17",
        None,
        "nothing more is given from block 10.0.2.16/28, which has 10.0.2.17: draining: pool \
             undecided",
    ),
];

#[test]
fn an_address_that_is_asked_for_is_given_or_the_reason_told() {
    let mut blocks = vec![
        plain("mars", "10.10.0.0/28"),
        on("eni-1", "default", "10.0.0.16/28"),
        on("eni-3", "default", "10.0.3.16/28"),
        on("eni-2", "default", "10.0.2.16/28"),
    ];
    blocks[3].pool = None;
    let mut allocator = ready(&[]);
    allocator.observe(Announcement {
        excluded: [net("10.0.0.20/32")].into(),
        ..announce(&blocks)
    });
    allocator
        .allocate(&exactly("a", "10.0.0.17"), at(0))
        .unwrap();
    let refused = |allocator: &mut ipam::Allocator, address: &str, pool: Option<&str>| {
        let request = Request {
            pool: pool.map(str::to_owned),
            ..exactly("b", address)
        };
        allocator.allocate(&request, at(0)).unwrap_err().to_string()
    };
    for (address, pool, message) in REFUSED_REQUESTS {
        assert_eq!(refused(&mut allocator, address, *pool), *message);
    }
    assert!(allocator.demand().is_empty() || allocator.demand()["default"][&V4] == 1);
    allocator
        .allocate(&exactly("b", "10.10.0.1"), at(0))
        .unwrap();
}

#[test]
fn requests_for_what_a_pool_cannot_have_are_no_demand() {
    let mut allocator = fresh(settings(Formula::RoundedUp, "mars=8"));
    allocator.observe(Announcement {
        pools: [("mars".to_owned(), [V4].into())].into(),
        ..Announcement::default()
    });
    let error = allocator
        .allocate(&any("a", "mars", V6), at(0))
        .unwrap_err();
    assert_eq!(error.to_string(), "pool mars has no IPv6 addresses");
    assert!(!error.is_temporary());
    let error = allocator
        .allocate(&any("a", "mars", V4), at(0))
        .unwrap_err();
    assert!(
        matches!(error, AllocateError::Exhausted { .. }),
        "{error}: it is known"
    );
    assert_eq!(allocator.demand()["mars"].len(), 1);
    assert_eq!(allocator.demand()["mars"][&V4], 16);
}

#[test]
fn a_family_that_the_node_does_not_use_is_neither_given_nor_asked_for() {
    let mut allocator = fresh(Settings {
        families: [V4].into(),
        ..settings(Formula::Linear, "default=8")
    });
    allocator.observe(announce(&[plain("default", "fd00::/120")]));
    for want in [Want::Any(V6), Want::Address(ip("fd00::1"))] {
        let request = Request {
            want,
            ..any("a", "default", V6)
        };
        let error = allocator.allocate(&request, at(0)).unwrap_err();
        assert!(matches!(error, AllocateError::NoFamily { .. }), "{error}");
    }
    assert_eq!(
        allocator.demand()["default"].keys().collect::<Vec<_>>(),
        [&V4]
    );
}

#[test]
fn nothing_is_given_before_every_barrier_is_lifted() {
    const POLICY: Barrier = Barrier::new("the masquerade policy");
    let mut allocator = fresh(Settings {
        barriers: [Barrier::DOCUMENT, Barrier::POOLS, POLICY].into(),
        ..Settings::default()
    });
    set_ready(&mut allocator, &["eni-1"]);
    let error = get(&mut allocator, "a", 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no address is given yet: waiting for the masquerade policy, the node document, the pools"
    );
    allocator.observe(announce(&[on("eni-1", "default", "10.0.0.16/28")]));
    allocator.lift(POLICY);
    get(&mut allocator, "a", 0).unwrap_err();
    assert_eq!(allocator.rebalance(), ipam::Rebalanced::default());
    allocator.lift(Barrier::POOLS);
    get(&mut allocator, "a", 0).unwrap();
}

/// Both families or none, and nothing is used up by trying.
#[test]
fn several_addresses_are_given_all_or_none() {
    let blocks = [
        on("eni-1", "default", "10.0.0.5/32"),
        on("eni-1", "default", "2001:db8::5/128"),
    ];
    let mut allocator = ready(&blocks);
    let both = |name: &str| [any(name, "default", V6), any(name, "default", V4)];
    get(&mut allocator, "first", 0).unwrap();
    for _ in 0..3 {
        let error = allocator.allocate_all(&both("a"), at(0)).unwrap_err();
        assert!(
            matches!(error, AllocateError::Exhausted { family: V4, .. }),
            "{error}"
        );
        assert_eq!(allocator.leases().count(), 1);
        assert_eq!(
            allocator.counts("default", V6).free,
            1,
            "without a cooldown"
        );
    }
    let leases = allocator.allocate_all(&both("first"), at(0)).unwrap();
    assert_eq!(leases.len(), 2);
    let error = allocator.allocate_all(&[both("first"), both("a")].concat(), at(0));
    assert!(error.is_err());
    assert_eq!(allocator.leases().count(), 2, "what it had before stays");
}

/// A client of a service sends its SYN again for 127 seconds, and conntrack leads it to the address.
#[test]
fn an_address_released_a_short_time_ago_is_given_for_want_of_others_alone() {
    let full = on("eni-1", "default", "10.0.0.16/31");
    let empty = on("eni-1", "default", "10.0.0.32/31");
    let mut allocator = ready(&[full, empty]);
    let first = get(&mut allocator, "a", 0).unwrap().address;
    let second = get(&mut allocator, "b", 0).unwrap().address;
    allocator.claim(&owner("a")).unwrap();
    allocator.claim(&owner("b")).unwrap();
    allocator.release(&owner("b"), at(0));
    allocator.release(&owner("a"), at(5));
    pass(&mut allocator, 40);
    let others = ["c", "d"].map(|name| get(&mut allocator, name, 40).unwrap().address);
    assert_eq!(others.map(|a| a.to_string()), ["10.0.0.32", "10.0.0.33"]);
    assert_eq!(get(&mut allocator, "e", 40).unwrap().address, second);
    assert_eq!(get(&mut allocator, "f", 40).unwrap().address, first);
}

#[test]
fn an_address_is_as_good_as_any_130_seconds_after_its_release() {
    for (seconds, expected) in [(129, "10.0.0.32"), (130, "10.0.0.17")] {
        let full = on("eni-1", "default", "10.0.0.16/31");
        let empty = on("eni-1", "default", "10.0.0.32/31");
        let mut allocator = ready(&[full, empty]);
        for name in ["a", "b"] {
            get(&mut allocator, name, 0).unwrap();
            allocator.claim(&owner(name)).unwrap();
        }
        allocator.release(&owner("b"), at(0));
        pass(&mut allocator, 30);
        pass(&mut allocator, seconds);
        let lease = get(&mut allocator, "c", seconds).unwrap();
        assert_eq!(lease.address.to_string(), expected, "after {seconds} s");
    }
}
