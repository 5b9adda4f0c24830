//! Blocks and ENIs that go back.

use std::collections::BTreeSet;
use std::time::Duration;

use fleet::{About, ReleaseMode, Settings};
use kubernetes::operation::report::Reason;
use serde_json::{Value, json};

use super::bed::{Bed, CLUSTER, Fault, Planned, world};

const SOON: Duration = Duration::from_secs(20);

/// A node with this number of addresses, all claimed by an agent of this project, and an operator
/// that leads.
pub(crate) fn bed(addresses: u32) -> Bed {
    let mut bed = idle();
    lead(&mut bed, addresses);
    bed
}

/// A node with an agent of this project, and no operator.
pub(crate) fn idle() -> Bed {
    let settings = Settings {
        release: ReleaseMode::On,
        ..Settings::of(CLUSTER)
    };
    let mut bed = Bed::with(&world(), settings);
    bed.add_node("one", "m5.large", "subnet-a");
    let mark = json!({"metadata": {"annotations": {"ipam.towpath.dev/agent": "1.0.0"}}});
    bed.change("one", &mark);
    bed
}

/// The node gets this number of addresses from an operator that leads, and its agent claims all.
pub(crate) fn lead(bed: &mut Bed, addresses: u32) {
    bed.request("one", addresses);
    bed.run(Duration::from_secs(30));
    bed.lead();
    let count = usize::try_from(addresses).unwrap();
    bed.until(Duration::from_mins(2), "addresses", |bed| {
        bed.shown("one") >= count
    });
    let all = singles(bed);
    claim(bed, &all);
    bed.run(Duration::from_secs(10));
}

/// The single addresses that the status shows, as blocks.
pub(crate) fn singles(bed: &Bed) -> BTreeSet<String> {
    let enis = bed.api.objects["one"]["status"]["eni"]["enis"].as_object();
    let lists = enis.into_iter().flatten().map(|(_, eni)| &eni["addresses"]);
    let addresses = lists.filter_map(Value::as_array).flatten();
    addresses
        .map(|address| format!("{}/32", address.as_str().unwrap()))
        .collect()
}

/// The agent claims these blocks and no others.
pub(crate) fn claim(bed: &mut Bed, blocks: &BTreeSet<String>) {
    let allocated = json!([{"pool": "default", "cidrs": blocks}]);
    bed.change(
        "one",
        &json!({"spec": {"ipam": {"pools": {"allocated": allocated}}}}),
    );
}

pub(crate) fn marks(bed: &Bed) -> BTreeSet<String> {
    let map = bed.api.objects["one"]["status"]["ipam"]["release-ips"].as_object();
    let keys = map.into_iter().flat_map(serde_json::Map::keys);
    keys.filter(|key| key.contains("/32")).cloned().collect()
}

/// The agent wants so many addresses and gives the last blocks back.
pub(crate) fn shrink(bed: &mut Bed, to: usize) -> BTreeSet<String> {
    let kept: BTreeSet<String> = singles(bed).into_iter().take(to).collect();
    let given: BTreeSet<String> = singles(bed).difference(&kept).cloned().collect();
    bed.request("one", u32::try_from(to).unwrap());
    claim(bed, &kept);
    given
}

/// The texts of the node's events with a reason.
fn events(bed: &Bed, reason: Reason) -> Vec<&str> {
    let about = About::Node("one".to_owned());
    let events = bed.events.iter();
    events
        .filter(|it| it.about == about && it.reason == reason)
        .map(|it| it.text.as_str())
        .collect()
}

#[test]
fn what_nobody_claims_goes_after_the_delay_and_the_grace() {
    let mut bed = bed(14);
    let given = shrink(&mut bed, 10);
    bed.run(Duration::from_secs(170));
    // Each change of the object triggers a plan of the node.
    bed.change("one", &json!({"metadata": {"labels": {"a": "b"}}}));
    bed.run(Duration::from_secs(5));
    assert_eq!(marks(&bed), BTreeSet::new());
    assert_eq!(bed.shown("one"), 14);
    bed.until(SOON, "marks", |bed| marks(bed) == given);
    assert_eq!(
        bed.shown("one"),
        10,
        "one patch takes them out and marks them"
    );
    bed.run(Duration::from_secs(15));
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
    bed.until(SOON, "a call", |bed| {
        bed.calls("UnassignPrivateIpAddresses") > 0
    });
    bed.run(Duration::from_mins(2));
    assert_eq!(marks(&bed), BTreeSet::new(), "they go with the blocks");
    bed.assert_at_rest("after the release");
    let released = events(&bed, Reason::BlocksReleased).join("\n");
    for block in &given {
        assert_eq!(released.matches(block).count(), 1, "{block}: {released}");
    }
    assert_eq!(events(&bed, Reason::BlocksClaimedAgain), [""; 0]);
    assert_eq!(bed.shown("one"), 10);
    bed.run(Duration::from_mins(5));
    bed.assert_true("after the release");
    let held = bed
        .cloud
        .interfaces()
        .map(|it| it.addresses.blocks.len())
        .sum::<usize>();
    assert_eq!(held, 10);
}

