//! One node from its first sight on.

use std::time::Duration;

use ec2_fake::Span;
use serde_json::json;

use super::bed::{Bed, Fault, Planned, world};

const SOON: Duration = Duration::from_secs(20);

fn bed() -> Bed {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(Duration::from_secs(30));
    bed.lead();
    bed
}

#[test]
fn a_node_gets_its_addresses_and_an_eni_when_the_first_is_full() {
    let mut bed = bed();
    let took = bed.until(SOON, "8 addresses", |bed| bed.shown("one") >= 8);
    assert!(took <= Duration::from_secs(3), "{took:?}");
    bed.request("one", 12);
    bed.until(SOON, "12 addresses", |bed| bed.shown("one") >= 12);
    bed.run(Duration::from_mins(2));
    let enis = bed.api.objects["one"]["status"]["eni"]["enis"].as_object();
    assert_eq!(enis.map(serde_json::Map::len), Some(2));
    let unmarked = bed
        .cloud
        .interfaces()
        .filter(|it| !it.attachment.as_ref().unwrap().delete_on_termination);
    assert_eq!(unmarked.count(), 0);
    assert_eq!(bed.report("one"), "");
    assert!(bed.api.writes["one"] <= 4, "{:?}", bed.api.writes);
}

#[test]
fn an_idle_operator_writes_nothing_and_reads_seldom() {
    let mut bed = bed();
    bed.run(Duration::from_mins(5));
    let (writes, calls) = (bed.api.writes["one"], bed.cloud.log().count());
    bed.run(Duration::from_hours(1));
    assert_eq!(bed.api.writes["one"], writes);
    let calls = bed.cloud.log().count() - calls;
    assert!(calls <= 720, "{calls} calls in an hour");
}

#[test]
fn an_older_agent_gets_both_forms_of_its_addresses() {
    let mut bed = bed();
    bed.change("one", &json!({"spec": {"ipam": {"pools": null}}}));
    bed.until(SOON, "a flat pool", |bed| {
        let ipam = &bed.api.objects["one"]["spec"]["ipam"];
        let flat = ipam["pool"].as_object().map_or(0, serde_json::Map::len);
        let cidrs = ipam["pools"]["allocated"][0]["cidrs"].as_array();
        flat == 8 && cidrs.is_some_and(|it| it.len() == 8)
    });
    // The event of the status comes after the answer to the write of the spec.
    bed.run(Duration::from_secs(5));
    assert_eq!(bed.api.conflicts, 0);
}

#[test]
fn a_new_leader_takes_over_without_a_change() {
    let mut bed = bed();
    bed.request("one", 12);
    bed.run(Duration::from_mins(2));
    let (status, writes) = (
        bed.api.objects["one"]["status"].clone(),
        bed.api.writes["one"],
    );
    let creations = bed.calls("CreateNetworkInterface");
    bed.kill();
    bed.lead();
    bed.run(Duration::from_mins(5));
    assert_eq!(bed.api.objects["one"]["status"], status);
    assert_eq!(bed.api.writes["one"], writes);
    assert_eq!(bed.calls("CreateNetworkInterface"), creations);
    assert_eq!(bed.loose(), Vec::<String>::new());
}

#[test]
fn a_node_that_wants_ipv6_gets_one_prefix_beside_its_addresses() {
    let mut bed = bed();
    let needed = json!({"ipv4-addrs": 8, "ipv6-addrs": 16});
    let requested = json!([{"pool": "default", "needed": needed}]);
    let patch = json!({"spec": {"ipam": {"pools": {"requested": requested}}}});
    bed.change("one", &patch);
    bed.until(SOON, "a prefix", |bed| bed.ipv6_prefixes("one") == 1);
    bed.run(Duration::from_mins(5));
    assert_eq!(bed.ipv6_prefixes("one"), 1);
    assert_eq!(bed.shown("one"), 8);
}

