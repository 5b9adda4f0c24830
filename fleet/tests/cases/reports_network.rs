//! More reports of users of other operators: subnets, and ENIs that no object lists.

use std::time::Duration;

use cloud::query::Items;
use ec2_fake::{Attach, Call, Create, Request, world::World};
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
    let mut all: Vec<_> = bed.cloud.interfaces().map(|it| it.subnet.clone()).collect();
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
        tags: cloud::tags::of_creation(CLUSTER, &"i-one".into(), date, &cloud::Tags::new()),
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
        bed.distort = distort;
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
