//! The crash table: every kind of work lost, late or doubled, with an operator that goes on and one
//! that dies.

use std::time::Duration;

use ec2_fake::{Family, Settings, world::World};

use serde_json::json;

use super::bed::{Bed, Fault, Planned, world};

/// Works of the scenario, with the number of each.
const WORKS: [(&str, u32); 7] = [
    ("CreateNetworkInterface", 2),
    ("AttachNetworkInterface", 2),
    ("AssignPrivateIpAddresses", 1),
    ("ModifyNetworkInterfaceAttribute", 2),
    ("DeleteNetworkInterface", 1),
    ("status", 3),
    ("spec", 1),
];

/// Addresses that three ENIs have.
const WANTED: u32 = 26;

/// An agent of the older generation uses so many addresses.
fn use_addresses(bed: &mut Bed, count: u32) {
    let used = (0..count).map(|n| (format!("10.99.0.{n}"), json!({"owner": "a/b"})));
    let used: serde_json::Map<String, serde_json::Value> = used.collect();
    bed.change("one", &json!({"spec": {"ipam": {"pools": null}}}));
    bed.change("one", &json!({"status": {"ipam": {"used": used}}}));
}

/// A cloud whose reads are as old as they ever get.
fn slow(seed: u64) -> World {
    World {
        settings: Settings {
            seed,
            ..Settings::default()
        },
        ..world()
    }
}

fn bed(seed: u64) -> Bed {
    let mut bed = Bed::new(&slow(seed));
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(Duration::from_mins(1));
    bed.lead();
    bed
}

/// Goes through all kinds of works: addresses, two ENIs, one of them not wanted any more.
fn scenario(bed: &mut Bed, name: &str, what: &str) {
    let is_old = name == "spec";
    let deletes = name == "DeleteNetworkInterface";
    if is_old {
        use_addresses(bed, WANTED - 8);
    } else {
        bed.request("one", WANTED);
    }
    if deletes {
        // The ENI waits for so long that it is not wanted any more.
        bed.cloud.inject(ec2_fake::Fault {
            action: "AttachNetworkInterface".to_owned(),
            names: None,
            skip: 0,
            count: 1,
            kind: ec2_fake::FaultKind::Refused("IncorrectState".to_owned()),
        });
    }
    let go_on = |bed: &mut Bed, what: &str| {
        if !bed.lease.is_led {
            // The next leader has to wait for the end of the lease.
            bed.run(Duration::from_secs(17));
            bed.lead();
        }
        bed.assert_true(what);
    };
    for round in 0..300 {
        bed.run(Duration::from_secs(1));
        go_on(bed, what);
        let has_loose = !bed.loose().is_empty();
        if deletes && has_loose && round < 240 {
            bed.request("one", 8);
        }
        if round == 240 && deletes {
            bed.request("one", WANTED);
        }
    }
    for _ in 0..60 {
        bed.run(Duration::from_secs(20));
        go_on(bed, what);
    }
    let shown = bed.shown("one");
    let wanted = usize::try_from(WANTED).unwrap();
    assert!(shown >= wanted, "{what}: {shown} addresses");
    bed.assert_no_leaks(what);
    assert!(bed.cloud.interfaces().count() <= 3, "{what}");
    assert_eq!(bed.report("one"), "", "{what}");
    assert!(bed.faults.planned.is_none(), "{what}: nothing was hit");
}

#[test]
fn every_work_hit_by_every_fault_heals() {
    for (seed, (name, count)) in (0..seeds()).flat_map(|seed| WORKS.map(|it| (seed, it))) {
        for (skip, fault, kills) in cases(count) {
            let mut bed = bed(seed * 10 + u64::from(skip));
            bed.faults.planned = Some(Planned {
                what: name,
                skip,
                fault,
                kills,
            });
            let what = format!("{name} {skip}, {fault:?}, killed: {kills}, seed {seed}");
            scenario(&mut bed, name, &what);
        }
    }
}

/// Runs of the matrix; ten in its long form.
fn seeds() -> u64 {
    let is_long = std::env::var_os("TOWPATH_FULL").is_some();
    if is_long { 10 } else { 1 }
}

fn cases(count: u32) -> impl Iterator<Item = (u32, Fault, bool)> {
    (0..count).flat_map(|skip| {
        let faults = Fault::ALL.into_iter();
        faults.flat_map(move |fault| [false, true].map(|kills| (skip, fault, kills)))
    })
}

#[test]
fn a_call_of_a_dead_operator_that_comes_ten_minutes_late_touches_nothing_published() {
    for (name, _) in WORKS.iter().take(5) {
        let mut bed = bed(7);
        bed.faults.planned = Some(Planned {
            what: name,
            skip: 0,
            fault: Fault::Late(Duration::from_mins(10)),
            kills: true,
        });
        scenario(&mut bed, name, name);
    }
}

/// The next leader has a prefix assigned by then.
#[test]
fn a_prefix_of_a_dead_operator_that_comes_ten_minutes_late_is_one_more() {
    let mut bed = bed(11);
    bed.faults.planned = Some(Planned {
        what: "AssignIpv6Addresses",
        skip: 0,
        fault: Fault::Late(Duration::from_mins(10)),
        kills: true,
    });
    let needed = json!({"ipv4-addrs": 8, "ipv6-addrs": 16});
    let pools = json!({"requested": [{"pool": "default", "needed": needed}]});
    bed.change("one", &json!({"spec": {"ipam": {"pools": pools}}}));
    for _ in 0..900 {
        bed.run(Duration::from_secs(1));
        if !bed.lease.is_led {
            bed.run(Duration::from_secs(17));
            bed.lead();
        }
        bed.assert_true("late");
    }
    assert_eq!(bed.calls("AssignIpv6Addresses"), 2);
    assert_eq!((bed.ipv6_prefixes("one"), bed.shown("one")), (2, 8));
    assert_eq!(bed.report("one"), "");
    bed.assert_no_leaks("late");
}

#[test]
fn answers_that_come_twice_change_nothing() {
    let mut bed = bed(3);
    bed.faults.doubles = true;
    scenario(&mut bed, "", "doubled answers");
    assert_eq!(bed.calls("AssignPrivateIpAddresses"), 1);
}

#[test]
fn an_ipv6_prefix_hit_by_every_fault_is_there_once() {
    let what = "AssignIpv6Addresses";
    for (skip, fault, kills) in cases(1) {
        let mut bed = bed(11);
        bed.faults.planned = Some(Planned {
            what,
            skip,
            fault,
            kills,
        });
        let needed = json!({"ipv4-addrs": 8, "ipv6-addrs": 16});
        let pools = json!({"requested": [{"pool": "default", "needed": needed}]});
        bed.change("one", &json!({"spec": {"ipam": {"pools": pools}}}));
        let what = format!("{what}, {fault:?}, killed: {kills}");
        for _ in 0..60 {
            bed.run(Duration::from_secs(20));
            if !bed.lease.is_led {
                bed.lead();
            }
            bed.assert_true(&what);
        }
        // EC2 has no token for this call: one that takes effect twice gives two.
        let prefixes = if matches!(fault, Fault::Twice) { 2 } else { 1 };
        assert_eq!(bed.ipv6_prefixes("one"), prefixes, "{what}");
        let assigned = bed.cloud.interfaces();
        let assigned = assigned.map(|eni| eni.addresses.of(Family::V6).count());
        assert_eq!(assigned.sum::<usize>(), prefixes, "{what}");
        assert_eq!(bed.report("one"), "", "{what}");
        bed.assert_no_leaks(&what);
        assert!(bed.faults.planned.is_none(), "{what}: nothing was hit");
    }
}