/// The time until each of many nodes has its addresses, with or without a node whose calls EC2 never
/// answers.
fn served(action: &str, is_stuck: bool) -> Vec<Duration> {
    let mut world = world();
    // Nothing is drawn, so that both runs are the same but for the node.
    world.settings.attach = Span::new(1_000, 1_000);
    world.settings.attached = Span::new(200, 200);
    world.settings.lag_listing = Span::new(0, 0);
    world.settings.lag_by_id = Span::new(0, 0);
    let mut bed = Bed::new(&world);
    let names: Vec<String> = (0..20).map(|number| format!("n{number:02}")).collect();
    for name in ["stuck"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
    {
        bed.add_node(name, "m5.large", "subnet-a");
        // One ENI more than the primary one.
        bed.request(name, 12);
    }
    bed.run(Duration::from_secs(30));
    if is_stuck {
        let is_its = |eni: &ec2_fake::Eni| {
            let attachment = eni.attachment.as_ref();
            attachment.is_some_and(|it| it.instance == "i-stuck")
        };
        let names = match action {
            "AssignPrivateIpAddresses" => {
                let eni = bed.cloud.interfaces().find(|it| is_its(it));
                eni.unwrap().id.clone()
            }
            _ => "i-stuck".to_owned(),
        };
        let fault = json!({"action": action, "names": names, "count": 1_000, "kind": "unheard"});
        bed.cloud.inject(serde_json::from_value(fault).unwrap());
    }
    bed.lead();
    let begun = bed.now;
    let mut times = Vec::new();
    let mut waiting: Vec<&str> = names.iter().map(String::as_str).collect();
    while !waiting.is_empty() {
        bed.run(Duration::from_millis(50));
        waiting.retain(|name| {
            let is_served = bed.shown(name) >= 12;
            if is_served {
                times.push(bed.now.since(begun));
            }
            !is_served
        });
        assert!(bed.now.since(begun) < Duration::from_mins(1), "{waiting:?}");
    }
    assert_eq!(bed.shown("stuck") >= 12, !is_stuck, "{action}");
    times
}

#[test]
fn r15_calls_without_an_answer_for_one_node_delay_the_others_by_less_than_a_second() {
    for action in ["AttachNetworkInterface", "AssignPrivateIpAddresses"] {
        let usual = served("none", false);
        let beside = served(action, true);
        for (usual, beside) in usual.iter().zip(&beside) {
            let delay = beside.saturating_sub(*usual);
            assert!(delay <= Duration::from_secs(1), "{action}: {delay:?}");
        }
    }
}

#[test]
fn a_call_that_is_never_answered_keeps_no_other_node_waiting() {
    let mut bed = Bed::new(&world());
    for name in ["one", "two", "three"] {
        bed.add_node(name, "m5.large", "subnet-a");
    }
    bed.run(Duration::from_secs(30));
    bed.faults.planned = Some(Planned {
        what: "AssignPrivateIpAddresses",
        skip: 0,
        fault: Fault::Unsent,
        kills: false,
    });
    bed.lead();
    let served = |bed: &Bed| {
        bed.api
            .objects
            .keys()
            .filter(|it| bed.shown(it) >= 8)
            .count()
    };
    bed.until(Duration::from_secs(3), "two nodes", |bed| served(bed) == 2);
    bed.until(Duration::from_mins(2), "all nodes", |bed| served(bed) == 3);
    assert_eq!(bed.calls("AssignPrivateIpAddresses"), 3);
}

/// Reads are gathered for two seconds. A node may come just after the reads for another one.
#[test]
fn a_new_node_has_its_first_address_within_three_seconds() {
    let mut bed = bed();
    let names: Vec<String> = (0..40).map(|number| format!("node{number}")).collect();
    for name in &names {
        let instance = json!({
            "id": format!("i-{name}"), "type": "m5.large", "subnet": "subnet-a", "groups": ["sg-1"]
        });
        let date = bed.at().date;
        let spec = serde_json::from_value(instance).unwrap();
        bed.cloud.start(&spec, date).unwrap();
    }
    bed.run(Duration::from_mins(1));
    for (number, name) in (0..).zip(&names) {
        bed.add_object(name, "m5.large", "subnet-a");
        // The operator is busy with something else shortly before the next reads.
        bed.run(Duration::from_millis(1_000 + 25 * number));
        let left = Duration::from_millis(2_000 - 25 * number);
        bed.until(left, "the first address", |bed| bed.shown(name) > 0);
        bed.run(Duration::from_millis(70 * number));
    }
}
