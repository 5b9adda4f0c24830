//! Restart: the leases that survive it, compared with the kernel's endpoints.

use ipam::{
    Allocator, Claim, Conflict, Formula, Restored, SeenEndpoint, State, StateError, WhyDropped,
};

use super::support::*;

fn seen(name: &str, addresses: &[&str]) -> SeenEndpoint {
    SeenEndpoint {
        owner: owner(name),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
    }
}

fn restart(earlier: &Allocator, seen: &[SeenEndpoint], second: u64) -> (Allocator, Restored) {
    let text = serde_json::to_string(&earlier.state()).unwrap();
    let state = serde_json::from_str(&text).unwrap();
    let settings = settings(Formula::Linear, "");
    let (mut allocator, restored) = Allocator::restore(settings, state, Some(seen), at(second));
    set_ready(&mut allocator, &["eni-1", "eni-2"]);
    (allocator, restored)
}

#[test]
fn what_the_kernel_bears_out_is_kept() {
    let blocks = announce(&[on("eni-1", "default", "10.0.0.16/28")]);
    let mut allocator = ready(&blocks.blocks);
    for name in ["claimed", "unclaimed", "seen", "vanished"] {
        get(&mut allocator, name, 0).unwrap();
    }
    for name in ["claimed", "vanished"] {
        allocator.claim(&owner(name)).unwrap();
    }
    let address = |allocator: &Allocator, name: &str| {
        allocator
            .held_by(&owner(name))
            .next()
            .unwrap()
            .address
            .to_string()
    };
    let has = |name: &str| seen(name, &[&address(&allocator, name)]);
    let (mut restarted, restored) = restart(&allocator, &[has("claimed"), has("seen")], 5);
    assert_eq!((restored.kept, restored.unclaimed), (3, 1));
    assert_eq!(restored.dropped.len(), 1);
    assert_eq!(restored.dropped[0].lease.owner, owner("vanished"));
    assert_eq!(restored.dropped[0].why, WhyDropped::NoEndpoint);
    assert_eq!(restarted.cooling().count(), 1);
    let claim = |name| restarted.held_by(&owner(name)).next().unwrap().claim;
    assert_eq!(claim("seen"), Claim::Claimed);
    assert_eq!(claim("unclaimed"), Claim::Unclaimed { until: at(600) });
    restarted.observe(blocks);
    assert_eq!(restarted.counts("default", V4).free, 12);
}

/// Found while at work: as if it had been found at the start.
#[test]
fn an_address_that_somebody_turns_out_to_have_is_theirs() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    let given = get(&mut allocator, "a", 0).unwrap().address;
    let error = allocator.adopt(&owner("b"), given, at(0)).unwrap_err();
    assert!(error.to_string().contains("in use by a/eth0"), "{error}");
    allocator.adopt(&owner("a"), given, at(0)).unwrap();
    allocator.release(&owner("a"), at(0));
    allocator.adopt(&owner("b"), given, at(5)).unwrap();
    allocator
        .adopt(&owner("c"), ip("10.0.0.20"), at(5))
        .unwrap();
    allocator.adopt(&owner("c"), ip("10.9.9.9"), at(5)).unwrap();
    assert_eq!(allocator.cooling().count(), 0);
    let counts = allocator.counts("default", V4);
    assert_eq!((counts.claimed, counts.free), (2, 14));
    for n in 0..14 {
        let other = get(&mut allocator, &format!("other-{n}"), 5).unwrap();
        assert!(other.address != given && other.address != ip("10.0.0.20"));
    }
    allocator.release(&owner("b"), at(6));
    pass(&mut allocator, 36);
    assert_eq!(get(&mut allocator, "d", 36).unwrap().address, given);
}

