//! Reports of users of other operators, each with the number that `operator.md` gives it.

use std::time::Duration;

use ec2_fake::{Fault as InjectedFault, FaultKind, Settings as Rules, world::World};
use fleet::{About, Settings, Standing};
use serde_json::json;

use super::bed::{Bed, CLUSTER, world};

const MINUTE: Duration = Duration::from_mins(1);
const SECOND: Duration = Duration::from_secs(1);

fn bed_of(world: &World, kind: &str) -> Bed {
    let mut bed = Bed::new(world);
    bed.add_node("one", kind, "subnet-a");
    bed.run(MINUTE);
    bed.lead();
    bed
}

fn bed() -> Bed {
    bed_of(&world(), "m5.large")
}

pub(super) fn refuse(bed: &mut Bed, action: &str, code: &str, count: u32) {
    bed.cloud.inject(InjectedFault {
        action: action.to_owned(),
        names: None,
        skip: 0,
        count,
        kind: FaultKind::Refused(code.to_owned()),
    });
}

/// The world with another subnet of the zone, which has so many bits.
fn world_of(first: &str, second: &str) -> World {
    let mut world = world();
    let subnets = json!([
        {"id": "subnet-a", "vpc": "vpc-1", "zone": "a", "ipv4": first},
        {"id": "subnet-b", "vpc": "vpc-1", "zone": "a", "ipv4": second}
    ]);
    world.subnets = serde_json::from_value(subnets).unwrap();
    world
}

#[test]
fn r1_a_mark_that_fails_is_made_later() {
    for count in [1, 3, 7] {
        let mut bed = bed();
        let action = "ModifyNetworkInterfaceAttribute";
        refuse(&mut bed, action, "RequestLimitExceeded", count);
        refuse(&mut bed, action, "InternalError", count);
        bed.request("one", 18);
        bed.run(MINUTE * 10);
        bed.assert_no_leaks(&format!("{count} failures"));
        assert_eq!(bed.calls("DeleteNetworkInterface"), 0);
    }
}

#[test]
fn r2_an_instance_that_ends_in_any_state_leaves_nothing() {
    for seconds in 0..16 {
        let mut bed = bed();
        bed.request("one", 18);
        bed.run(Duration::from_millis(500 * seconds));
        let date = bed.at().date;
        bed.cloud.terminate("i-one", date).unwrap();
        // The object outlives its instance, or goes with it.
        if seconds % 2 == 0 {
            bed.api.delete("one", bed.now);
        }
        bed.run(MINUTE * 30);
        assert_eq!(bed.cloud.interfaces().count(), 0, "{seconds}");
    }
}

#[test]
fn r2_a_new_leader_without_nodes_sweeps_what_the_last_node_left() {
    let mut bed = bed();
    refuse(&mut bed, "AttachNetworkInterface", "IncorrectState", 1);
    bed.request("one", 18);
    bed.until(MINUTE, "a loose ENI", |bed| !bed.loose().is_empty());
    let date = bed.at().date;
    bed.cloud.terminate("i-one", date).unwrap();
    bed.api.delete("one", bed.now);
    bed.kill();
    bed.run(Duration::from_secs(20));
    bed.lead();
    bed.run(MINUTE * 9);
    assert_eq!(bed.loose().len(), 1, "it is younger than ten minutes");
    bed.run(MINUTE * 15);
    assert_eq!(bed.cloud.interfaces().count(), 0);
    assert_eq!(bed.calls("DeleteNetworkInterface"), 1);
}

#[test]
fn r2_a_loose_eni_of_a_node_that_gets_no_calls_is_swept() {
    let faults = [
        json!({"eni": {"subnet-ids": 7}}),
        json!({"eni": {"instance-type": "m5.unknown"}}),
        json!({"eni": {"vpc-id": ""}}),
    ];
    for fault in faults {
        let mut bed = bed();
        refuse(&mut bed, "AttachNetworkInterface", "IncorrectState", 1);
        bed.request("one", 18);
        bed.until(MINUTE, "a loose ENI", |bed| !bed.loose().is_empty());
        bed.change("one", &json!({"spec": fault}));
        bed.run(MINUTE * 9);
        assert_eq!(bed.loose().len(), 1, "it is younger than ten minutes");
        bed.run(MINUTE * 15);
        assert_eq!(bed.loose(), Vec::<String>::new(), "{fault}");
        assert_eq!(
            bed.cloud.interfaces().count(),
            1,
            "{fault}: the primary ENI stays"
        );
        assert_eq!(bed.calls("DeleteNetworkInterface"), 1);
    }
}

