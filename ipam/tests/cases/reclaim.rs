//! Blocks of devices that go back and are claimed again.

use ipam::{
    Allocator, AnnouncedBlock, Announcement, Draining, Formula, Life, SeenEndpoint, Settings, State,
};

use super::support::*;

const FIRST: &str = "10.0.0.16/28";
const SECOND: &str = "10.0.0.32/28";

fn blocks() -> [AnnouncedBlock; 2] {
    [FIRST, SECOND].map(|cidr| on("eni-1", "default", cidr))
}

/// A document with both blocks, of which some are claimed.
fn document(claimed: &[&str], is_versioned: bool) -> Announcement {
    Announcement {
        claimed: claimed.iter().map(|cidr| net(cidr)).collect(),
        is_versioned,
        ..announce(&blocks())
    }
}

fn releasing() -> Settings {
    Settings {
        release: true,
        ..settings(Formula::Linear, "")
    }
}

fn allocator() -> Allocator {
    let mut allocator = fresh(releasing());
    allocator.observe(document(&[], true));
    set_ready(&mut allocator, &["eni-1"]);
    allocator
}

fn life(allocator: &Allocator, cidr: &str) -> Life {
    let views = allocator.blocks();
    views
        .into_iter()
        .find(|view| view.cidr == net(cidr))
        .unwrap()
        .life
}

/// An allocator that has given the second block back after a minute, as the last document shows if
/// `is_seen`.
fn given_back(is_versioned: bool, is_seen: bool) -> Allocator {
    let mut allocator = allocator();
    allocator.observe(document(&[FIRST, SECOND], is_versioned));
    allocator.confirm(at(0));
    get(&mut allocator, "a", 0).unwrap();
    assert_eq!(allocator.balance(at(60)).released, [net(SECOND)]);
    if is_seen {
        allocator.observe(document(&[FIRST], is_versioned));
    }
    allocator
}

/// The node wants more than the first block has.
fn want_more(allocator: &mut Allocator, claimed: &[&str], is_versioned: bool) {
    let more = Announcement {
        pre_allocate: Some(20),
        ..document(claimed, is_versioned)
    };
    allocator.observe(more);
}

#[test]
fn addresses_of_a_fresh_block_wait_for_its_claim() {
    let mut allocator = allocator();
    assert!(allocator.has_claims_to_write());
    assert_eq!(life(&allocator, FIRST), Life::Announced);
    get(&mut allocator, "a", 0).unwrap_err();
    allocator.observe(document(&[FIRST], true));
    assert!(
        FIRST
            .parse::<ipnet::IpNet>()
            .unwrap()
            .contains(&get(&mut allocator, "a", 0).unwrap().address)
    );
    assert!(allocator.has_claims_to_write(), "the second one has none");
    allocator.observe(document(&[FIRST, SECOND], true));
    assert!(!allocator.has_claims_to_write());
}

/// Another project's operator may unassign a fresh block that no object it has read claims.
#[test]
fn a_fresh_block_is_claimed_within_two_minutes_or_not_at_all() {
    let fresh_block = |is_versioned: bool| {
        let mut allocator = fresh(releasing());
        allocator.observe(document(&[FIRST], is_versioned));
        allocator.confirm(at(0));
        set_ready(&mut allocator, &["eni-1"]);
        allocator
    };
    let released = Life::Draining(Draining::Released);
    for (seconds, is_versioned, expected) in [
        (119, false, Life::Usable),
        (120, false, released.clone()),
        (3600, true, Life::Usable),
    ] {
        // The claim is written in time, and the answer to it is late.
        let mut allocator = fresh_block(is_versioned);
        allocator.balance(at(1));
        assert_eq!(life(&allocator, SECOND), Life::Announced);
        allocator.observe(document(&[FIRST, SECOND], is_versioned));
        allocator.confirm(at(seconds));
        assert_eq!(life(&allocator, SECOND), expected, "{seconds}");
        // It is not written in time.
        let mut allocator = fresh_block(is_versioned);
        allocator.balance(at(seconds));
        assert_eq!(allocator.has_claims_to_write(), expected == Life::Usable);
    }
    let mut restarted = Allocator::restore(releasing(), fresh_block(false).state(), None, at(1)).0;
    restarted.observe(document(&[FIRST], false));
    restarted.confirm(at(1));
    assert_eq!(life(&restarted, SECOND), released, "nobody knows its age");
}

