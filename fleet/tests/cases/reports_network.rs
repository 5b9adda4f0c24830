//! More reports of users of other operators: subnets, and ENIs that no object lists.

use std::time::Duration;

use cloud::call::query::Items;
use ec2_fake::{Attach, Call, Create, Request, world::World};
use fleet::Settings;
use serde_json::{Value, json};

use super::bed::{Bed, CLUSTER, document, world_of};

const MINUTE: Duration = Duration::from_mins(1);

/// A zone with the nodes' private subnet, a second private one, and a larger public one.
fn zone() -> World {
    let mut world = document();
    world["subnets"] = json!([
        {"id": "subnet-a", "vpc": "vpc-1", "zone": "a", "ipv4": "10.1.0.0/27"},
        {"id": "subnet-b", "vpc": "vpc-1", "zone": "a", "ipv4": "10.2.0.0/24"},
        {"id": "subnet-public", "vpc": "vpc-1", "zone": "a", "ipv4": "10.3.0.0/16"}
    ]);
    world["route_tables"] = json!([
        {"id": "rtb-public", "vpc": "vpc-1", "main": true},
        {"id": "rtb-private", "vpc": "vpc-1", "subnets": ["subnet-a", "subnet-b"]}
    ]);
    world_of(world)
}

fn bed(world: &World, kind: &str, eni: &Value) -> Bed {
    let mut bed = Bed::new(world);
    bed.add_node("one", kind, "subnet-a");
    bed.change("one", &json!({"spec": {"eni": eni}}));
    bed.run(MINUTE);
    bed.lead();
    bed
}

/// Subnets of the ENIs, sorted.
fn subnets(bed: &Bed) -> Vec<String> {
    let mut all: Vec<_> = bed
        .cloud
        .interfaces()
        .map(|it| it.placement.subnet.clone())
        .collect();
    all.sort();
    all
}

#[test]
fn r25_enis_follow_the_node_s_route_table_before_a_subnet_with_more_room() {
    let mut bed = bed(&zone(), "m5.large", &json!({}));
    bed.request("one", 27);
    bed.until(MINUTE, "27 addresses", |bed| bed.shown("one") == 27);
    // The own subnet has room for two ENIs, and the third one comes from its sibling.
    assert_eq!(subnets(&bed), ["subnet-a", "subnet-a", "subnet-b"]);
}

#[test]
fn r26_a_node_whose_own_subnet_is_not_among_the_chosen_ones_is_served() {
    let mut bed = bed(&zone(), "m5.large", &json!({"subnet-ids": ["subnet-b"]}));
    bed.request("one", 18);
    bed.until(MINUTE, "18 addresses", |bed| bed.shown("one") == 18);
    assert_eq!(subnets(&bed), ["subnet-a", "subnet-b"]);
    bed.run(MINUTE);
    assert_eq!(bed.report("one"), "");
}

/// Attaches an ENI of the cluster to the node, as left by an operator that died.
fn leave(bed: &mut Bed, subnet: &str, kind: &str, card: u16) -> String {
    let date = bed.at().date;
    let tags =
        cloud::object::tags::of_creation(CLUSTER, &"i-one".into(), date, &cloud::Tags::new());
    attach(bed, (subnet, tags), kind, card)
}

/// Attaches an ENI to the node at index 1 of a card.
fn attach(bed: &mut Bed, (subnet, tags): (&str, cloud::Tags), kind: &str, card: u16) -> String {
    let date = bed.at().date;
    let mut call = |call| {
        let request = Request {
            call,
            dry_run: false,
        };
        bed.cloud.call(date, "dead", &request).outcome.unwrap()
    };
    let create = Create {
        subnet: subnet.to_owned(),
        kind: Some(kind.to_owned()),
        tags,
        ..Create::default()
    };
    let ec2_fake::Answer::Created { eni, .. } = call(Call::Create(Box::new(create))) else {
        panic!("no ENI");
    };
    let attach = Attach {
        eni: eni.id.clone(),
        instance: "i-one".to_owned(),
        index: 1,
        card,
    };
    call(Call::Attach(attach));
    eni.id.clone()
}

