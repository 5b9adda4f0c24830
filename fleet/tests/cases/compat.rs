//! `pools.allocated` by each setting, beside the flat pool, which older agents read. Objects whose
//! instance EC2 does not know.

use std::collections::BTreeSet;
use std::time::Duration;

use ec2_fake::{Fault, FaultKind};
use fleet::{ReleaseMode, Settings};
use kubernetes::operation::allocated::Compat;
use serde_json::{Map, Value, json};

use super::bed::{Bed, CLUSTER, world};
use super::release::{claim, marks, shrink, singles};

const MINUTE: Duration = Duration::from_mins(1);

/// Nodes of an agent with pools and of one without, and an operator that releases.
fn bed(compat: Compat) -> Bed {
    let settings = Settings {
        compat,
        release: ReleaseMode::On,
        ..Settings::of(CLUSTER)
    };
    let mut bed = Bed::with(&world(), settings);
    for name in ["one", "flat"] {
        bed.add_node(name, "m5.large", "subnet-a");
    }
    let agent = json!({"metadata": {"annotations": {"ipam.towpath.dev/agent": "1.0.0"}}});
    bed.change("one", &agent);
    bed.request("one", 14);
    bed.change("flat", &json!({"spec": {"ipam": {"pools": null}}}));
    bed.run(MINUTE / 2);
    bed.lead();
    bed.until(MINUTE * 2, "addresses", |bed| {
        bed.shown("one") >= 14 && bed.shown("flat") >= 8
    });
    bed.run(MINUTE);
    bed
}

/// The addresses of the flat pool, as blocks.
fn flat(bed: &Bed, name: &str) -> BTreeSet<String> {
    let pool = bed.api.objects[name]["spec"]["ipam"]["pool"].as_object();
    let addresses = pool.into_iter().flat_map(Map::keys);
    addresses.map(|address| format!("{address}/32")).collect()
}

/// The blocks of `pools.allocated`.
fn allocated(bed: &Bed, name: &str) -> BTreeSet<String> {
    let pools = &bed.api.objects[name]["spec"]["ipam"]["pools"]["allocated"];
    let pools = pools.as_array().into_iter().flatten();
    let blocks = pools.filter_map(|pool| pool["cidrs"].as_array()).flatten();
    let blocks = blocks.filter_map(Value::as_str);
    blocks.map(str::to_owned).collect()
}

#[test]
fn always_writes_at_each_change_and_releases_nothing() {
    let mut bed = bed(Compat::Always);
    let all = singles(&bed);
    assert_eq!(allocated(&bed, "one"), all);
    assert_eq!(flat(&bed, "flat").len(), bed.shown("flat"));
    assert_eq!(allocated(&bed, "flat"), flat(&bed, "flat"));
    // What the agent gives back is written again.
    shrink(&mut bed, 10);
    bed.run(MINUTE * 10);
    assert_eq!((marks(&bed), bed.shown("one")), (BTreeSet::new(), 14));
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
    assert_eq!(allocated(&bed, "one"), all);
    bed.request("one", 18);
    bed.until(MINUTE, "more addresses", |bed| bed.shown("one") >= 18);
    bed.run(MINUTE);
    assert_eq!(allocated(&bed, "one"), singles(&bed));
    bed.assert_true("always");
}

#[test]
fn never_leaves_the_claims_to_every_agent() {
    let mut bed = bed(Compat::Never);
    bed.request("one", 18);
    bed.until(MINUTE, "more addresses", |bed| bed.shown("one") >= 18);
    bed.run(MINUTE * 5);
    for name in ["one", "flat"] {
        assert_eq!(allocated(&bed, name), BTreeSet::new(), "{name}");
    }
    // An agent without pools has nothing else.
    assert_eq!(flat(&bed, "flat").len(), bed.shown("flat"));
    bed.assert_true("never");
}

#[test]
fn until_agent_leaves_the_claims_to_an_agent_that_asks_for_pools() {
    let mut bed = bed(Compat::UntilAgent);
    assert_eq!(allocated(&bed, "flat").len(), bed.shown("flat"));
    assert_eq!(allocated(&bed, "one"), BTreeSet::new());
    let all = singles(&bed);
    claim(&mut bed, &all);
    bed.run(MINUTE / 6);
    let given = shrink(&mut bed, 10);
    bed.until(MINUTE * 4, "marks", |bed| marks(bed) == given);
    bed.until(MINUTE * 2, "the release", |bed| marks(bed).is_empty());
    assert_eq!(allocated(&bed, "one"), &all - &given);
}

/// A node whose object names an instance that was never there.
fn unknown() -> Bed {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    bed.add_object("unknown", "m5.large", "subnet-a");
    bed.run(MINUTE);
    bed.lead();
    bed.run(MINUTE);
    bed.set_hosts(&["one", "unknown"]);
    bed.run(MINUTE * 10);
    assert!(bed.report("unknown").starts_with("InstanceGone: "));
    assert!(bed.api.objects.contains_key("unknown"), "its Node is there");
    bed
}

#[test]
fn an_object_goes_when_its_node_is_absent_and_ec2_does_not_know_its_instance() {
    let mut bed = unknown();
    bed.set_hosts(&["one"]);
    bed.run(Duration::from_secs(290));
    assert!(bed.api.objects.contains_key("unknown"), "it is too early");
    bed.until(MINUTE * 2, "it goes", |bed| {
        !bed.api.objects.contains_key("unknown")
    });
    bed.run(MINUTE * 10);
    assert!(bed.api.objects.contains_key("one"));
}

#[test]
fn an_object_stays_while_ec2_does_not_say_whether_there_is_its_instance() {
    let mut bed = unknown();
    bed.cloud.inject(Fault {
        action: "DescribeInstances".to_owned(),
        names: None,
        skip: 0,
        count: u32::MAX,
        kind: FaultKind::Refused("InternalError".to_owned()),
    });
    bed.set_hosts(&["one"]);
    bed.run(MINUTE * 20);
    assert!(bed.api.objects.contains_key("unknown"));
}
