//! Extended resources of Nodes: the addresses that the scheduler counts.

use std::time::Duration;

use fleet::Settings;
use serde_json::{Value, json};

use super::bed::{Bed, CLUSTER, Fault, Planned, document, world, world_of};
use super::plain::{blocks, set_pool, small, want};

const SOON: Duration = Duration::from_secs(30);

fn settings() -> Settings {
    let mut settings = Settings::of(CLUSTER);
    settings.pools.advertised = true;
    settings
}

fn numbers(bed: &Bed, node: &str) -> Value {
    bed.api.advertised[node].0.clone()
}

fn writes(bed: &Bed) -> u32 {
    bed.api.advertised.values().map(|it| it.1).sum()
}

#[test]
fn nodes_have_what_they_can_have_as_extended_resources() {
    let mut bed = Bed::with(&world(), settings());
    bed.add_node("one", "m5.large", "subnet-a");
    set_pool(&mut bed, "green", &small(&["172.16.0.0/28"]));
    want(&mut bed, "two", "green", [8, 0]);
    bed.lead();
    bed.run(SOON * 2);
    // 3 ENIs of 9 addresses, and two of four blocks.
    let one = json!({"towpath.dev/ipv4-default": "27", "towpath.dev/ipv4-green": "8"});
    assert_eq!(numbers(&bed, "one"), one);
    assert_eq!(
        numbers(&bed, "two"),
        json!({"towpath.dev/ipv4-green": "16"})
    );
    let before = writes(&bed);
    bed.run(SOON * 20);
    assert_eq!(
        writes(&bed),
        before,
        "nothing is written where nothing changes"
    );
    want(&mut bed, "three", "green", [8, 0]);
    bed.change("one", &json!({"spec": {"ipam": {"max-allocate": 12}}}));
    bed.run(SOON);
    let one = json!({"towpath.dev/ipv4-default": "12", "towpath.dev/ipv4-green": "0"});
    assert_eq!(numbers(&bed, "one"), one);
    bed.api.delete("two", bed.now);
    bed.api.delete("three", bed.now);
    set_pool(&mut bed, "green", &Value::Null);
    bed.run(SOON);
    assert_eq!(
        numbers(&bed, "one"),
        json!({"towpath.dev/ipv4-default": "12"})
    );
}

/// Each block that a node takes changes what all others can have.
#[test]
fn every_node_has_its_turn_while_numbers_change() {
    let mut bed = Bed::with(&world(), settings());
    set_pool(&mut bed, "green", &small(&["172.16.0.0/16"]));
    let name = |number: u32| format!("n{number:03}");
    for number in 0..450 {
        want(&mut bed, &name(number), "green", [1, 0]);
    }
    bed.lead();
    bed.run(SOON);
    for more in 2..10 {
        let before = numbers(&bed, "n449");
        let early = writes(&bed);
        // The three comparisons of 30 seconds cover all nodes.
        for step in 0..3 {
            want(&mut bed, &name(step), "green", [4 * more, 0]);
            bed.run(Duration::from_secs(10));
        }
        assert_ne!(numbers(&bed, "n449"), before, "{more}");
        assert!(writes(&bed) - early <= 3 * 200, "no more than 20 a second");
    }
    bed.run(SOON);
    let blocks = u64::try_from(blocks(&bed, "n000").len()).unwrap();
    let all = (0..450).map(|number| {
        let number = numbers(&bed, &name(number))["towpath.dev/ipv4-green"].clone();
        number.as_str().unwrap().parse::<u64>().unwrap()
    });
    let all: Vec<u64> = all.collect();
    assert_eq!(
        all[0] - all[449],
        4 * (blocks - 1),
        "the same free blocks for all"
    );
}

#[test]
fn a_number_is_written_every_ten_seconds_at_most() {
    let mut bed = Bed::with(&world(), settings());
    set_pool(&mut bed, "green", &small(&["172.16.0.0/16"]));
    want(&mut bed, "one", "green", [1, 0]);
    bed.lead();
    bed.run(SOON);
    let before = bed.api.advertised["one"].1;
    for more in 2..62 {
        want(&mut bed, "one", "green", [4 * more, 0]);
        want(&mut bed, "two", "green", [4 * more, 0]);
        bed.run(Duration::from_secs(1));
    }
    let written = bed.api.advertised["one"].1 - before;
    assert!((5..=7).contains(&written), "{written} writes in 60 s");
}

#[test]
fn subnets_that_a_node_cannot_have_are_no_room() {
    let mut document = document();
    let small = json!({"id": "subnet-b", "vpc": "vpc-1", "zone": "a", "ipv4": "10.2.0.0/28"});
    let other = json!({"id": "subnet-c", "vpc": "vpc-1", "zone": "a", "ipv4": "10.3.0.0/16"});
    document["subnets"] = json!([small, other]);
    let mut bed = Bed::with(&world_of(document), settings());
    bed.add_node("one", "m5.large", "subnet-b");
    bed.change(
        "one",
        &json!({"spec": {"eni": {"subnet-ids": ["subnet-b"]}}}),
    );
    bed.lead();
    bed.run(SOON * 2);
    // Of 16 addresses, EC2 keeps five, and the instance has one.
    let ten = json!({"towpath.dev/ipv4-default": "10"});
    assert_eq!(numbers(&bed, "one"), ten);
}

#[test]
fn both_families_of_a_pool_are_resources() {
    let mut bed = Bed::with(&world(), settings());
    let pool = json!({
        "ipv4": {"cidrs": ["172.16.0.0/28"], "maskSize": 30},
        "ipv6": {"cidrs": ["fd00::/124"], "maskSize": 126}
    });
    set_pool(&mut bed, "green", &pool);
    want(&mut bed, "one", "green", [1, 1]);
    bed.lead();
    bed.run(SOON);
    // Without their first and last addresses, four blocks of each family have two each.
    let both = json!({"towpath.dev/ipv4-green": "8", "towpath.dev/ipv6-green": "8"});
    assert_eq!(numbers(&bed, "one"), both);
}

#[test]
fn a_write_that_fails_is_named_and_repeated() {
    let mut bed = Bed::with(&world(), settings());
    set_pool(&mut bed, "green", &small(&["172.16.0.0/28"]));
    want(&mut bed, "one", "green", [1, 0]);
    let planned = Planned {
        what: "advertise",
        skip: 0,
        fault: Fault::Unsent,
        kills: false,
    };
    bed.faults.planned = Some(planned);
    bed.lead();
    let findings = |bed: &Bed| bed.fleet.why("one", bed.at()).unwrap().findings;
    let named = "extended resources of the Node are not written: no reply";
    bed.until(SOON, "the finding", |bed| findings(bed) == [named]);
    bed.until(SOON, "the write", |bed| {
        bed.api.advertised.contains_key("one")
    });
    bed.run(Duration::from_secs(1));
    assert_eq!(findings(&bed), [""; 0]);
}