#[test]
fn r3_r5_adapters_that_a_stranger_has_taken_are_learned_and_not_tried_again() {
    let mut world = world();
    let instance = json!([{
        "id": "i-one", "type": "m5.large", "subnet": "subnet-a", "groups": ["sg-1"],
        "interface_limit": 1
    }]);
    world.instances = serde_json::from_value(instance).unwrap();
    let mut bed = Bed::new(&world);
    bed.add_object("one", "m5.large", "subnet-a");
    bed.run(MINUTE);
    bed.lead();
    bed.request("one", 18);
    bed.run(MINUTE * 5);
    assert_eq!(bed.calls("CreateNetworkInterface"), 1);
    assert!(
        bed.report("one").starts_with("AtCapacity: "),
        "{}",
        bed.report("one")
    );
    bed.assert_no_leaks("at capacity");
    let calls = bed.calls("AttachNetworkInterface");
    bed.run(MINUTE * 50);
    assert_eq!(bed.calls("AttachNetworkInterface"), calls);
    assert_eq!(bed.calls("CreateNetworkInterface"), 1);
}

#[test]
fn r4_a_full_node_makes_no_calls() {
    let mut bed = bed();
    bed.request("one", 500);
    bed.run(MINUTE * 5);
    assert_eq!(bed.shown("one"), 27);
    assert!(
        bed.report("one").starts_with("AtCapacity: "),
        "{}",
        bed.report("one")
    );
    let (changes, writes) = (changes(&bed), bed.api.writes["one"]);
    bed.run(MINUTE * 60);
    assert_eq!(self::changes(&bed), changes);
    assert_eq!(bed.api.writes["one"], writes);
    let events = bed
        .events
        .iter()
        .filter(|it| it.about == About::Node("one".to_owned()));
    assert_eq!(events.count(), 1);
}

/// Calls that change something.
fn changes(bed: &Bed) -> usize {
    let log = bed.cloud.log();
    log.filter(|it| !it.action.starts_with("Describe")).count()
}

#[test]
fn r6_r7_an_instance_that_is_gone_gets_nothing_and_one_that_pauses_gets_its_addresses() {
    let mut bed = bed();
    bed.run(MINUTE);
    let date = bed.at().date;
    bed.cloud.terminate("i-one", date).unwrap();
    bed.request("one", 18);
    bed.run(MINUTE * 10);
    let creations = bed.calls("CreateNetworkInterface");
    assert!(creations <= 1, "{creations}");
    assert!(
        bed.report("one").starts_with("InstanceGone: "),
        "{}",
        bed.report("one")
    );
    bed.run(MINUTE * 60);
    assert_eq!(bed.calls("CreateNetworkInterface"), creations);
    assert_eq!(bed.cloud.interfaces().count(), 0);

    let mut bed = self::bed();
    bed.run(MINUTE);
    refuse(&mut bed, "AttachNetworkInterface", "IncorrectState", 12);
    bed.request("one", 18);
    bed.until(MINUTE * 12, "attached after all", |bed| {
        bed.shown("one") >= 18
    });
    assert_eq!(bed.calls("CreateNetworkInterface"), 1);
}

#[test]
fn r6_an_instance_that_ec2_does_not_know_is_tried_less_and_less() {
    let mut bed = bed();
    bed.run(MINUTE);
    refuse(
        &mut bed,
        "AttachNetworkInterface",
        "InvalidInstanceID.NotFound",
        1_000,
    );
    bed.request("one", 18);
    bed.run(MINUTE);
    assert!(
        bed.report("one").starts_with("InstanceGone: "),
        "{}",
        bed.report("one")
    );
    bed.run(MINUTE * 59);
    // After 1, 2, 4, 8 and then each 10 minutes.
    let tries = bed.calls("AttachNetworkInterface");
    assert!((2..=9).contains(&tries), "{tries}");
    let creations = bed.calls("CreateNetworkInterface");
    assert!(creations <= tries, "{creations}");
    assert_eq!(bed.loose(), Vec::<String>::new());
}