#[test]
fn the_kernel_is_right_about_who_has_an_address() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    for name in ["a", "b"] {
        get(&mut allocator, name, 0).unwrap();
        allocator.claim(&owner(name)).unwrap();
    }
    let kernel = [
        seen("b", &["10.0.0.16"]),
        seen("c", &["10.0.0.16", "10.0.0.20"]),
    ];
    let (restarted, restored) = restart(&allocator, &kernel, 5);
    assert_eq!(
        restarted.lease_of(ip("10.0.0.16")).unwrap().owner,
        owner("b")
    );
    assert_eq!(
        restarted.lease_of(ip("10.0.0.20")).unwrap().owner,
        owner("c")
    );
    let conflict = Conflict {
        address: ip("10.0.0.16"),
        owner: owner("b"),
        other: owner("c"),
    };
    assert_eq!(restored.conflicts, [conflict]);
    let why: Vec<String> = restored.dropped.iter().map(|d| d.why.to_string()).collect();
    assert_eq!(
        why,
        ["b/eth0 has it", "its owner's endpoint does not have it"]
    );
    assert_eq!(restored.adopted.len(), 2);
    let cooling: Vec<_> = restarted.cooling().map(|c| c.address).collect();
    assert_eq!(
        cooling,
        [ip("10.0.0.17")],
        "what an endpoint has does not cool down"
    );
}

/// The state was lost: endpoints keep what they have, in the pools of their blocks.
#[test]
fn without_a_state_endpoints_are_adopted() {
    let empty = fresh(settings(Formula::Linear, ""));
    let kernel = [
        seen("a", &["10.0.0.17", "2001:db8::99:0:1"]),
        seen("b", &["10.9.9.9"]),
    ];
    let (mut allocator, restored) = restart(&empty, &kernel, 0);
    assert_eq!(restored.adopted.len(), 3);
    let changes = allocator.observe(announce(&[
        on("eni-1", "default", "10.0.0.16/28"),
        on("eni-1", "default", "2001:db8::/80"),
    ]));
    assert_eq!(changes.orphaned.len(), 1);
    assert_eq!(changes.orphaned[0].address, ip("10.9.9.9"));
    assert_eq!(changes.orphaned[0].pool, None);
    let lease = allocator.lease_of(ip("10.0.0.17")).unwrap();
    assert_eq!(
        (lease.pool.as_deref(), lease.block),
        (Some("default"), net("10.0.0.16/28"))
    );
    let counts = allocator.counts("default", V6);
    assert_eq!(
        (counts.outside, counts.free),
        (1, 65536),
        "beyond what we would give"
    );
    assert!(counts.add_up());
    assert_eq!(
        get(&mut allocator, "a", 0).unwrap().address,
        ip("10.0.0.17")
    );
    let next = get(&mut allocator, "c", 0).unwrap().address;
    assert_ne!(next, ip("10.0.0.17"));
}

/// A cooldown goes on where it was.
#[test]
fn cooldown_outlives_a_restart() {
    let blocks = announce(&[on("eni-1", "default", "10.0.0.5/32")]);
    let mut allocator = ready(&blocks.blocks);
    get(&mut allocator, "a", 0).unwrap();
    allocator.release(&owner("a"), at(0));
    let (mut allocator, _) = restart(&allocator, &[], 20);
    allocator.observe(blocks);
    pass(&mut allocator, 29);
    get(&mut allocator, "b", 29).unwrap_err();
    pass(&mut allocator, 30);
    get(&mut allocator, "b", 30).unwrap();
}

/// A block that was given back stays so: the operator may be about to take it away.
#[test]
fn a_released_block_outlives_a_restart() {
    let blocks = announce(&[
        on("eni-1", "default", "10.0.0.16/28"),
        on("eni-1", "default", "10.0.0.32/28"),
    ]);
    let mut allocator = ready(&blocks.blocks);
    get(&mut allocator, "a", 0).unwrap();
    allocator.claim(&owner("a")).unwrap();
    assert_eq!(allocator.rebalance().released, [net("10.0.0.32/28")]);
    let (mut allocator, _) = restart(&allocator, &[seen("a", &["10.0.0.16"])], 1);
    allocator.observe(blocks);
    let error = allocator
        .allocate(&exactly("b", "10.0.0.33"), at(1))
        .unwrap_err();
    assert!(error.to_string().ends_with("draining: released"), "{error}");
}

