//! EC2 gives an address again that it has just taken back.

use std::collections::BTreeSet;
use std::time::Duration;

use super::release::{bed, claim, marks, shrink, singles};

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
