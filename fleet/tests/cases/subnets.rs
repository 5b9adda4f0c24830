//! The time for which the free addresses of a subnet last.

use std::time::Duration;

use ec2_fake::world::World;
use serde_json::json;

use super::bed::{Bed, document, world_of};

const MINUTE: Duration = Duration::from_mins(1);

/// A subnet of 251 addresses, and one of IPv6 alone.
fn world() -> World {
    let mut world = document();
    world["subnets"] = json!([
        {"id": "subnet-a", "vpc": "vpc-1", "zone": "a", "ipv4": "10.1.0.0/24"},
        {"id": "subnet-6", "vpc": "vpc-1", "zone": "a", "ipv6": "2001:db8::/64"}
    ]);
    world_of(world)
}

/// The minutes that a subnet lasts.
fn lasts(bed: &Bed, subnet: &str) -> Option<u64> {
    let views = bed.fleet.subnets(bed.at());
    let view = views.into_iter().find(|it| it.id == subnet).unwrap();
    view.lasts_seconds.map(|it| it / 60)
}

#[test]
fn a_subnet_lasts_as_long_as_its_use_grows_and_no_time_when_it_is_full() {
    let mut bed = Bed::new(&world());
    bed.add_node("n00", "m5.large", "subnet-a");
    bed.run(MINUTE);
    bed.lead();
    bed.run(MINUTE * 70);
    assert_eq!(lasts(&bed, "subnet-a"), None, "its use is flat");
    // Each node takes nine addresses: its own and eight for pods.
    for number in 1..=12 {
        bed.add_node(&format!("n{number:02}"), "m5.large", "subnet-a");
        bed.run(MINUTE * 5);
    }
    // Of 251 addresses 13 nodes have 117, the last 12 of them in an hour.
    let expected = 134 * 60 / 108;
    let found = lasts(&bed, "subnet-a").unwrap();
    assert!(
        found.abs_diff(expected) <= 10,
        "{found} min, not {expected}"
    );
    for number in 1..=12 {
        let date = bed.at().date;
        bed.cloud
            .terminate(&format!("i-n{number:02}"), date)
            .unwrap();
        bed.api.delete(&format!("n{number:02}"), bed.now);
        bed.run(MINUTE * 5);
    }
    bed.run(MINUTE);
    assert_eq!(lasts(&bed, "subnet-a"), None, "its use falls");
    for number in 20..47 {
        bed.add_node(&format!("n{number:02}"), "m5.large", "subnet-a");
    }
    bed.run(MINUTE * 90);
    let free = bed.fleet.subnets(bed.at());
    let free = free.iter().find(|it| it.id == "subnet-a").unwrap();
    assert_eq!((free.room, free.lasts_seconds), (0, Some(0)), "it is full");
    assert_eq!(lasts(&bed, "subnet-6"), None, "IPv4 has no part in it");
}