#[test]
fn r40_an_eni_that_cannot_be_shown_is_named_within_a_minute() {
    let hide_public: fn(&mut Items) = |items| {
        if let Items::Subnets(subnets) = items {
            subnets.retain(|it| it.id.as_str() != "subnet-public");
        }
    };
    let whole: fn(&mut Items) = |_| {};
    let cases = [
        (
            "subnet-public",
            "interface",
            0,
            hide_public,
            "no CIDR of subnet-public is known",
        ),
        ("subnet-b", "trunk", 0, whole, "an interface of kind trunk"),
        (
            "subnet-b",
            "efa-only",
            0,
            whole,
            "an interface of kind efa-only",
        ),
        ("subnet-b", "interface", 1, whole, "on network card 1"),
    ];
    for (subnet, kind, card, distort, reason) in cases {
        let mut bed = bed(&zone(), "p5.48xlarge", &json!({}));
        bed.faults.distort = distort;
        let eni = leave(&mut bed, subnet, kind, card);
        bed.kill();
        bed.lead();
        bed.run(MINUTE);
        assert!(
            bed.api.objects["one"]["status"]["eni"]["enis"][&eni].is_null(),
            "{reason}"
        );
        let why = bed.fleet.why("one", bed.at()).unwrap();
        let obstacles = why.obstacles.iter().map(|it| &it.text);
        let uses = why
            .enis
            .iter()
            .filter(|(id, _)| **id == eni)
            .map(|(_, of)| of);
        let named = obstacles.chain(uses).any(|it| it.contains(reason));
        assert!(named, "{reason}: {why:?}");
    }
}

#[test]
fn r40_an_eni_that_loses_its_cidr_stays_and_is_named() {
    let mut bed = bed(&zone(), "m5.large", &json!({"subnet-ids": ["subnet-b"]}));
    bed.request("one", 18);
    bed.until(MINUTE, "18 addresses", |bed| bed.shown("one") == 18);
    bed.run(MINUTE);
    let before = bed.api.objects["one"]["status"]["eni"].clone();
    bed.faults.distort = |items| {
        if let Items::Subnets(subnets) = items {
            subnets.retain(|it| it.id.as_str() != "subnet-b");
        }
    };
    bed.run(MINUTE * 2);
    let report = bed.report("one");
    let expected = "no CIDR of subnet-b is known; the status stays";
    assert!(
        report.starts_with("NotReady: eni-") && report.contains(expected),
        "{report}"
    );
    assert_eq!(bed.api.objects["one"]["status"]["eni"], before);
    bed.faults.distort = |_| {};
    bed.run(MINUTE * 2);
    assert_eq!(bed.report("one"), "");
}

#[test]
fn r38_a_strangers_eni_on_another_card_takes_nothing() {
    let mut bed = bed(&world_of(document()), "p5.48xlarge", &json!({}));
    let place = ("subnet-a", cloud::Tags::new());
    let eni = attach(&mut bed, place, "interface", 1);
    bed.run(MINUTE);
    // Both ENIs of card 0 are needed for that.
    bed.request("one", 90);
    bed.until(MINUTE * 2, "90 addresses", |bed| bed.shown("one") >= 90);
    bed.run(MINUTE);
    let enis = &bed.api.objects["one"]["status"]["eni"]["enis"];
    assert_eq!(enis.as_object().map(serde_json::Map::len), Some(2));
    assert!(enis[&eni].is_null(), "{enis}");
    assert_eq!(
        bed.cloud.interface(&eni).unwrap().addresses.nets().count(),
        1
    );
}

/// A subnet of the zone in which an instance has an address of each /28, and a smaller one.
fn fragmented(second: Option<&str>) -> Bed {
    let mut world = document();
    let first = json!({"id": "subnet-a", "vpc": "vpc-1", "zone": "a", "ipv4": "10.1.0.0/24"});
    let second =
        second.map(|net| json!({"id": "subnet-b", "vpc": "vpc-1", "zone": "a", "ipv4": net}));
    world["subnets"] = [first].into_iter().chain(second).collect();
    // EC2 keeps addresses of the first and of the last /28 for itself.
    let instances = (1..15).map(|n| {
        json!({
            "id": format!("i-old-{n}"), "type": "m5.large", "subnet": "subnet-a",
            "groups": ["sg-1"], "address": format!("10.1.0.{}", 16 * n + 5)
        })
    });
    world["instances"] = instances.collect();
    let mut settings = Settings::of(CLUSTER);
    settings.enis.prefixes = true;
    let mut bed = Bed::with(&world_of(world), settings);
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(MINUTE);
    bed.lead();
    bed
}

#[test]
fn r8_a_fragmented_subnet_costs_no_prefix_elsewhere() {
    let mut bed = fragmented(Some("10.2.0.0/25"));
    bed.until(MINUTE, "a prefix", |bed| bed.shown("one") == 16);
    bed.request("one", 24);
    bed.until(MINUTE, "a second one", |bed| bed.shown("one") == 32);
    let refused = bed.cloud.log().filter(|it| it.error.is_some());
    assert_eq!(refused.count(), 1);
    assert_eq!(subnets(&bed).last().map(String::as_str), Some("subnet-b"));
}

#[test]
fn r8_a_subnet_that_has_healed_gives_prefixes_again() {
    let mut bed = fragmented(None);
    bed.until(MINUTE, "single addresses", |bed| bed.shown("one") == 8);
    let date = bed.at().date;
    bed.cloud.terminate("i-old-7", date).unwrap();
    bed.run(MINUTE * 16);
    bed.request("one", 20);
    bed.until(MINUTE, "a prefix beside them", |bed| bed.shown("one") == 24);
}