#[test]
fn a_block_that_cannot_be_claimed_again_is_replaced_if_its_addresses_are_needed() {
    let requested = |allocator: &Allocator| allocator.request()["default"][&V4];
    let mut allocator = given_back(false, true);
    let demand = allocator.demand();
    assert_eq!(allocator.request(), demand, "the first block is enough");
    want_more(&mut allocator, &[FIRST], false);
    allocator.balance(at(300));
    // One address is in use, and 15 of 20 are free.
    assert_eq!(requested(&allocator), 1 + 20 + 5);
    want_more(&mut allocator, &[FIRST], true);
    assert_eq!(requested(&allocator), 1 + 20, "it will be claimed again");
}

#[test]
fn without_release_a_claim_is_no_condition() {
    let mut allocator = fresh(settings(Formula::Linear, ""));
    allocator.observe(document(&[], false));
    set_ready(&mut allocator, &["eni-1"]);
    assert!(!allocator.has_claims_to_write());
    get(&mut allocator, "a", 0).unwrap();
}

#[test]
fn a_block_is_claimed_again_only_after_its_release_was_seen() {
    let mut unseen = given_back(true, false);
    want_more(&mut unseen, &[FIRST, SECOND], true);
    assert_eq!(
        unseen.balance(at(61)).retaken,
        [],
        "a late write could take the claim away"
    );
    let mut seen = given_back(true, true);
    want_more(&mut seen, &[FIRST], true);
    assert_eq!(seen.balance(at(61)).retaken, [net(SECOND)]);
    assert_eq!(
        life(&seen, SECOND),
        Life::Announced,
        "until the claim is written"
    );
    assert_eq!(seen.balance(at(61)), ipam::Rebalanced::default(), "once");
    want_more(&mut seen, &[FIRST, SECOND], true);
    seen.confirm(at(62));
    assert_eq!(life(&seen, SECOND), Life::Usable);
}

#[test]
fn an_operator_that_goes_by_what_it_read_leaves_two_minutes() {
    let again = |seconds: u64, is_versioned: bool| {
        let mut allocator = given_back(false, true);
        want_more(&mut allocator, &[FIRST], is_versioned);
        !allocator.balance(at(seconds)).retaken.is_empty()
    };
    assert!(again(179, false));
    assert!(!again(180, false));
    assert!(again(3600, true));
    // The claim itself has to be there by then.
    for (seconds, expected) in [
        (179, Life::Usable),
        (180, Life::Draining(Draining::Released)),
    ] {
        let mut allocator = given_back(false, true);
        want_more(&mut allocator, &[FIRST], false);
        assert_eq!(allocator.balance(at(120)).retaken, [net(SECOND)]);
        want_more(&mut allocator, &[FIRST, SECOND], false);
        allocator.confirm(at(seconds));
        assert_eq!(life(&allocator, SECOND), expected, "{seconds}");
    }
}

/// A reader of once a minute may have missed the claim. It counts on from the first release then.
#[test]
fn a_claim_of_less_than_a_minute_begins_no_new_time() {
    let again = |claimed_for: u64, at_last: u64| {
        let mut allocator = given_back(false, true);
        want_more(&mut allocator, &[FIRST], false);
        assert_eq!(allocator.balance(at(90)).retaken, [net(SECOND)]);
        want_more(&mut allocator, &[FIRST, SECOND], false);
        allocator.confirm(at(100));
        allocator.observe(document(&[FIRST, SECOND], false));
        allocator.confirm(at(101));
        let released = allocator.balance(at(100 + claimed_for)).released;
        assert_eq!(released, [net(SECOND)]);
        want_more(&mut allocator, &[FIRST], false);
        !allocator.balance(at(at_last)).retaken.is_empty()
    };
    assert!(again(59, 179));
    assert!(!again(59, 180));
    assert!(again(60, 279));
}