/// The blocks of prefixes that the status shows.
fn prefixes(bed: &Bed) -> BTreeSet<String> {
    let enis = bed.api.objects["one"]["status"]["eni"]["enis"].as_object();
    let lists = enis.into_iter().flatten().map(|(_, eni)| &eni["prefixes"]);
    let prefixes = lists.filter_map(Value::as_array).flatten();
    prefixes.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// 250 pods become 10: with eight spare addresses they need two prefixes of 17.
#[test]
fn r11_prefixes_of_pods_that_are_gone_go_back() {
    let mut settings = Settings {
        release: ReleaseMode::On,
        ..Settings::of(CLUSTER)
    };
    settings.enis.prefixes = true;
    let mut bed = Bed::with(&world(), settings);
    bed.add_node("one", "m5.4xlarge", "subnet-a");
    bed.change(
        "one",
        &json!({"metadata": {"annotations": {"ipam.towpath.dev/agent": "1.0.0"}}}),
    );
    bed.request("one", 258);
    bed.run(Duration::from_secs(30));
    bed.lead();
    bed.until(Duration::from_mins(2), "prefixes", |bed| {
        prefixes(bed).len() == 17
    });
    let all = prefixes(&bed);
    claim(&mut bed, &all);
    bed.run(Duration::from_mins(5));
    assert_eq!(prefixes(&bed), all, "all are in use");
    let kept: BTreeSet<String> = all.iter().take(2).cloned().collect();
    bed.request("one", 18);
    claim(&mut bed, &kept);
    let attached = |bed: &Bed| {
        let blocks = bed.cloud.interfaces();
        let blocks = blocks.flat_map(|eni| eni.addresses.blocks.iter());
        blocks.map(ToString::to_string).collect::<BTreeSet<_>>()
    };
    bed.run(Duration::from_secs(175));
    assert_eq!(attached(&bed), all, "before the delay");
    // The delay, the grace, and a round of the budget's calls.
    let limit = Duration::from_secs(5 + 20 + 15);
    bed.until(limit, "two prefixes", |bed| attached(bed) == kept);
    bed.run(Duration::from_mins(15));
    assert_eq!((attached(&bed), prefixes(&bed)), (kept.clone(), kept));
    assert_eq!(marks(&bed), BTreeSet::new());
    assert_eq!(bed.report("one"), "");
    bed.assert_true("prefixes");
    bed.assert_no_leaks("prefixes");
}

#[test]
fn what_was_never_claimed_stays_until_the_agent_answers() {
    let mut bed = bed(14);
    bed.kill();
    let given = shrink(&mut bed, 10);
    bed.lead();
    bed.run(Duration::from_mins(10));
    assert_eq!(
        marks(&bed),
        BTreeSet::new(),
        "this leader never saw a claim"
    );
    // The agent writes its claims again, for whatever reason.
    bed.request("one", 9);
    bed.run(Duration::from_secs(170));
    assert_eq!(marks(&bed), BTreeSet::new());
    bed.until(SOON, "marks", |bed| marks(bed).is_superset(&given));
}

#[test]
fn a_block_that_is_claimed_again_stays() {
    let mut bed = bed(14);
    let all = singles(&bed);
    let given = shrink(&mut bed, 10);
    bed.run(Duration::from_mins(2));
    claim(&mut bed, &all);
    bed.request("one", 14);
    bed.run(Duration::from_mins(10));
    assert_eq!(marks(&bed), BTreeSet::new());
    // The agent of another project claims what it was shown no more.
    let given_again = shrink(&mut bed, 10);
    assert_eq!(given, given_again);
    bed.until(Duration::from_mins(4), "marks", |bed| marks(bed) == given);
    claim(&mut bed, &all);
    bed.request("one", 14);
    bed.run(Duration::from_mins(3));
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
    assert_eq!((bed.shown("one"), marks(&bed)), (14, BTreeSet::new()));
    let claimed = events(&bed, Reason::BlocksClaimedAgain).join("\n");
    assert!(
        given.iter().all(|block| claimed.contains(block)),
        "{claimed}"
    );
    assert_eq!(events(&bed, Reason::BlocksReleased), [""; 0]);
}

/// The write that shows the block again may be late. EC2 is not called until then.
#[test]
fn a_block_that_is_claimed_again_stays_while_no_write_gets_through() {
    let mut bed = bed(14);
    let all = singles(&bed);
    let given = shrink(&mut bed, 10);
    bed.until(Duration::from_mins(4), "marks", |bed| marks(bed) == given);
    bed.faults.planned = Some(Planned {
        what: "status",
        skip: 0,
        fault: Fault::Unsent,
        kills: false,
    });
    bed.run(Duration::from_secs(17));
    claim(&mut bed, &all);
    bed.request("one", 14);
    bed.run(Duration::from_mins(3));
    assert!(bed.faults.planned.is_none(), "the write was hit");
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
    assert_eq!((bed.shown("one"), marks(&bed)), (14, BTreeSet::new()));
}

#[test]
fn agents_of_other_projects_have_a_minute() {
    let mut bed = bed(14);
    let none = json!({"metadata": {"annotations": null}});
    bed.change("one", &none);
    let given = shrink(&mut bed, 10);
    bed.until(Duration::from_mins(4), "marks", |bed| marks(bed) == given);
    bed.run(Duration::from_secs(55));
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
    bed.until(SOON, "a call", |bed| {
        bed.calls("UnassignPrivateIpAddresses") > 0
    });
}

#[test]
fn a_new_leader_finishes_what_is_marked_and_shows_it_to_nobody() {
    let mut bed = bed(14);
    let given = shrink(&mut bed, 10);
    bed.until(Duration::from_mins(4), "marks", |bed| marks(bed) == given);
    bed.kill();
    bed.run(Duration::from_mins(1));
    bed.lead();
    bed.run(Duration::from_secs(15));
    assert_eq!(
        bed.calls("UnassignPrivateIpAddresses"),
        0,
        "the grace begins again"
    );
    let mut most = 0;
    for _ in 0..60 {
        bed.run(Duration::from_secs(5));
        most = most.max(bed.shown("one"));
    }
    assert_eq!((most, marks(&bed)), (10, BTreeSet::new()));
    assert!(bed.calls("UnassignPrivateIpAddresses") > 0);
}

#[test]
fn an_object_that_is_made_again_gets_back_what_is_left() {
    let mut bed = bed(14);
    shrink(&mut bed, 10);
    bed.until(Duration::from_mins(4), "marks", |bed| {
        !marks(bed).is_empty()
    });
    let now = bed.now;
    bed.api.delete("one", now);
    bed.add_object("one", "m5.large", "subnet-a");
    bed.request("one", 14);
    bed.until(Duration::from_mins(2), "addresses", |bed| {
        bed.shown("one") >= 14
    });
    bed.run(Duration::from_mins(5));
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
    bed.assert_true("made again");
}

/// A call in flight can still unassign blocks. An object that is created again has no marks of them.
#[test]
fn a_block_of_a_call_in_flight_is_not_shown_again() {
    let mut bed = bed(14);
    let given = shrink(&mut bed, 10);
    bed.until(Duration::from_mins(4), "marks", |bed| marks(bed) == given);
    bed.faults.planned = Some(Planned {
        what: "UnassignPrivateIpAddresses",
        skip: 0,
        fault: Fault::Late(Duration::from_secs(4)),
        kills: false,
    });
    bed.until(Duration::from_mins(1), "a call", |bed| {
        bed.faults.planned.is_none()
    });
    let now = bed.now;
    bed.api.delete("one", now);
    bed.add_object("one", "m5.large", "subnet-a");
    for _ in 0..60 {
        bed.run(Duration::from_secs(1));
        bed.assert_true("a call in flight");
    }
    assert_eq!(bed.shown("one"), 10);
}

/// Puts an object back, as when the API server is restored from a backup.
fn restore(bed: &mut Bed, object: Value) {
    bed.api.objects.insert("one".to_owned(), object.clone());
    bed.lead_from(vec![object]);
}

#[test]
fn an_object_of_a_backup_answers_for_no_block() {
    let mut bed = bed(14);
    let mut backup = bed.api.objects["one"].clone();
    backup["metadata"]["resourceVersion"] = json!("1");
    backup["spec"]["ipam"]["pools"] = json!({
        "requested": [{"pool": "default", "needed": {"ipv4-addrs": 10}}], "allocated": []
    });
    restore(&mut bed, backup);
    bed.run(Duration::from_mins(10));
    assert_eq!((marks(&bed), bed.shown("one")), (BTreeSet::new(), 14));
}

#[test]
fn marks_of_a_backup_are_void() {
    let mut bed = bed(14);
    let all = singles(&bed);
    let given = shrink(&mut bed, 10);
    bed.until(Duration::from_mins(4), "marks", |bed| marks(bed) == given);
    let backup = bed.api.objects["one"].clone();
    claim(&mut bed, &all);
    bed.request("one", 14);
    bed.until(SOON, "the blocks", |bed| bed.shown("one") == 14);
    bed.run(SOON);
    // The agent claims them, so pods may have their addresses. It does not reach the API server.
    restore(&mut bed, backup);
    bed.run(Duration::from_mins(10));
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
    assert_eq!((marks(&bed), bed.shown("one")), (BTreeSet::new(), 14));
    assert_eq!(events(&bed, Reason::BlocksReleased), [""; 0]);
}

#[test]
fn nothing_goes_that_the_bounds_or_the_settings_keep() {
    let mut kept = bed(14);
    let above = json!({"spec": {"ipam": {"max-above-watermark": 4}}});
    kept.change("one", &above);
    shrink(&mut kept, 10);
    kept.run(Duration::from_mins(10));
    assert_eq!(marks(&kept), BTreeSet::new());
    let mut off = Bed::new(&world());
    off.add_node("one", "m5.large", "subnet-a");
    off.request("one", 9);
    off.run(Duration::from_secs(30));
    off.lead();
    off.until(Duration::from_mins(1), "addresses", |bed| {
        bed.shown("one") >= 9
    });
    let all = singles(&off);
    claim(&mut off, &all);
    off.run(Duration::from_secs(10));
    shrink(&mut off, 8);
    off.run(Duration::from_mins(10));
    assert_eq!((marks(&off), off.shown("one")), (BTreeSet::new(), 9));
}

/// The agent asks for eight addresses, and claims the blocks of its first ENI alone.
fn claim_the_primary_alone(bed: &mut Bed) {
    let enis = bed.cloud.interfaces();
    let primary: BTreeSet<String> = enis
        .filter(|eni| eni.attachment.as_ref().is_some_and(|it| it.index == 0))
        .flat_map(|eni| eni.addresses.blocks.iter().map(ToString::to_string))
        .collect();
    bed.request("one", 8);
    claim(bed, &primary);
}

#[test]
fn an_empty_eni_of_the_operator_goes_after_ten_minutes() {
    let mut bed = bed(14);
    assert_eq!(bed.cloud.interfaces().count(), 2);
    // Those of the second ENI go first: it is then empty.
    let before = bed.cloud.interfaces().count();
    claim_the_primary_alone(&mut bed);
    bed.until(Duration::from_mins(8), "no blocks left", |bed| {
        let blocks = bed.cloud.interfaces().map(|eni| eni.addresses.blocks.len());
        blocks.sum::<usize>() <= 9
    });
    bed.run(Duration::from_mins(8));
    assert_eq!(bed.cloud.interfaces().count(), before);
    bed.until(Duration::from_mins(6), "one ENI", |bed| {
        bed.cloud.interfaces().count() == 1
    });
    let enis = bed.api.objects["one"]["status"]["eni"]["enis"].as_object();
    assert_eq!(enis.map(serde_json::Map::len), Some(1));
    bed.run(Duration::from_mins(10));
    assert_eq!(bed.cloud.interfaces().count(), 1);
    bed.assert_no_leaks("after the release");
}

/// The node gives back all that its second ENI has, while a fault hits the operator.
fn release_with(planned: Planned) {
    let what = format!("{planned:?}");
    let mut bed = bed(14);
    claim_the_primary_alone(&mut bed);
    // The next write of the status is the one with the marks.
    bed.faults.planned = Some(planned);
    for _ in 0..160 {
        bed.run(Duration::from_secs(10));
        if !bed.lease.is_led {
            bed.run(Duration::from_secs(17));
            bed.lead();
            // Its agent writes its claims now and then, and so answers for what it does not claim.
            bed.request("one", 7);
            bed.run(Duration::from_secs(5));
            bed.request("one", 8);
        }
        bed.assert_true(&what);
    }
    assert!(bed.faults.planned.is_none(), "{what}: nothing was hit");
    assert_eq!(bed.cloud.interfaces().count(), 1, "{what}");
    assert_eq!(marks(&bed), BTreeSet::new(), "{what}");
    assert!(bed.shown("one") >= 8, "{what}");
    bed.assert_no_leaks(&what);
}

#[test]
fn every_step_of_a_release_hit_by_every_fault_heals() {
    let works = [
        ("UnassignPrivateIpAddresses", 1),
        ("DetachNetworkInterface", 1),
        ("DeleteNetworkInterface", 1),
        ("status", 3),
    ];
    for (what, count) in works {
        for skip in 0..count {
            for fault in Fault::ALL {
                for kills in [false, true] {
                    release_with(Planned {
                        what,
                        skip,
                        fault,
                        kills,
                    });
                }
            }
        }
    }
}

#[test]
fn a_release_call_of_a_dead_operator_that_comes_ten_minutes_late_takes_nothing_published() {
    for what in [
        "UnassignPrivateIpAddresses",
        "DetachNetworkInterface",
        "DeleteNetworkInterface",
    ] {
        release_with(Planned {
            what,
            skip: 0,
            fault: Fault::Late(Duration::from_mins(10)),
            kills: true,
        });
    }
}