#[test]
fn r9_more_addresses_than_slots_are_asked_for_in_parts() {
    let mut bed = bed();
    // Each of its ENIs has nine slots.
    bed.request("one", 27);
    bed.until(MINUTE, "27 addresses", |bed| bed.shown("one") == 27);
    let refused = bed.cloud.log().filter(|it| it.error.is_some());
    assert_eq!(refused.count(), 0);
}

#[test]
fn r8_a_subnet_without_prefixes_costs_no_node_its_prefixes() {
    let mut settings = Settings::of(CLUSTER);
    settings.enis.prefixes = true;
    // Too small for a prefix beside what EC2 keeps for itself.
    let world = world_of("10.1.0.0/28", "10.2.0.0/20");
    let mut bed = Bed::with(&world, settings);
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(MINUTE);
    bed.lead();
    bed.until(MINUTE, "a prefix of the other subnet", |bed| {
        bed.shown("one") == 16
    });
    bed.run(MINUTE * 5);
    assert_eq!(bed.shown("one"), 16);
    bed.assert_true("fragmented");
}

#[test]
fn r14_r23_a_listing_that_lacks_an_instance_takes_nothing_away() {
    let mut world = world();
    world.settings = Rules::default();
    let mut bed = bed_of(&world, "m5.large");
    bed.request("one", 18);
    bed.until(MINUTE * 5, "18 addresses", |bed| bed.shown("one") >= 18);
    // Every listing is up to 30 s old, and each new leader begins with one.
    for _ in 0..20 {
        bed.kill();
        bed.run(SECOND);
        bed.lead();
        for _ in 0..90 {
            bed.run(SECOND);
            assert!(bed.shown("one") >= 18);
        }
    }
    assert_eq!(bed.calls("CreateNetworkInterface"), 1);
    bed.assert_no_leaks("20 leaders");
}

#[test]
fn r22_reads_that_are_old_bring_no_second_assignment() {
    let mut world = world();
    world.settings = Rules::default();
    for seed in 0..10 {
        world.settings.seed = seed;
        let mut bed = bed_of(&world, "m5.4xlarge");
        for wanted in 9..29 {
            bed.request("one", wanted);
            bed.run(Duration::from_secs(3));
            bed.assert_true("old reads");
        }
        bed.run(MINUTE * 3);
        assert_eq!(bed.shown("one"), 28, "seed {seed}");
    }
}

#[test]
fn r24_an_eni_that_ec2_does_not_know_yet_is_tried_again() {
    let mut bed = bed();
    bed.run(MINUTE);
    refuse(
        &mut bed,
        "AttachNetworkInterface",
        "InvalidNetworkInterfaceID.NotFound",
        4,
    );
    bed.request("one", 18);
    bed.until(MINUTE, "attached", |bed| bed.shown("one") >= 18);
    assert_eq!(bed.calls("CreateNetworkInterface"), 1);
}

#[test]
fn r17_an_empty_instance_id_makes_no_calls_for_the_node() {
    for id in ["", "  "] {
        let mut bed = Bed::new(&world());
        bed.add_object("one", "m5.large", "subnet-a");
        bed.change("one", &json!({"spec": {"instance-id": id}}));
        bed.lead();
        bed.run(MINUTE * 5);
        assert_eq!(changes(&bed), 0);
        assert!(
            bed.report("one").starts_with("NotReady: spec.instance-id"),
            "{}",
            bed.report("one")
        );
    }
}

