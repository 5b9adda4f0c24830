//! ENIs of others in the VPC: they come with each listing, and nothing else is read of them.

use std::sync::Arc;
use std::time::Duration;

use ec2_fake::world::World;
use ec2_fake::{Ask, Call, Change, Create, Eni, Fault, FaultKind, LoggedPage, Modify, Request};
use serde_json::json;

use super::bed::{Bed, document, world_of};

const MINUTE: Duration = Duration::from_mins(1);
/// ENIs of a page, as the fleet requests.
const PAGE: usize = 500;

/// A node, and so many ENIs of others, each with two addresses.
fn bed(others: usize) -> Bed {
    let mut document = document();
    let groups = document["groups"].as_array_mut().unwrap();
    groups.push(json!({"id": "sg-2", "vpc": "vpc-1", "name": "other"}));
    let mut bed = empty_bed(world_of(document));
    crowd(&mut bed, "subnet-a", others);
    bed.run(MINUTE);
    bed
}

fn empty_bed(mut world: World) -> Bed {
    world.settings.throttle = false;
    world.settings.interface_quota = 100_000;
    let mut bed = Bed::new(&world);
    bed.add_node("one", "m5.large", "subnet-a");
    bed
}

/// Others create ENIs.
pub(super) fn crowd(bed: &mut Bed, subnet: &str, count: usize) {
    let create = Create {
        subnet: subnet.to_owned(),
        ipv4: Ask {
            count: 2,
            ..Ask::default()
        },
        ..Create::default()
    };
    let request = Request {
        call: Call::Create(Box::new(create)),
        dry_run: false,
    };
    for _ in 0..count {
        let date = bed.at().date;
        bed.cloud.call(date, "others", &request).outcome.unwrap();
    }
}

/// The pages of listings so far.
fn pages(bed: &Bed) -> impl Iterator<Item = &LoggedPage> {
    let reads = bed.cloud.log();
    let reads = reads.filter(|it| it.action == "DescribeNetworkInterfaces");
    reads.filter_map(|it| it.page.as_ref())
}

#[test]
fn enis_of_others_are_read_by_listings_alone() {
    let mut bed = bed(1_000);
    bed.lead();
    let listings = |bed: &Bed| {
        let is_last = |it: &&LoggedPage| it.token.is_some() && it.items < PAGE;
        pages(bed).filter(is_last).count()
    };
    bed.until(MINUTE, "a listing", |bed| listings(bed) > 0);
    let before = listings(&bed);
    // Some are always so new that EC2 still creates them when a listing shows them.
    for _ in 0..180 {
        crowd(&mut bed, "subnet-a", 4);
        bed.run(Duration::from_secs(1));
    }
    assert!(listings(&bed) > before);
    let others: Vec<_> = pages(&bed)
        .filter(|it| it.token.is_none() && it.items < PAGE && it.items > 5)
        .collect();
    assert!(others.is_empty(), "read by id: {others:?}");
    bed.assert_true("beside others");
}

/// The account's other VPCs can have far more ENIs.
#[test]
fn r21_a_listing_shows_the_clusters_vpc_alone_in_pages_of_500() {
    let mut document = document();
    document["vpcs"] = json!([
        {"id": "vpc-1", "cidrs": ["10.0.0.0/8"]}, {"id": "vpc-2", "cidrs": ["172.16.0.0/12"]}
    ]);
    let far = json!({"id": "subnet-z", "vpc": "vpc-2", "zone": "a", "ipv4": "172.16.0.0/16"});
    document["subnets"].as_array_mut().unwrap().push(far);
    let mut bed = empty_bed(world_of(document));
    crowd(&mut bed, "subnet-z", PAGE + 1);
    bed.run(MINUTE);
    bed.lead();
    let most = |bed: &Bed| pages(bed).map(|it| it.items).max();
    bed.run(MINUTE * 6);
    assert_eq!(most(&bed), Some(1), "the ENI of the node");
    crowd(&mut bed, "subnet-a", PAGE + 1);
    bed.run(MINUTE * 6);
    assert_eq!(most(&bed), Some(PAGE));
}

#[test]
fn a_listing_goes_on_with_the_page_that_had_no_answer_unless_many_have_none() {
    // Three pages, of which the second one has no answer so many times.
    for (count, first_pages) in [(1, 1), (3, 1), (4, 2)] {
        let mut bed = bed(1_000);
        bed.cloud.inject(Fault {
            action: "DescribeNetworkInterfaces".to_owned(),
            names: None,
            // The first page, and the listing of loose ENIs.
            skip: 2,
            count,
            kind: FaultKind::AnswerLost,
        });
        bed.lead();
        bed.until(MINUTE, "a last page", |bed| {
            pages(bed).any(|it| it.token.is_some() && it.items < PAGE)
        });
        let is_first = |it: &&LoggedPage| it.token.is_none() && it.items == PAGE;
        let first = pages(&bed).filter(is_first).count();
        assert_eq!(first, first_pages, "{count} pages without an answer");
    }
}

/// A leader of one node with two ENIs, beside so many ENIs of others that a listing has sixteen
/// pages.
fn crowded() -> Bed {
    let mut bed = bed(16 * PAGE);
    bed.lead();
    bed.request("one", 12);
    bed.until(MINUTE, "12 addresses", |bed| bed.shown("one") >= 12);
    bed
}

#[test]
fn listings_are_the_rarer_the_more_enis_others_have() {
    let mut bed = crowded();
    bed.run(5 * MINUTE);
    let before = bed.cloud.log().count();
    bed.run(60 * MINUTE);
    let calls = bed.cloud.log().count() - before;
    // The bound of an idle operator: a call in five seconds.
    assert!(calls <= 720, "{calls} calls in an hour");
}

/// The ENI at an index of an instance.
pub(super) fn eni_at(bed: &Bed, instance: &str, index: u16) -> Arc<Eni> {
    let holds = |eni: &&Arc<Eni>| {
        let attachment = eni.attachment.as_ref();
        attachment.is_some_and(|it| it.index == index && it.instance == instance)
    };
    Arc::clone(bed.cloud.interfaces().find(holds).unwrap())
}

/// Others change the security group of an instance's primary ENI. The second one has it within two
/// minutes.
pub(super) fn assert_groups_follow(bed: &mut Bed, instance: &str, group: &str) {
    let change = Modify {
        eni: eni_at(bed, instance, 0).id.clone(),
        change: Change::Groups(vec![group.to_owned()]),
    };
    let request = Request {
        call: Call::Modify(change),
        dry_run: false,
    };
    let date = bed.at().date;
    bed.cloud.call(date, "others", &request).outcome.unwrap();
    bed.until(2 * MINUTE, "the groups", |bed| {
        eni_at(bed, instance, 1).groups == [group]
    });
}

#[test]
fn groups_follow_those_of_the_primary_eni_within_two_minutes_beside_many_others() {
    for seconds in [1, 40, 100, 280] {
        let mut bed = crowded();
        bed.run(5 * MINUTE + Duration::from_secs(seconds));
        assert_groups_follow(&mut bed, "i-one", "sg-2");
    }
}