#[test]
fn a_first_claim_of_less_than_a_minute_leaves_no_time() {
    let mut allocator = allocator();
    allocator.observe(document(&[FIRST, SECOND], false));
    allocator.confirm(at(0));
    get(&mut allocator, "a", 0).unwrap();
    assert_eq!(allocator.balance(at(59)).released, [net(SECOND)]);
    want_more(&mut allocator, &[FIRST], false);
    assert_eq!(allocator.balance(at(60)).retaken, []);
}

#[test]
fn a_block_that_an_earlier_agent_gave_back_is_claimed_by_version_alone() {
    let state = State {
        released: [net(SECOND)].into(),
        ..State::default()
    };
    let restored = |is_versioned: bool| {
        let mut allocator = Allocator::restore(releasing(), state.clone(), None, at(0)).0;
        want_more(&mut allocator, &[FIRST], is_versioned);
        set_ready(&mut allocator, &["eni-1"]);
        !allocator.balance(at(1)).retaken.is_empty()
    };
    assert!(restored(true));
    assert!(!restored(false));
}

#[test]
fn a_claim_that_a_restart_interrupts_is_made_again_by_its_rules() {
    let again = |is_versioned: bool| {
        let mut allocator = given_back(is_versioned, true);
        want_more(&mut allocator, &[FIRST], is_versioned);
        assert_eq!(allocator.balance(at(61)).retaken, [net(SECOND)]);
        let state = allocator.state();
        let mut allocator = Allocator::restore(releasing(), state, None, at(62)).0;
        want_more(&mut allocator, &[FIRST], is_versioned);
        set_ready(&mut allocator, &["eni-1"]);
        !allocator.balance(at(63)).retaken.is_empty()
    };
    assert!(again(true));
    assert!(!again(false), "nobody knows since when it is not claimed");
}

#[test]
fn a_block_that_went_and_came_again_is_a_fresh_one() {
    let mut allocator = given_back(false, true);
    let gone = Announcement {
        blocks: blocks()[..1].to_vec(),
        ..document(&[FIRST], false)
    };
    allocator.observe(gone);
    want_more(&mut allocator, &[FIRST], false);
    assert_eq!(life(&allocator, SECOND), Life::Announced);
    want_more(&mut allocator, &[FIRST, SECOND], false);
    assert_eq!(life(&allocator, SECOND), Life::Usable);
}

/// The record can be older than the kernel's state.
#[test]
fn a_released_block_with_an_address_in_use_is_claimed_again() {
    let state = State {
        released: [net(SECOND)].into(),
        ..State::default()
    };
    let seen = SeenEndpoint {
        owner: owner("a"),
        addresses: [ip("10.0.0.37")].into(),
    };
    let mut allocator = Allocator::restore(releasing(), state, Some(&[seen]), at(0)).0;
    allocator.observe(document(&[FIRST], true));
    set_ready(&mut allocator, &["eni-1"]);
    assert_eq!(life(&allocator, SECOND), Life::Announced);
    assert!(allocator.has_claims_to_write());
    allocator.observe(document(&[FIRST, SECOND], true));
    assert_eq!(life(&allocator, SECOND), Life::Usable);
}

#[test]
fn a_released_block_whose_address_is_adopted_is_claimed_again() {
    let mut allocator = given_back(true, true);
    assert_eq!(life(&allocator, SECOND), Life::Draining(Draining::Released));
    allocator
        .adopt(&owner("b"), ip("10.0.0.37"), at(61))
        .unwrap();
    assert_eq!(life(&allocator, SECOND), Life::Announced);
    assert!(allocator.has_claims_to_write());
}
