use kubernetes::lease::Record;

use super::*;

mod simulation;

const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lease(version: &str, holder: &str, renewed: &str) -> Lease {
    Lease {
        version: version.to_owned(),
        record: Record {
            uid: "u".to_owned(),
            holder: Some(holder.to_owned()).filter(|holder| !holder.is_empty()),
            duration: if holder.is_empty() { at(1) } else { at(15) },
            transitions: 3,
            renewed: renewed.to_owned(),
        },
    }
}

/// A Lease that was deleted and recreated.
fn other_lease(holder: &str) -> Lease {
    let mut lease = lease("1", holder, "a");
    lease.record.uid = "v".to_owned();
    lease
}

fn candidate() -> Election {
    Election::new("us".to_owned(), Timing::default())
}

/// A candidate that leads since second 0.
fn leader() -> Election {
    let mut us = candidate();
    us.read(at(0), Ok(Some(lease("1", "", "a"))));
    us.wrote(at(0), at(0), Ok(lease("2", "us", "b")));
    us
}

fn until(election: &Election) -> Option<Duration> {
    election.term().map(|term| term.until)
}

fn is_update(step: &Step, of: &str, transitions: u32, is_new: bool) -> bool {
    matches!(step, Step::Update(version, claim) if version == of
        && claim.holder.as_deref() == Some("us")
        && (claim.transitions, claim.is_new) == (transitions, is_new))
}

#[test]
fn a_lease_is_taken_when_it_has_not_changed_for_its_time() {
    let mut us = candidate();
    assert_eq!(us.next(at(100)), Step::Read);
    us.read(at(100), Ok(Some(lease("1", "other", "a"))));
    assert_eq!(us.next(at(100)), Step::Wait(at(105)));
    // It is renewed at 104, and this candidate sees so at 105.
    us.read(at(105), Ok(Some(lease("2", "other", "b"))));
    for now in [110, 115] {
        assert_eq!(us.next(at(now)), Step::Read);
        us.read(at(now), Ok(Some(lease("2", "other", "b"))));
    }
    assert_eq!(us.next(at(119)), Step::Wait(at(120)));
    assert!(is_update(&us.next(at(120)), "2", 4, true));
    assert_eq!((us.holder(), us.term()), (Some("other"), None));
    us.wrote(at(120), at(122), Ok(lease("3", "us", "c")));
    let term = Term {
        since: at(122),
        until: at(130),
    };
    assert_eq!((us.holder(), us.term()), (Some("us"), Some(term)));
}

#[test]
fn a_version_that_changes_alone_does_not_show_that_the_holder_lives() {
    let mut us = candidate();
    for (now, version) in [(0, "1"), (5, "2"), (10, "3")] {
        us.read(at(now), Ok(Some(lease(version, "other", "a"))));
    }
    assert!(is_update(&us.next(at(15)), "3", 4, true));
}

#[test]
fn a_holder_that_asks_for_more_time_gets_it() {
    let mut us = candidate();
    let mut slow = lease("1", "other", "a");
    slow.record.duration = at(30);
    us.read(at(0), Ok(Some(slow.clone())));
    us.read(at(15), Ok(Some(slow)));
    assert_eq!(us.next(at(15)), Step::Wait(at(20)));
    assert_eq!(us.next(at(29)), Step::Read);
    assert!(is_update(&us.next(at(30)), "1", 4, true));
}

#[test]
fn a_released_lease_is_taken_at_once_and_an_emptied_one_when_its_time_is_over() {
    let mut us = candidate();
    us.read(at(0), Ok(Some(lease("1", "", "a"))));
    assert!(is_update(&us.next(at(1)), "1", 4, true));
    let mut emptied = lease("1", "", "a");
    emptied.record.duration = at(15);
    us.read(at(1), Ok(Some(emptied)));
    assert_eq!(us.next(at(2)), Step::Wait(at(6)), "its holder still leads");
}

#[test]
fn who_makes_a_lease_leads_when_no_leader_under_a_deleted_one_can_be_left() {
    let mut us = candidate();
    us.read(at(0), Ok(None));
    let Step::Create(claim) = us.next(at(0)) else {
        panic!("{us:?}")
    };
    assert_eq!((claim.transitions, claim.is_new), (1, true));
    us.wrote(at(0), at(1), Ok(lease("1", "us", "a")));
    assert_eq!(
        us.release(),
        None,
        "who follows at once would lead too early"
    );
    for (now, version) in [(5, "2"), (10, "3")] {
        assert_eq!((us.holder(), us.term()), (Some("us"), None));
        assert!(matches!(us.next(at(now)), Step::Update(..)));
        us.wrote(at(now), at(now), Ok(lease(version, "us", version)));
    }
    assert_eq!(us.next(at(10)), Step::Wait(at(11)));
    us.wrote(at(11), at(11), Ok(lease("4", "us", "4")));
    assert_eq!(us.term().map(|term| term.since), Some(at(11)));
    // The answer to its making may be lost.
    let mut us = candidate();
    us.read(at(0), Ok(None));
    us.wrote(at(0), at(1), Err(Failure::Unknown));
    us.read(at(2), Ok(Some(lease("1", "us", "a"))));
    us.wrote(at(2), at(2), Ok(lease("2", "us", "b")));
    assert_eq!(us.term(), None);
}

