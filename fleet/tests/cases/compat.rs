//! `pools.allocated` by each setting, beside the flat pool, which older agents read. Objects whose
//! instance EC2 does not know.

use std::collections::BTreeSet;
use std::time::Duration;

use ec2_fake::{Ask, Assign, Call, Family, Fault, FaultKind, Request};
use fleet::{ReleaseMode, Settings};
use ipnet::IpNet;
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

/// A node of an agent that answers for each address uses this many of those that it is shown.
fn use_addresses(bed: &mut Bed, count: usize) {
    let shown = flat(bed, "flat").into_iter().take(count);
    let used = shown.map(|block| {
        let address = block.trim_end_matches("/32").to_owned();
        (address, json!({"owner": "a/b"}))
    });
    let used: Map<String, Value> = used.collect();
    bed.change("flat", &json!({"status": {"ipam": {"used": null}}}));
    bed.change("flat", &json!({"status": {"ipam": {"used": used}}}));
}

/// Such an agent answers, whatever the operator writes into its pools.
#[test]
fn always_asks_no_agent_for_addresses_back() {
    for (compat, is_asked) in [(Compat::Always, false), (Compat::UntilAgent, true)] {
        let mut bed = bed(compat);
        use_addresses(&mut bed, 6);
        bed.until(MINUTE, "more addresses", |bed| bed.shown("flat") >= 14);
        bed.run(MINUTE);
        use_addresses(&mut bed, 0);
        bed.run(MINUTE * 10);
        let words = &bed.api.objects["flat"]["status"]["ipam"]["release-ips"];
        let words = words.as_object().map_or(0, Map::len);
        assert_eq!(words > 0, is_asked, "{compat:?}: {words} words");
        assert_eq!(bed.shown("flat"), 14);
        assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
        bed.assert_true("asked");
    }
}

#[test]
fn always_leaves_an_eni_without_a_block_attached() {
    for (compat, left) in [(Compat::Always, 2), (Compat::UntilAgent, 1)] {
        let mut bed = bed(compat);
        let second = bed.cloud.interfaces().find(|eni| {
            let attachment = eni.attachment.as_ref();
            attachment.is_some_and(|it| it.instance == "i-one" && it.index == 1)
        });
        let second = second.unwrap();
        let unassign = Call::Unassign(Assign {
            family: Family::V4,
            eni: second.id.clone(),
            ask: Ask {
                addresses: second.addresses.blocks.iter().map(IpNet::addr).collect(),
                ..Ask::default()
            },
            reassign: false,
        });
        // The node needs them no more, and a stranger takes them.
        bed.request("one", 8);
        let request = Request {
            call: unassign,
            dry_run: false,
        };
        let date = bed.at().date;
        bed.cloud.call(date, "stranger", &request).outcome.unwrap();
        bed.run(MINUTE * 30);
        let enis = bed.cloud.interfaces().filter(|eni| {
            let attachment = eni.attachment.as_ref();
            attachment.is_some_and(|it| it.instance == "i-one")
        });
        assert_eq!(enis.count(), left, "{compat:?}");
    }
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