/// The block is another pool's when the agent comes back: the lease remembers its own.
#[test]
fn a_lease_keeps_its_pool_over_a_restart() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    get(&mut allocator, "a", 0).unwrap();
    let (mut allocator, _) = restart(&allocator, &[seen("a", &["10.0.0.16"])], 1);
    allocator.observe(announce(&[on("eni-1", "mars", "10.0.0.16/28")]));
    assert_eq!(
        get(&mut allocator, "a", 1).unwrap().pool.as_deref(),
        Some("default")
    );
    allocator
        .allocate(&any("b", "mars", V4), at(1))
        .unwrap_err();
}

#[test]
fn a_state_that_does_not_hold_together_is_refused() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    get(&mut allocator, "a", 0).unwrap();
    let text = serde_json::to_string(&allocator.state()).unwrap();
    let error = |text: &str| serde_json::from_str::<State>(text).unwrap_err().to_string();

    let newer = text.replace("\"version\":1", "\"version\":2");
    assert_eq!(error(&newer), "version 2 is not known; 1 is");
    let elsewhere = text.replace("\"10.0.0.16/28\"", "\"10.9.0.0/28\"");
    let wanted = StateError::NotInBlock(ip("10.0.0.16"), net("10.9.0.0/28"));
    assert_eq!(error(&elsewhere), wanted.to_string());
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let lease = value["leases"][0].clone();
    value["leases"].as_array_mut().unwrap().push(lease);
    assert_eq!(error(&value.to_string()), "address 10.0.0.16 stands twice");
    error(&text[..text.len() / 2]);

    value["leases"].as_array_mut().unwrap().pop();
    value["added-later"] = true.into();
    let state: State = serde_json::from_str(&value.to_string()).unwrap();
    assert_eq!(state, allocator.state());
}

/// The format of version 1 on disk: a change of it needs a new version.
#[test]
fn the_form_of_the_state_is_pinned() {
    let mut allocator = ready(&[on("eni-1", "default", "10.0.0.16/28")]);
    for name in ["a", "b", "c"] {
        get(&mut allocator, name, 0).unwrap();
    }
    allocator.claim(&owner("a")).unwrap();
    allocator.release(&owner("c"), at(1));
    let pinned = concat!(
        r#"{"version":1,"leases":[{"address":"10.0.0.16","owner":{"container-id":"a","#,
        r#""interface":"eth0"},"pool":"default","block":"10.0.0.16/28","since":1000000,"#,
        r#""claim":"claimed"},{"address":"10.0.0.17","owner":{"container-id":"b","#,
        r#""interface":"eth0"},"pool":"default","block":"10.0.0.16/28","since":1000000,"#,
        r#""claim":{"unclaimed":{"until":1600000}}}],"cooling":[{"address":"10.0.0.18","#,
        r#""pool":"default","block":"10.0.0.16/28","until":1031000,"released":1001000}],"#,
        r#""released":[]}"#
    );
    assert_eq!(serde_json::to_string(&allocator.state()).unwrap(), pinned);
    let older: State = serde_json::from_str(&pinned.replace(r#","released":1001000"#, "")).unwrap();
    assert_eq!(older.cooling[0].released, None);
}

/// An address whose cooldown was over is free at once, and is given in the order of the releases.
#[test]
fn what_was_released_a_short_time_ago_is_known_after_a_restart() {
    let blocks = announce(&[on("eni-1", "default", "10.0.0.16/30")]);
    let mut allocator = ready(&blocks.blocks);
    for name in ["a", "b", "c"] {
        get(&mut allocator, name, 0).unwrap();
        allocator.claim(&owner(name)).unwrap();
    }
    for (name, second) in [("b", 1), ("a", 2), ("c", 3)] {
        allocator.release(&owner(name), at(second));
    }
    pass(&mut allocator, 40);
    assert_eq!(allocator.cooling().count(), 0);
    let (mut restarted, _) = restart(&allocator, &[], 41);
    assert_eq!(restarted.cooling().count(), 0);
    restarted.observe(blocks);
    let order = ["d", "e", "f", "g"].map(|name| {
        let lease = get(&mut restarted, name, 41).unwrap();
        lease.address.to_string()
    });
    let expected = ["10.0.0.19", "10.0.0.17", "10.0.0.16", "10.0.0.18"];
    assert_eq!(order, expected);
}