#[test]
fn a_leader_renews_and_leads_from_the_begin_of_a_renewal() {
    let mut us = leader();
    assert_eq!(us.next(at(4)), Step::Wait(at(5)));
    assert!(is_update(&us.next(at(5)), "2", 3, false));
    us.wrote(at(5), at(8), Ok(lease("3", "us", "c")));
    let term = Term {
        since: at(0),
        until: at(15),
    };
    assert_eq!(us.term(), Some(term), "not 18");
    assert_eq!(us.next(at(8)), Step::Wait(at(10)));
}

#[test]
fn failures_leave_the_term_as_it_is_and_are_tried_again() {
    for failure in [Failure::Refused, Failure::Unknown] {
        let mut us = leader();
        us.wrote(at(5), at(6), Err(failure.clone()));
        assert_eq!(until(&us), Some(at(10)), "{failure:?}");
        assert_eq!(us.next(at(6)), Step::Wait(at(7)));
        assert_eq!(us.next(at(7)), Step::Read, "it may have been written");
        us.read(at(7), Err(Failure::Unknown));
        assert_eq!(us.next(at(8)), Step::Read);
        us.read(at(8), Ok(Some(lease("3", "us", "c"))));
        assert_eq!(until(&us), Some(at(10)), "a read renews nothing");
        assert!(is_update(&us.next(at(8)), "3", 3, false));
    }
    let mut us = leader();
    us.wrote(at(5), at(5), Err(Failure::Busy(at(3))));
    assert_eq!(us.next(at(5)), Step::Wait(at(8)));
}

#[test]
fn a_conflict_says_who_leads() {
    let mut us = leader();
    us.wrote(at(5), at(5), Err(Failure::Conflict));
    assert_eq!(us.next(at(5)), Step::Read);
    us.read(at(5), Ok(Some(lease("9", "other", "x"))));
    assert_eq!((us.holder(), us.term()), (Some("other"), None));
    assert_eq!(us.next(at(5)), Step::Wait(at(10)));
    // Another client has only added a label.
    let mut us = leader();
    us.wrote(at(5), at(5), Err(Failure::Conflict));
    us.read(at(5), Ok(Some(lease("9", "us", "b"))));
    assert_eq!(until(&us), Some(at(10)));
    assert_eq!(
        us.next(at(5)),
        Step::Wait(at(6)),
        "not as fast as it is refused"
    );
    assert!(is_update(&us.next(at(6)), "9", 3, false));
}

#[test]
fn an_answer_with_another_holder_makes_no_leader() {
    let mut us = candidate();
    us.read(at(0), Ok(Some(lease("1", "", "a"))));
    us.wrote(at(1), at(1), Ok(lease("2", "webhook", "b")));
    assert_eq!((us.holder(), us.term()), (Some("webhook"), None));
    assert_eq!(us.next(at(1)), Step::Wait(at(6)));
}

#[test]
fn a_leader_makes_a_deleted_lease_anew_and_leads_on_unless_its_term_is_over() {
    let mut us = leader();
    us.wrote(at(5), at(5), Err(Failure::Absent));
    us.read(at(5), Ok(None));
    assert!(matches!(us.next(at(6)), Step::Create(_)));
    us.wrote(at(6), at(6), Ok(other_lease("us")));
    let term = Term {
        since: at(0),
        until: at(16),
    };
    assert_eq!(us.term(), Some(term));

    let mut us = leader();
    us.wrote(at(5), at(10), Err(Failure::Unknown));
    us.read(at(11), Ok(None));
    assert_eq!(us.term(), None, "somebody may have led since");
    assert!(matches!(us.next(at(11)), Step::Create(_)));
    us.wrote(at(11), at(11), Ok(other_lease("us")));
    assert_eq!(us.term(), None);
    assert!(is_update(&us.next(at(16)), "1", 3, true));
}

#[test]
fn a_term_that_is_over_goes_on_if_nobody_has_led_since() {
    let mut us = leader();
    assert!(is_update(&us.next(at(60)), "2", 3, false));
    us.wrote(at(60), at(60), Ok(lease("3", "us", "c")));
    let term = Term {
        since: at(0),
        until: at(70),
    };
    assert_eq!(us.term(), Some(term));
    us.wrote(at(90), at(90), Err(Failure::Conflict));
    us.read(at(90), Ok(Some(lease("9", "", "x"))));
    assert_eq!(us.term(), None, "another one has led and released it");
    us.wrote(at(91), at(92), Ok(lease("10", "us", "y")));
    assert_eq!(us.term().map(|term| term.since), Some(at(92)));
}

#[test]
fn only_the_own_lease_is_released() {
    let mut us = leader();
    let Some(Step::Update(version, claim)) = us.release() else {
        panic!("{us:?}")
    };
    assert_eq!(
        (version.as_str(), claim.holder, us.term()),
        ("2", None, None)
    );
    assert_eq!(claim.duration, at(1));
    let mut other = candidate();
    other.read(at(0), Ok(Some(lease("1", "other", "a"))));
    assert_eq!(other.release(), None);
    assert_eq!(candidate().release(), None);
    let mut unsure = leader();
    unsure.wrote(at(5), at(5), Err(Failure::Unknown));
    assert_eq!(unsure.release(), None, "it may be somebody else's by now");
}
