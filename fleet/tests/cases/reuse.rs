//! EC2 gives an address again that it has just taken back.

use std::collections::BTreeSet;
use std::time::Duration;

use ec2_fake::{Call, Fault, FaultKind, Request};

use super::others::{crowd, eni_at};
use super::release::{bed, claim, idle, lead, marks, shrink, singles};

/// The most addresses of the node's instance: three ENIs with nine each.
const MOST: u32 = 27;

#[test]
fn addresses_that_ec2_gives_again_at_once_serve_again() {
    let mut bed = bed(MOST);
    let given = shrink(&mut bed, 17);
    bed.until(Duration::from_mins(4), "marks", |bed| marks(bed) == given);
    // All slots are taken until EC2 has taken them back, and then it gives the lowest ones.
    bed.request("one", MOST);
    bed.until(Duration::from_secs(30), "a release", |bed| {
        bed.calls("UnassignPrivateIpAddresses") > 0
    });
    bed.until(Duration::from_secs(15), "all addresses again", |bed| {
        singles(bed).len() == 27
    });
    let all = singles(&bed);
    assert!(all.is_superset(&given), "{given:?} are not reused: {all:?}");
    assert_eq!(marks(&bed), BTreeSet::new());
    claim(&mut bed, &all);
    let released = bed.calls("UnassignPrivateIpAddresses");
    bed.run(Duration::from_mins(5));
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), released);
    assert_eq!(singles(&bed), all, "what pods use stays");
    bed.assert_true("after the reuse");
}

/// A read shows some of the addresses at once, and others only once it is late enough to deny that
/// they were taken.
#[test]
fn addresses_that_ec2_gives_again_without_an_answer_serve_within_a_minute() {
    let mut bed = idle();
    crowd(&mut bed, "subnet-a", 1);
    let of_others = bed.loose();
    lead(&mut bed, MOST);
    let all = singles(&bed);
    let of_one: BTreeSet<String> = eni_at(&bed, "i-one", 2)
        .addresses
        .blocks
        .iter()
        .map(ToString::to_string)
        .collect();
    claim(&mut bed, &all.difference(&of_one).cloned().collect());
    bed.request("one", 18);
    bed.until(Duration::from_mins(4), "marks", |bed| marks(bed) == of_one);
    let request = Request {
        call: Call::Delete(of_others[0].clone()),
        dry_run: false,
    };
    let date = bed.at().date;
    bed.cloud.call(date, "others", &request).outcome.unwrap();
    bed.cloud.inject(Fault {
        action: "AssignPrivateIpAddresses".to_owned(),
        names: None,
        skip: 0,
        count: 1,
        kind: FaultKind::AnswerLost,
    });
    bed.request("one", MOST);
    bed.until(Duration::from_secs(30), "a release", |bed| {
        bed.calls("UnassignPrivateIpAddresses") > 0
    });
    bed.until(Duration::from_mins(1), "all addresses again", |bed| {
        singles(bed).len() == 27
    });
    let refused = bed
        .cloud
        .log()
        .filter(|it| it.action == "AssignPrivateIpAddresses" && it.error.is_some());
    assert_eq!(refused.count(), 0);
    bed.run(Duration::from_mins(5));
    assert_eq!(singles(&bed).len(), 27);
    bed.assert_true("after the reuse");
}