#[test]
fn r27_groups_that_match_nothing_are_named_and_changed_ones_applied() {
    let mut bed = bed();
    let tags = |tier: &str| json!({"spec": {"eni": {"security-group-tags": {"tier": tier}}}});
    bed.change("one", &tags("none"));
    bed.request("one", 18);
    bed.run(MINUTE);
    assert!(
        bed.report("one").starts_with("NoSecurityGroup: "),
        "{}",
        bed.report("one")
    );
    assert_eq!(bed.calls("CreateNetworkInterface"), 0);
    let groups =
        json!({"spec": {"eni": {"security-group-tags": null, "security-groups": ["sg-1"]}}});
    bed.change("one", &groups);
    bed.until(MINUTE, "18 addresses", |bed| bed.shown("one") >= 18);
    let findings = bed.fleet.why("one", bed.at()).unwrap().findings;
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(
        findings[0].ends_with("load balancers need exactly 1"),
        "{findings:?}"
    );
}

#[test]
fn r28_a_right_that_is_missing_is_named_and_tried_every_five_minutes() {
    let mut bed = bed();
    bed.run(MINUTE);
    refuse(
        &mut bed,
        "CreateNetworkInterface",
        "UnauthorizedOperation",
        2,
    );
    bed.request("one", 18);
    bed.run(MINUTE);
    let report = bed.report("one");
    assert!(
        report.starts_with("Denied: CreateNetworkInterface"),
        "{report}"
    );
    assert!(report.contains(", next try 2026-"), "{report}");
    assert_eq!(bed.calls("CreateNetworkInterface"), 1);
    bed.run(MINUTE * 11);
    assert_eq!(bed.calls("CreateNetworkInterface"), 3);
    assert_eq!(bed.report("one"), "");
}

#[test]
fn r28_a_read_without_a_right_is_named_by_each_node() {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(MINUTE);
    refuse(&mut bed, "DescribeSubnets", "UnauthorizedOperation", 1);
    bed.lead();
    bed.run(MINUTE);
    assert!(
        bed.report("one").starts_with("Denied: "),
        "{}",
        bed.report("one")
    );
    let at = bed.at();
    assert_eq!(bed.fleet.read_faults().len(), 1);
    let paused = bed.fleet.budgets(at);
    let paused = paused.iter().filter(|it| it.pause.is_some());
    let paused: Vec<_> = paused.map(|it| it.action.as_str()).collect();
    assert_eq!(paused, ["DescribeSubnets"]);
    let reads = bed.calls("DescribeNetworkInterfaces");
    bed.run(MINUTE);
    assert!(bed.calls("DescribeNetworkInterfaces") > reads);
    bed.until(MINUTE * 6, "addresses", |bed| bed.shown("one") >= 8);
    bed.run(MINUTE);
    assert_eq!(bed.report("one"), "");
    assert!(bed.fleet.read_faults().is_empty());
}

#[test]
fn r29_another_clusters_enis_are_left_alone() {
    let mut bed = bed();
    let at = bed.at();
    assert!(fleet::Fleet::new(Settings::of(" "), at).is_err());
    // A loose ENI of the other cluster, long ago.
    let tags =
        cloud::object::tags::of_creation("green", &"i-two".into(), at.date, &cloud::Tags::new());
    let create = ec2_fake::Create {
        subnet: "subnet-a".to_owned(),
        tags,
        ..ec2_fake::Create::default()
    };
    let request = ec2_fake::Request {
        call: ec2_fake::Call::Create(Box::new(create)),
        dry_run: false,
    };
    bed.cloud.call(at.date, "other", &request).outcome.unwrap();
    bed.run(MINUTE * 60);
    assert_eq!(bed.loose().len(), 1);
}

/// Lets two clusters run in one cloud, which `first` has.
fn run_beside(first: &mut Bed, second: &mut Bed, duration: Duration) {
    let end = first.now.after(duration);
    while first.now < end {
        first.run(SECOND);
        std::mem::swap(&mut first.cloud, &mut second.cloud);
        second.run(SECOND);
        std::mem::swap(&mut first.cloud, &mut second.cloud);
    }
}

/// The ENIs that a cluster created, each with its attachment.
fn enis_of(bed: &Bed, cluster: &str) -> Vec<(String, bool)> {
    let tag = cloud::object::tags::CLUSTER;
    let enis = bed.cloud.interfaces();
    let enis = enis.filter(|eni| eni.tags.get(tag).map(String::as_str) == Some(cluster));
    enis.map(|eni| (eni.id.clone(), eni.attachment.is_some()))
        .collect()
}

