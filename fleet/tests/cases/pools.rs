//! Pools that are bound to ENIs.

use std::time::Duration;

use cloud::object::tags;
use ec2_fake::world::World;
use ipam::node::POOL_TAG;
use serde_json::{Value, json};

use super::bed::{Bed, Fault, Planned, document, world_of};

const SOON: Duration = Duration::from_secs(30);

/// The cloud with two more subnets, one by id and one by its tags, and a group for each.
fn wide() -> World {
    let mut world = document();
    let subnets = world["subnets"].as_array_mut().unwrap();
    subnets.push(json!({
        "id": "subnet-blue", "vpc": "vpc-1", "zone": "a", "ipv4": "10.2.0.0/24"
    }));
    subnets.push(json!({
        "id": "subnet-red", "vpc": "vpc-1", "zone": "a", "ipv4": "10.3.0.0/24",
        "tags": {"tier": "red"}
    }));
    let groups = world["groups"].as_array_mut().unwrap();
    groups.push(json!({"id": "sg-blue", "vpc": "vpc-1", "name": "blue"}));
    groups.push(json!({"id": "sg-red", "vpc": "vpc-1", "name": "red", "tags": {"tier": "red"}}));
    world_of(world)
}

fn pool(name: &str, annotations: &[(&str, &str)]) -> Value {
    let annotations = annotations.iter();
    let annotations: serde_json::Map<String, Value> = annotations
        .map(|(key, value)| (format!("ipam.towpath.dev/{key}"), json!(value)))
        .collect();
    json!({"metadata": {"name": name, "annotations": annotations}})
}

fn blue_and_red() -> Vec<Value> {
    vec![
        pool(
            "blue",
            &[
                ("subnet-ids", "subnet-blue"),
                ("security-groups", "sg-blue"),
            ],
        ),
        pool(
            "red",
            &[
                ("subnet-tags", "tier=red"),
                ("security-group-tags", "tier=red"),
                ("eni-tags", "team=red"),
            ],
        ),
    ]
}

fn ask(bed: &mut Bed, name: &str, pools: &[(&str, u32)]) {
    let requested: Vec<Value> = pools
        .iter()
        .map(|(pool, count)| json!({"pool": pool, "needed": {"ipv4-addrs": count}}))
        .collect();
    let patch = json!({"spec": {"ipam": {"pools": {"requested": requested}}}});
    bed.change(name, &patch);
}

/// The addresses that the status of a node shows on ENIs of a pool.
fn shown(bed: &Bed, name: &str, pool: &str) -> usize {
    let enis = bed.api.objects[name]["status"]["eni"]["enis"].as_object();
    let of_pool = enis.into_iter().flatten().filter(|(_, eni)| {
        let tag = eni["tags"][POOL_TAG].as_str();
        tag.unwrap_or("default") == pool
    });
    of_pool
        .map(|(_, eni)| eni["addresses"].as_array().map_or(0, Vec::len))
        .sum()
}

#[test]
fn each_pool_gets_enis_in_its_subnets_with_its_groups_and_tags() {
    let mut bed = Bed::new(&wide());
    bed.watched.pools = Some(blue_and_red());
    let spec = json!({"ipv4": {"cidrs": ["172.16.0.0/24"], "maskSize": 28}});
    bed.api.set_pool("plain", &spec, bed.now);
    for name in ["one", "two"] {
        bed.add_node(name, "m5.4xlarge", "subnet-a");
        ask(
            &mut bed,
            name,
            &[("default", 8), ("blue", 5), ("red", 40), ("plain", 9)],
        );
    }
    bed.run(Duration::from_secs(30));
    bed.lead();
    for name in ["one", "two"] {
        for (pool, count) in [("default", 8), ("blue", 5), ("red", 40)] {
            bed.until(Duration::from_mins(2), pool, |bed| {
                shown(bed, name, pool) >= count
            });
        }
    }
    bed.run(Duration::from_mins(2));
    let (mut blue, mut red) = (0, 0);
    for eni in bed.cloud.interfaces() {
        let groups: Vec<&str> = eni.groups.iter().map(String::as_str).collect();
        match eni.tags.get(POOL_TAG).map(String::as_str) {
            Some("blue") => {
                blue += 1;
                assert_eq!(
                    (eni.placement.subnet.as_str(), &groups[..]),
                    ("subnet-blue", &["sg-blue"][..])
                );
            }
            Some("red") => {
                red += 1;
                assert_eq!(
                    (eni.placement.subnet.as_str(), &groups[..]),
                    ("subnet-red", &["sg-red"][..])
                );
                assert_eq!(eni.tags["team"], "red");
                assert!(eni.tags.contains_key(tags::INSTANCE));
            }
            _ => assert_eq!(groups, ["sg-1"], "{}", eni.id),
        }
    }
    assert_eq!((blue, red), (2, 4));
    bed.assert_no_leaks("pools");
    let views = bed.fleet.pools(bed.at());
    let of = |name: &str| views.iter().find(|it| it.name == name).unwrap();
    assert_eq!(
        (of("blue").enis, of("blue").addresses, of("blue").wanted),
        (2, 10, 10)
    );
    assert_eq!((of("red").nodes, of("red").addresses), (2, 80));
    assert_eq!(of("blue").plain, None);
    assert_eq!((of("plain").enis, of("plain").wanted), (0, 18));
    assert_eq!(bed.plain_pool("plain").ipv4.unwrap().taken, 2);
    assert_eq!((bed.report("one"), bed.report("two")), ("", ""));
}

