//! From the creation of an ENI to its attachment.

use std::time::Duration;

use ec2_fake::{Settings as Rules, Span};

use super::bed::{Bed, world};

/// A node that is to get a second ENI. In EC2 the ENI is pending for `pending` milliseconds.
fn bed(seed: u64, pending: Span) -> Bed {
    let mut world = world();
    world.settings = Rules {
        seed,
        unknown: pending,
        lag_listing: Span::new(0, 2_000),
        ..Rules::default()
    };
    let mut bed = Bed::new(&world);
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(Duration::from_mins(1));
    bed.lead();
    bed.request("one", 18);
    bed
}

#[test]
fn an_eni_that_ec2_still_makes_is_attached_by_one_call() {
    for seed in 0..20 {
        let mut bed = bed(seed, Span::new(500, 20_000));
        bed.until(Duration::from_mins(2), "18 addresses", |bed| {
            bed.shown("one") >= 18
        });
        let refused: Vec<_> = bed
            .cloud
            .log()
            .filter(|it| it.error.is_some())
            .map(|it| (it.action, it.error.as_deref()))
            .collect();
        assert_eq!(refused, [], "seed {seed}");
        assert_eq!(bed.calls("AttachNetworkInterface"), 1, "seed {seed}");
        assert_eq!(bed.calls("CreateNetworkInterface"), 1, "seed {seed}");
    }
}

#[test]
fn an_eni_that_ec2_still_makes_is_read_until_it_is_there() {
    for seed in 0..10 {
        let mut bed = bed(seed, Span::new(5_000, 5_000));
        bed.until(Duration::from_mins(1), "an ENI", |bed| {
            bed.calls("CreateNetworkInterface") == 1
        });
        let reads = bed.calls("DescribeNetworkInterfaces");
        let took = bed.until(Duration::from_mins(1), "an attachment", |bed| {
            bed.calls("AttachNetworkInterface") == 1
        });
        // The ENI is pending for 5 s, reads are 2 s apart, and a read is up to 2 s old.
        assert!(took <= Duration::from_secs(10), "{took:?}, seed {seed}");
        let reads = bed.calls("DescribeNetworkInterfaces") - reads;
        assert!(reads <= 6, "{reads} reads, seed {seed}");
    }
}

#[test]
fn no_other_eni_is_created_while_ec2_makes_one() {
    let mut bed = bed(1, Span::new(5_000, 5_000));
    bed.request("one", 27);
    for _ in 0..600 {
        bed.run(Duration::from_millis(100));
        assert!(bed.loose().len() <= 1, "{:?}", bed.loose());
    }
    assert_eq!(bed.shown("one"), 27);
}

#[test]
fn an_eni_that_is_there_at_once_is_attached_at_once() {
    let mut bed = bed(1, Span::new(0, 0));
    bed.until(Duration::from_mins(1), "an ENI", |bed| {
        bed.calls("CreateNetworkInterface") == 1
    });
    let took = bed.until(Duration::from_mins(1), "an attachment", |bed| {
        bed.calls("AttachNetworkInterface") == 1
    });
    assert!(took <= Duration::from_millis(200), "{took:?}");
}

#[test]
fn an_eni_that_is_still_made_is_deleted_when_its_instance_ends() {
    let mut bed = bed(1, Span::new(8_000, 8_000));
    bed.until(Duration::from_mins(1), "an ENI", |bed| {
        bed.calls("CreateNetworkInterface") == 1
    });
    let date = bed.at().date;
    bed.cloud.terminate("i-one", date).unwrap();
    bed.run(Duration::from_mins(30));
    assert_eq!(bed.loose(), Vec::<String>::new());
    let early = bed
        .cloud
        .log()
        .filter(|it| it.error.as_deref() == Some("InvalidNetworkInterfaceID.NotFound"));
    assert_eq!(early.count(), 0);
}