/// Both have nodes of the same names, in the same subnet.
#[test]
fn r29_two_clusters_in_a_vpc_delete_nothing_of_each_other() {
    let mut blue = bed();
    let mut green = Bed::with(&world(), Settings::of("green"));
    green.now = blue.now;
    for (name, id) in [("one", "i-green-1"), ("two", "i-green-2")] {
        let instance =
            json!({"id": id, "type": "m5.large", "subnet": "subnet-a", "groups": ["sg-1"]});
        let date = blue.at().date;
        let spec = serde_json::from_value(instance).unwrap();
        blue.cloud.start(&spec, date).unwrap();
        green.add_object(name, "m5.large", "subnet-a");
        green.change(name, &json!({"spec": {"instance-id": id}}));
        green.request(name, 18);
    }
    blue.request("one", 18);
    green.lead();
    run_beside(&mut blue, &mut green, MINUTE * 3);
    assert_eq!(
        (blue.shown("one"), green.shown("one"), green.shown("two")),
        (18, 18, 18)
    );
    // Each cluster has a loose ENI, and the operator of one does not work for hours.
    refuse(&mut blue, "AttachNetworkInterface", "IncorrectState", 2);
    blue.request("one", 27);
    green.request("one", 27);
    run_beside(&mut blue, &mut green, SECOND * 2);
    let is_loose = |(_, is_attached): &(String, bool)| !is_attached;
    let before = ["blue", "green"].map(|cluster| enis_of(&blue, cluster));
    assert!(
        before.iter().all(|enis| enis.iter().any(is_loose)),
        "{before:?}"
    );
    let date = blue.at().date;
    for id in ["i-one", "i-green-1"] {
        blue.cloud.terminate(id, date).unwrap();
    }
    blue.api.delete("one", blue.now);
    green.api.delete("one", green.now);
    green.kill();
    blue.run(MINUTE * 120);
    let kept: Vec<_> = before[1]
        .iter()
        .filter(|(id, is_attached)| {
            // The attached one of the ended instance went with it.
            !is_attached || blue.cloud.interface(id).is_some()
        })
        .cloned()
        .collect();
    assert_eq!(enis_of(&blue, "blue"), []);
    assert_eq!(
        enis_of(&blue, "green"),
        kept,
        "one loose, one of the other node"
    );
    green.now = blue.now;
    green.lead();
    run_beside(&mut blue, &mut green, MINUTE * 60);
    let left = enis_of(&blue, "green");
    assert!(left.len() == 1 && left[0].1, "{left:?}");
    std::mem::swap(&mut blue.cloud, &mut green.cloud);
    green.assert_true("green");
    assert_eq!(green.shown("two"), 18);
}

#[test]
fn r38_enis_of_other_cards_are_neither_counted_nor_shown() {
    let mut bed = bed_of(&world(), "p5.48xlarge");
    bed.request("one", 60);
    bed.run(MINUTE * 3);
    let enis = bed.api.objects["one"]["status"]["eni"]["enis"].as_object();
    // Card 0 has two, of 49 addresses each.
    assert_eq!(enis.map(serde_json::Map::len), Some(2));
    assert!(bed.shown("one") >= 60);
    bed.request("one", 200);
    bed.run(MINUTE * 3);
    assert!(
        bed.report("one").starts_with("AtCapacity: "),
        "{}",
        bed.report("one")
    );
}

#[test]
fn r31_a_leader_whose_lease_ends_changes_nothing() {
    let mut bed = bed();
    bed.run(MINUTE);
    let until = bed.now.after(Duration::from_secs(5));
    let at = bed.at();
    let leading = fleet::Input::Standing(Standing::Leading { until });
    bed.fleet.take(leading, at);
    bed.request("one", 18);
    let object = bed.api.objects["one"].clone();
    bed.fleet.take(fleet::Input::Node(Box::new(object)), at);
    let work = bed.fleet.work(at);
    let changing = work
        .iter()
        .filter(|it| !matches!(it.task, fleet::Task::Read(_)));
    assert_eq!(changing.count(), 0, "{work:?}");
}