#[test]
fn a_new_leader_adopts_enis_of_pools() {
    let mut bed = Bed::new(&wide());
    bed.watched.pools = Some(blue_and_red());
    bed.add_node("one", "m5.4xlarge", "subnet-a");
    ask(&mut bed, "one", &[("default", 8), ("blue", 5), ("red", 9)]);
    bed.run(Duration::from_secs(30));
    bed.lead();
    bed.until(SOON, "red", |bed| shown(bed, "one", "red") >= 9);
    bed.run(Duration::from_mins(2));
    let made = bed.calls("CreateNetworkInterface");
    bed.kill();
    bed.lead();
    bed.run(Duration::from_mins(5));
    assert_eq!(bed.calls("CreateNetworkInterface"), made);
    assert_eq!(shown(&bed, "one", "blue"), 5);
}

#[test]
fn nothing_is_planned_before_the_pools_are_read_and_a_bad_one_is_named() {
    let mut bed = Bed::new(&wide());
    bed.watched.pools = None;
    bed.add_node("one", "m5.4xlarge", "subnet-a");
    ask(&mut bed, "one", &[("default", 8), ("blue", 5)]);
    bed.run(Duration::from_secs(30));
    bed.lead();
    bed.run(Duration::from_mins(1));
    assert!(
        bed.report("one").starts_with("NotReady: the pools"),
        "{}",
        bed.report("one")
    );
    assert_eq!(bed.calls("AssignPrivateIpAddresses"), 0);
    bed.watched.pools = Some(vec![pool("blue", &[("subnet-ids", "vpc-1")])]);
    bed.until(SOON, "addresses", |bed| bed.shown("one") >= 8);
    bed.until(Duration::from_mins(2), "a report", |bed| {
        bed.report("one")
            .starts_with("BadPool: pool blue: metadata.annotations")
    });
    assert_eq!(bed.calls("CreateNetworkInterface"), 0);
    bed.watched.pools = Some(blue_and_red());
    bed.until(SOON, "addresses of the pool", |bed| {
        shown(bed, "one", "blue") >= 5
    });
}

#[test]
fn two_pools_on_one_eni_are_named_and_the_others_served() {
    let mut bed = Bed::new(&wide());
    bed.watched.pools = Some(vec![
        pool("blue", &[("subnet-ids", "subnet-a")]),
        pool("red", &[("subnet-ids", "subnet-a")]),
    ]);
    bed.add_node("one", "m5.4xlarge", "subnet-a");
    ask(&mut bed, "one", &[("default", 8), ("blue", 3), ("red", 2)]);
    bed.run(Duration::from_secs(30));
    bed.lead();
    bed.until(Duration::from_mins(2), "red", |bed| {
        shown(bed, "one", "red") >= 2
    });
    bed.until(Duration::from_mins(2), "blue", |bed| {
        shown(bed, "one", "blue") >= 3
    });
    bed.until(Duration::from_mins(2), "a report", |bed| {
        let report = bed.report("one");
        report.starts_with("TwoPools: eni-") && report.contains("pools blue and red are all bound")
    });
}

/// Two pools and the default one get their ENIs, while a fault hits the operator.
fn serve_with(planned: Planned) {
    let what = format!("{planned:?}");
    let mut bed = Bed::new(&wide());
    bed.watched.pools = Some(blue_and_red());
    bed.add_node("one", "m5.4xlarge", "subnet-a");
    ask(&mut bed, "one", &[("default", 8), ("blue", 5), ("red", 9)]);
    bed.run(SOON);
    bed.faults.planned = Some(planned);
    bed.lead();
    for round in 0..60 {
        bed.run(Duration::from_secs(10));
        if !bed.lease.is_led {
            bed.run(Duration::from_secs(17));
            bed.lead();
        }
        if round == 12 {
            // More than the pool has, so that its ENI gets more.
            ask(&mut bed, "one", &[("default", 8), ("blue", 7), ("red", 9)]);
        }
        bed.assert_true(&what);
    }
    assert!(bed.faults.planned.is_none(), "{what}: nothing was hit");
    for eni in bed.cloud.interfaces() {
        let pool = eni.tags.get(POOL_TAG).map(String::as_str);
        let (subnet, group) = match pool {
            None => ("subnet-a", "sg-1"),
            Some("blue") => ("subnet-blue", "sg-blue"),
            Some("red") => ("subnet-red", "sg-red"),
            Some(other) => panic!("{what}: {other}"),
        };
        assert_eq!(eni.placement.subnet, subnet, "{what}");
        assert_eq!(eni.groups, [group], "{what}");
    }
    for (pool, count) in [("default", 8), ("blue", 7), ("red", 9)] {
        // A call that took effect twice gives more.
        assert!(shown(&bed, "one", pool) >= count, "{what}: {pool}");
    }
    assert_eq!(bed.cloud.interfaces().count(), 3, "{what}");
    assert_eq!(bed.report("one"), "", "{what}");
    bed.assert_no_leaks(&what);
}

#[test]
fn every_work_for_bound_pools_hit_by_every_fault_heals() {
    let works = [
        ("CreateNetworkInterface", 2),
        ("AttachNetworkInterface", 2),
        ("ModifyNetworkInterfaceAttribute", 2),
        ("AssignPrivateIpAddresses", 2),
        ("status", 4),
    ];
    for (what, count) in works {
        for skip in 0..count {
            for fault in Fault::ALL {
                for kills in [false, true] {
                    serve_with(Planned {
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
