//! Invalid input: each is reported, no call is left half done, and neighbours are served.

use std::time::Duration;

use cloud::call::query::Items;
use ec2_fake::{Fault, FaultKind};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::bed::{Bed, world};

const MINUTE: Duration = Duration::from_mins(1);

/// A node with bad input beside one with good input, and an operator that leads for five minutes.
fn bed(spec: &Value, distort: fn(&mut Items)) -> Bed {
    let mut bed = Bed::new(&world());
    bed.add_node("bad", "m5.large", "subnet-a");
    bed.add_node("good", "m5.large", "subnet-a");
    bed.change("bad", &json!({"spec": spec}));
    bed.run(MINUTE);
    bed.faults.distort = distort;
    bed.lead();
    bed.request("bad", 18);
    bed.run(MINUTE * 5);
    bed
}

/// Calls that change something.
fn changes(bed: &Bed) -> usize {
    let log = bed.cloud.log();
    log.filter(|it| !it.action.starts_with("Describe")).count()
}

#[test]
fn what_a_document_lacks_or_names_in_vain_is_named_and_changes_nothing() {
    let cases = [
        (
            json!({"instance-id": ""}),
            "NotReady: spec.instance-id is missing",
        ),
        (
            json!({"instance-id": "i-none"}),
            "InstanceGone: EC2 has no instance i-none",
        ),
        (
            json!({"eni": {"instance-type": "x9.none"}}),
            "UnknownType: EC2 has no instance type x9.none",
        ),
        (
            json!({"eni": {"instance-type": ""}}),
            "NotReady: spec.eni.instance-type is missing",
        ),
        (
            json!({"eni": {"vpc-id": ""}}),
            "NotReady: spec.eni.vpc-id or availability-zone",
        ),
        (
            json!({"eni": {"availability-zone": null}}),
            "NotReady: spec.eni.vpc-id or availability-",
        ),
        (
            json!({"eni": {"subnet-ids": 7}}),
            "BadDocument: spec.eni.subnet-ids",
        ),
        (
            json!({"eni": {"first-interface-index": -1}}),
            "BadDocument: spec.eni.first-interface-",
        ),
    ];
    for (spec, report) in cases {
        let bed = bed(&spec, |_| {});
        assert!(
            bed.report("bad").starts_with(report),
            "{spec}: {}",
            bed.report("bad")
        );
        assert_eq!(bed.shown("bad"), 0, "{spec}");
        assert_eq!(bed.shown("good"), 8, "{spec}");
        assert_eq!(bed.report("good"), "", "{spec}");
        assert_eq!(changes(&bed), 1, "{spec}: the neighbour's assignment");
    }
}

#[test]
fn subnets_and_groups_that_match_nothing_are_named_and_no_eni_is_made() {
    let cases = [
        (
            json!({"subnet-ids": ["subnet-none"]}),
            "NoSubnet: no subnet of IPv4 matches subnet-ids",
        ),
        (
            json!({"subnet-tags": {"tier": "none"}}),
            "NoSubnet: no subnet of IPv4 matches subnet-tags",
        ),
        (
            json!({"security-group-tags": {"tier": "none"}}),
            "NoSecurityGroup: no security group",
        ),
    ];
    for (eni, report) in cases {
        let bed = bed(&json!({"eni": eni}), |_| {});
        let shown = bed.report("bad");
        assert!(
            shown.starts_with(report) && shown.contains("none"),
            "{eni}: {shown}"
        );
        assert_eq!(bed.calls("CreateNetworkInterface"), 0, "{eni}");
        assert_eq!(bed.shown("good"), 8, "{eni}");
    }
}

#[test]
fn a_group_that_is_not_there_is_named_by_ec2_and_leaves_no_eni() {
    let bed = bed(&json!({"eni": {"security-groups": ["sg-none"]}}), |_| {});
    let shown = bed.report("bad");
    assert!(
        shown.starts_with("CallFailed: CreateNetworkInterface") && shown.contains("sg-none"),
        "{shown}"
    );
    assert_eq!(bed.cloud.interfaces().count(), 2);
    assert!(bed.calls("CreateNetworkInterface") <= 4);
}

#[test]
fn a_type_without_limits_is_named() {
    let bed = bed(&json!({"eni": {"instance-type": "c5.xlarge"}}), |items| {
        if let Items::Types(types) = items {
            for info in types.iter_mut().filter(|it| it.name == "c5.xlarge") {
                info.ipv4_per_eni = 0;
            }
        }
    });
    let report = bed.report("bad");
    assert!(
        report.starts_with("UnknownType: instance type c5.xlarge: the number of IPv4"),
        "{report}"
    );
    assert_eq!(
        (bed.shown("bad"), bed.shown("good"), changes(&bed)),
        (0, 8, 1)
    );
}

