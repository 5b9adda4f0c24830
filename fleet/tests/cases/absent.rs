//! Objects that are absent for longer than every age of a sweep, while their instances run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ec2_fake::{AttachState, Eni};
use fleet::{ReleaseMode, Settings};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::bed::{Bed, CLUSTER, world};

const MINUTE: Duration = Duration::from_mins(1);
/// Longer than the age of a swept ENI, the idle time of a released one and the doubt of a listing.
const LONG: Duration = Duration::from_mins(25);

/// Two nodes with two ENIs each, one of them with an IPv6 prefix, and an operator that releases.
fn bed(prefixes: bool) -> Bed {
    let mut settings = Settings {
        release: ReleaseMode::On,
        ..Settings::of(CLUSTER)
    };
    settings.enis.prefixes = prefixes;
    let mut bed = Bed::with(&world(), settings);
    for name in ["one", "two"] {
        bed.add_node(name, "m5.large", "subnet-a");
        want(&mut bed, name, wanted(prefixes));
    }
    bed.set_hosts(&["one", "two"]);
    bed.run(MINUTE);
    bed.lead();
    bed.until(MINUTE * 3, "addresses", |bed| {
        let has = |name| bed.shown(name) >= wanted(prefixes) && bed.ipv6_prefixes(name) == 1;
        has("one") && has("two")
    });
    bed.run(MINUTE * 2);
    bed
}

/// More addresses than one ENI has.
fn wanted(prefixes: bool) -> usize {
    if prefixes { 9 * 16 + 1 } else { 14 }
}

fn want(bed: &mut Bed, name: &str, ipv4: usize) {
    let needed = json!({"ipv4-addrs": ipv4, "ipv6-addrs": 16});
    let pools = json!({"requested": [{"pool": "default", "needed": needed}]});
    let patch = json!({
        "metadata": {"annotations": {"ipam.towpath.dev/agent": "1.0.0"}},
        "spec": {"ipam": {"pools": pools}}
    });
    bed.change(name, &patch);
}

/// The blocks of each ENI of a node's instance, as EC2 has them.
fn attached(bed: &Bed, name: &str) -> BTreeMap<String, BTreeSet<IpNet>> {
    let instance = format!("i-{name}");
    let is_there = |eni: &Eni| {
        let attachment = eni.attachment.as_ref();
        attachment.is_some_and(|it| it.instance == instance && it.state == AttachState::Attached)
    };
    let enis = bed.cloud.interfaces().filter(|it| is_there(it));
    enis.map(|eni| (eni.id.clone(), eni.addresses.blocks.clone()))
        .collect()
}

/// The ENIs of a node's status.
fn shown(bed: &Bed, name: &str) -> Value {
    bed.api.objects[name]["status"]["eni"]["enis"].clone()
}

/// Nodes are absent with their objects, twice as long as any age, under two leaders.
fn be_absent(bed: &mut Bed, names: &[&str]) {
    let now = bed.now;
    for name in names {
        bed.api.delete(name, now);
    }
    let all = ["one", "two"].into_iter();
    let left: Vec<&str> = all.filter(|name| !names.contains(name)).collect();
    bed.set_hosts(&left);
    bed.run(LONG);
    bed.kill();
    bed.run(Duration::from_secs(17));
    bed.lead();
    bed.set_hosts(&left);
    bed.run(LONG);
}

#[test]
fn an_instance_that_runs_keeps_its_enis_while_its_objects_are_absent() {
    let cases = [
        (false, &["one"][..]),
        (true, &["one"]),
        (false, &["one", "two"]),
    ];
    for (prefixes, names) in cases {
        let mut bed = bed(prefixes);
        let before: Vec<_> = names
            .iter()
            .map(|it| (attached(&bed, it), shown(&bed, it)))
            .collect();
        assert!(before.iter().all(|(enis, _)| enis.len() == 2), "{before:?}");
        be_absent(&mut bed, names);
        for action in [
            "DetachNetworkInterface",
            "DeleteNetworkInterface",
            "UnassignPrivateIpAddresses",
            "UnassignIpv6Addresses",
        ] {
            assert_eq!(bed.calls(action), 0, "{names:?}: {action}");
        }
        for (name, (enis, _)) in names.iter().zip(&before) {
            assert_eq!(attached(&bed, name), *enis, "{name} is absent");
            bed.add_object(name, "m5.large", "subnet-a");
            want(&mut bed, name, wanted(prefixes));
        }
        bed.set_hosts(&["one", "two"]);
        for (name, (_, status)) in names.iter().zip(&before) {
            bed.until(MINUTE, "its ENIs again", |bed| shown(bed, name) == *status);
        }
        let changes = bed.calls("CreateNetworkInterface") + bed.calls("AttachNetworkInterface");
        bed.run(LONG);
        let now = bed.calls("CreateNetworkInterface") + bed.calls("AttachNetworkInterface");
        assert_eq!(now, changes, "{names:?}");
        assert_eq!(bed.calls("DetachNetworkInterface"), 0, "{names:?}");
        bed.assert_true("again");
        bed.assert_no_leaks("again");
    }
}
