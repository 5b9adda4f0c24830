//! Reports of users of other operators about writes of objects.

use std::time::Duration;

use serde_json::{Value, json};

use super::bed::{Bed, world};

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

fn used(count: u32) -> Value {
    let used = (0..count).map(|n| (format!("10.99.0.{n}"), json!({"owner": "a/b"})));
    json!({"status": {"ipam": {"used": Value::Object(used.collect())}}})
}