#[test]
fn an_eni_without_cidrs_of_its_vpc_or_subnet_is_not_shown_and_named() {
    let vpcs: fn(&mut Items) = |items| {
        if let Items::Vpcs(vpcs) = items {
            vpcs.clear();
        }
    };
    let subnets: fn(&mut Items) = |items| {
        if let Items::Subnets(subnets) = items {
            for subnet in subnets {
                (subnet.ipv4, subnet.ipv6) = (None, None);
            }
        }
    };
    for (distort, text) in [
        (vpcs, "no CIDR of vpc-1 is known"),
        (subnets, "no CIDR of subnet-a is known"),
    ] {
        let mut bed = bed(&json!({}), distort);
        let why = bed.fleet.why("good", bed.at()).unwrap();
        let named = why.obstacles.iter().any(|it| it.text.contains(text));
        assert!(named, "{:?}", why.obstacles);
        assert_eq!(bed.shown("good"), 0);
        bed.faults.distort = |_| {};
        bed.until(MINUTE * 6, "the CIDRs are read", |bed| {
            bed.shown("good") == 8
        });
        // An object that has its ENIs keeps them.
        bed.faults.distort = distort;
        bed.run(MINUTE * 20);
        assert_eq!(bed.shown("good"), 8);
        bed.assert_true(text);
    }
}

#[test]
fn an_agent_that_goes_back_and_forth_between_generations_keeps_its_addresses() {
    let mut bed = bed(&json!({}), |_| {});
    let used = |count: u32| {
        let used = (0..count).map(|n| (format!("10.99.0.{n}"), json!({"owner": "a/b"})));
        json!({"status": {"ipam": {"used": Value::Object(used.collect())}}})
    };
    for _ in 0..5 {
        bed.change("bad", &used(10));
        bed.run(MINUTE);
        assert!(bed.shown("bad") >= 18, "{}", bed.report("bad"));
        bed.change("bad", &json!({"status": {"ipam": {"used": null}}}));
        bed.request("bad", 18);
        bed.run(MINUTE);
        assert!(bed.shown("bad") >= 18, "{}", bed.report("bad"));
    }
    assert_eq!(bed.calls("CreateNetworkInterface"), 1);
    assert_eq!(bed.calls("UnassignPrivateIpAddresses"), 0);
    bed.assert_true("both generations");
}

#[test]
fn answers_that_are_cut_or_no_xml_are_repeated_and_do_nothing_twice() {
    let actions = [
        "CreateNetworkInterface",
        "AttachNetworkInterface",
        "AssignPrivateIpAddresses",
        "ModifyNetworkInterfaceAttribute",
        "DescribeNetworkInterfaces",
        "DescribeSubnets",
        "DescribeInstanceTypes",
    ];
    for (action, kind) in actions
        .into_iter()
        .flat_map(|action| [(action, FaultKind::Cut), (action, FaultKind::Garbage)])
    {
        let mut bed = Bed::new(&world());
        bed.add_node("one", "m5.large", "subnet-a");
        bed.run(MINUTE);
        bed.cloud.inject(Fault {
            action: action.to_owned(),
            names: None,
            skip: 0,
            count: 2,
            kind: kind.clone(),
        });
        bed.lead();
        bed.request("one", 18);
        let what = format!("{action} {kind:?}");
        bed.until(MINUTE * 5, &what, |bed| bed.shown("one") >= 18);
        bed.run(MINUTE * 15);
        assert_eq!(bed.cloud.interfaces().count(), 2, "{what}");
        assert_eq!(bed.report("one"), "", "{what}");
        bed.assert_true(&what);
        bed.assert_no_leaks(&what);
    }
}

#[test]
fn a_time_of_day_that_jumps_loses_and_deletes_nothing() {
    let day = SignedDuration::from_hours(24);
    for (seconds, skew) in (0..12).flat_map(|it| [(it, day * 400), (it, -day * 400)]) {
        let mut bed = Bed::new(&world());
        bed.add_node("one", "m5.large", "subnet-a");
        bed.run(MINUTE);
        bed.lead();
        bed.request("one", 18);
        bed.run(Duration::from_millis(500 * seconds));
        bed.faults.skew = skew;
        let what = format!("{skew} after {seconds}");
        bed.until(MINUTE * 2, &what, |bed| bed.shown("one") >= 18);
        // The next leader starts with the wrong time, and its clock is corrected later.
        bed.kill();
        bed.lead();
        bed.run(MINUTE * 20);
        bed.faults.skew = SignedDuration::ZERO;
        bed.run(MINUTE * 20);
        assert_eq!(bed.shown("one"), 18, "{what}");
        assert_eq!(bed.calls("CreateNetworkInterface"), 1, "{what}");
        assert_eq!(bed.calls("DeleteNetworkInterface"), 0, "{what}");
        bed.assert_true(&what);
        bed.assert_no_leaks(&what);
    }
}
