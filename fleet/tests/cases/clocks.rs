//! Times of day that jump, forwards and backwards: nothing goes back early, and nothing stays for
//! ever.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;

use super::bed::{Bed, world};
use super::release::{self, marks, shrink};
use super::reports::refuse;

const MINUTE: Duration = Duration::from_mins(1);
const SECOND: Duration = Duration::from_secs(1);
/// A jump, as of a host whose clock was never set.
const JUMP: SignedDuration = SignedDuration::from_hours(24 * 400);

/// Differences between the operator's time of day and that of EC2, in turn.
fn jumps() -> [[SignedDuration; 2]; 6] {
    let (none, ahead, behind) = (SignedDuration::ZERO, JUMP, -JUMP);
    [
        [none, ahead],
        [none, behind],
        [ahead, none],
        [behind, none],
        [ahead, behind],
        [behind, ahead],
    ]
}

#[test]
fn a_time_of_day_that_jumps_sweeps_no_eni_early_and_keeps_none_for_ever() {
    for [first, then] in jumps() {
        let what = format!("{first} and then {then}");
        let mut bed = Bed::new(&world());
        bed.faults.skew = first;
        bed.add_node("one", "m5.large", "subnet-a");
        bed.run(MINUTE);
        bed.lead();
        refuse(&mut bed, "AttachNetworkInterface", "IncorrectState", 1);
        bed.request("one", 18);
        bed.until(MINUTE, &what, |bed| !bed.loose().is_empty());
        let ends = bed.at().date - first;
        bed.cloud.terminate("i-one", ends).unwrap();
        bed.api.delete("one", bed.now);
        bed.run(MINUTE * 3);
        bed.faults.skew = then;
        bed.run(MINUTE * 6);
        assert_eq!(
            bed.loose().len(),
            1,
            "{what}: it is younger than ten minutes"
        );
        // The clock of the next leader is wrong from its start on.
        bed.kill();
        bed.lead();
        bed.run(MINUTE * 9);
        assert_eq!(
            bed.loose().len(),
            1,
            "{what}: this leader has seen it for less"
        );
        bed.run(MINUTE * 15);
        assert_eq!(bed.cloud.interfaces().count(), 0, "{what}");
        assert_eq!(bed.calls("DeleteNetworkInterface"), 1, "{what}");
    }
}

#[test]
fn a_time_of_day_that_jumps_releases_no_block_early_and_keeps_none_for_ever() {
    for (after, skew) in [0, 60, 170]
        .into_iter()
        .flat_map(|at| [(at, JUMP), (at, -JUMP)])
    {
        let what = format!("{skew} after {after} s");
        let mut bed = release::bed(14);
        let given = shrink(&mut bed, 10);
        bed.run(SECOND * after);
        bed.faults.skew = skew;
        bed.run(SECOND * (175 - after));
        assert_eq!(marks(&bed), BTreeSet::new(), "{what}");
        bed.until(SECOND * 20, &what, |bed| marks(bed) == given);
        bed.faults.skew = -skew;
        bed.run(SECOND * 15);
        assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0, "{what}");
        bed.until(SECOND * 20, &what, |bed| {
            bed.calls("UnassignPrivateIpAddresses") > 0
        });
        bed.run(MINUTE * 2);
        assert_eq!(
            (marks(&bed), bed.shown("one")),
            (BTreeSet::new(), 10),
            "{what}"
        );
        bed.assert_true(&what);
    }
}

/// The operator waits five minutes before it deletes the object of an ended instance.
#[test]
fn a_time_of_day_that_jumps_deletes_no_object_early() {
    for skew in [JUMP, -JUMP] {
        let mut bed = Bed::new(&world());
        bed.add_node("one", "m5.large", "subnet-a");
        bed.set_hosts(&["one"]);
        bed.run(MINUTE);
        bed.lead();
        bed.run(MINUTE);
        let date = bed.at().date;
        bed.cloud.terminate("i-one", date).unwrap();
        bed.set_hosts(&[]);
        bed.run(SECOND);
        bed.faults.skew = skew;
        bed.run(SECOND * 289);
        assert!(bed.api.objects.contains_key("one"), "{skew}: too early");
        bed.until(MINUTE * 2, "it goes", |bed| bed.api.objects.is_empty());
    }
}

/// The API server's clock can go back, so that a later object seems to be older.
#[test]
fn a_creation_before_all_others_takes_no_block_of_another_node() {
    for created in ["1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z"] {
        let mut bed = Bed::new(&world());
        bed.add_node("one", "m5.large", "subnet-a");
        bed.run(MINUTE);
        bed.lead();
        bed.until(MINUTE, "addresses", |bed| bed.shown("one") >= 8);
        bed.add_node("two", "m5.large", "subnet-a");
        bed.change("two", &json!({"metadata": {"creationTimestamp": created}}));
        for _ in 0..120 {
            bed.run(SECOND);
            bed.assert_true(created);
            assert!(bed.shown("one") >= 8, "{created}");
        }
        assert!(bed.shown("two") >= 8, "{created}");
        assert_eq!(
            (bed.report("one"), bed.report("two")),
            ("", ""),
            "{created}"
        );
    }
}
