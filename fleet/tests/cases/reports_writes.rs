//! Reports of users of other operators about writes of objects.

use std::time::Duration;

use fleet::{ReleaseMode, Settings};
use serde_json::{Value, json};

use super::bed::{Bed, CLUSTER, world};

const MINUTE: Duration = Duration::from_mins(1);
const SECOND: Duration = Duration::from_secs(1);

fn bed() -> Bed {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(MINUTE);
    bed.lead();
    bed
}

/// Another controller writes at an interval of milliseconds. The operator sees each write so many
/// milliseconds later.
fn write_until_served(bed: &mut Bed, interval: u64, lag: u64) -> Duration {
    bed.api.lag = Duration::from_millis(lag);
    let begun = bed.now;
    let mut count = 0;
    while bed.shown("one") < 8 {
        count += 1;
        let count = count.to_string();
        bed.change(
            "one",
            &json!({"metadata": {"annotations": {"count": count}}}),
        );
        bed.run(Duration::from_millis(interval));
        assert!(bed.now.since(begun) <= MINUTE, "{:?}", bed.api.conflicts);
    }
    bed.now.since(begun)
}

#[test]
fn r34_a_third_writer_keeps_nobody_waiting() {
    let took = write_until_served(&mut bed(), 20, 5);
    assert!(took <= SECOND * 8, "{took:?}");
}

#[test]
fn r34_a_writer_that_is_always_first_keeps_nobody_waiting_long() {
    let mut bed = bed();
    let took = write_until_served(&mut bed, 17, 14);
    assert!(bed.api.conflicts > 0);
    assert!(took <= SECOND * 8, "{took:?}");
}

/// Each ENI that the spec names is in the status with its CIDRs, and foreign fields are there.
fn assert_shown(object: &Value) {
    let enis = &object["status"]["eni"]["enis"];
    let pool = object["spec"]["ipam"]["pool"].as_object();
    for (_, entry) in pool.into_iter().flatten() {
        let eni = entry["resource"].as_str().unwrap();
        assert!(enis[eni]["subnet"]["cidr"].is_string(), "{eni}: {enis}");
        assert!(enis[eni]["vpc"]["primary-cidr"].is_string());
    }
    assert_eq!(object["spec"]["ipam"]["podCIDRs"][0], "10.9.0.0/24");
    assert_eq!(object["status"]["x"], 1);
}

#[test]
fn r35_r36_a_spec_names_no_eni_that_the_status_lacks_and_foreign_fields_stay() {
    let mut bed = bed();
    let foreign =
        json!({"spec": {"ipam": {"podCIDRs": ["10.9.0.0/24"], "pools": null}}, "status": {"x": 1}});
    bed.change("one", &foreign);
    for wanted in 0..60 {
        bed.change("one", &used(wanted.min(14)));
        let end = bed.now.after(SECOND);
        // Each write is seen by itself.
        bed.until(SECOND * 2, "a second", |bed| {
            assert_shown(&bed.api.objects["one"]);
            bed.now >= end
        });
    }
    assert!(bed.shown("one") >= 22);
}

/// Fields of agents, of other controllers and of other versions.
fn foreign() -> Value {
    json!({
        "metadata": {
            "labels": {"kubernetes.io/hostname": "one", "a": ""},
            "annotations": {"example.com/note": "\u{e4} \"quoted\"\n", "ipam.towpath.dev/x": "1"},
            "finalizers": ["example.com/hold"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "one", "uid": "u"}]
        },
        "spec": {
            "addresses": [{"type": "InternalIP", "ip": "10.1.0.4"}, {"type": "X", "ip": ""}],
            "bootid": "b", "encryption": {"key": 3}, "health": {"ipv4": "10.9.0.1"},
            "ingress": {}, "nodeidentity": 1,
            "alibaba-cloud": {"instance-type": "x"}, "azure": {"interface-name": "y"},
            "eni": {"disable-prefix-delegation": false, "later": {"a": [1, {"b": null}]}},
            "ipam": {
                "podCIDRs": ["10.9.0.0/24"], "later": [], "static-ip-tags": {},
                "pools": {"later": {"x": 1.5}}
            },
            "later": [[], {}, "", 0, -1, 1e30, true]
        },
        "status": {
            "x": 1, "alibaba-cloud": {"enis": {"e": {}}}, "azure": {"interfaces": [{"id": "z"}]},
            "eni": {"later": ["a"]},
            "ipam": {"assigned-static-ip": "", "later": {"x": [null]}, "operator-status": {"y": 2}}
        }
    })
}

/// Checks that each value of `part` is in `whole`, and those of lists in their order.
fn assert_within(part: &Value, whole: &Value, path: &str) {
    match part {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                assert_within(value, &whole[key], &format!("{path}.{key}"));
            }
        }
        value => assert_eq!(whole, value, "{path}"),
    }
}

/// A node gets ENIs, gives them back and is named for faults; its agents change their generation.
#[test]
fn r36_no_write_changes_a_field_of_others() {
    let mut settings = Settings {
        release: ReleaseMode::On,
        ..Settings::of(CLUSTER)
    };
    settings.pools.advertised = true;
    let mut bed = Bed::with(&world(), settings);
    bed.add_node("one", "m5.large", "subnet-a");
    bed.change("one", &foreign());
    let expected = {
        let mut expected = json!({});
        json_patch::merge(&mut expected, &foreign());
        expected
    };
    let spec = json!({"ipv4": {"cidrs": ["172.16.0.0/24"], "maskSize": 28}});
    bed.api.set_pool("green", &spec, bed.now);
    bed.run(MINUTE);
    bed.lead();
    let pools = |ipv4: u32, ipv6: u32, green: u32| {
        json!([
            {"pool": "default", "needed": {"ipv4-addrs": ipv4, "ipv6-addrs": ipv6}},
            {"pool": "green", "needed": {"ipv4-addrs": green}}
        ])
    };
    let steps = [
        json!({"spec": {"ipam": {"pools": {"requested": pools(8, 0, 0)}}}}),
        json!({"spec": {"ipam": {"pools": {"requested": pools(18, 16, 20)}}}}),
        json!({"spec": {"ipam": {"pools": {"requested": pools(500, 16, 20)}}}}),
        json!({"spec": {"ipam": {"pools": {"requested": null}}}}),
        used(4),
        json!({"status": {"ipam": {"used": null}}}),
        json!({"spec": {"ipam": {"pools": {"requested": pools(8, 0, 0), "allocated": []}}},
            "metadata": {"annotations": {"ipam.towpath.dev/agent": "1.0.0"}}}),
        json!({"spec": {"ipam": {"pools": {"requested": pools(7, 0, 0)}}}}),
        json!({"spec": {"eni": {"subnet-ids": 7}}}),
    ];
    for step in steps {
        bed.change("one", &step);
        for _ in 0..30 {
            bed.run(SECOND * 10);
            assert_within(&expected, &bed.api.objects["one"], "");
        }
    }
    assert!(bed.api.writes["one"] >= 8, "{:?}", bed.api.writes);
    assert!(bed.calls("UnassignPrivateIpAddresses") > 0);
}

fn used(count: u32) -> Value {
    let used = (0..count).map(|n| (format!("10.99.0.{n}"), json!({"owner": "a/b"})));
    json!({"status": {"ipam": {"used": Value::Object(used.collect())}}})
}
