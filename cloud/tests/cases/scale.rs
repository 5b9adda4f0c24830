//! Many nodes at once, within EC2's own budgets.

use std::collections::BTreeMap;

use cloud::Action;
use cloud::call::budget::{Bucket, Budgets, SHARE, default_rate};

use super::bed::{Bed, Random, node};

/// A bed in which EC2 counts calls and so does the operator.
fn bed(count: usize) -> Bed {
    let mut bed = Bed::new();
    let now = bed.ec2.now;
    let bucket = |action| (action, Bucket::new(default_rate(action), now));
    bed.ec2.buckets = Action::ALL.map(bucket).into();
    bed.budgets = Budgets::new(SHARE, &BTreeMap::new(), now);
    let subnets = u8::try_from(count / 10 + 1).unwrap();
    for n in 0..subnets {
        bed.ec2.add_subnet(&format!("s{n}"), n + 2);
    }
    for n in 0..count {
        add(&mut bed, n, usize::from(subnets));
    }
    bed
}

fn add(bed: &mut Bed, n: usize, subnets: usize) {
    let mut node = node(&n.to_string(), "m5.4xlarge");
    node.rules.prefixes = true;
    node.rules.first_index = 1;
    node.location.as_mut().unwrap().own = Some(format!("s{}", n % subnets).as_str().into());
    bed.add(&n.to_string(), node);
    bed.set_requested(&n.to_string(), 8, 0);
}

/// Seconds until every node has addresses on an attached ENI.
fn time_to_serve(bed: &mut Bed) -> u64 {
    let instances = bed.nodes.len();
    (1..1000)
        .find(|_| {
            bed.run(1);
            let serving = bed.ec2.enis.values();
            serving
                .filter(|it| it.is_attached() && !it.blocks.is_empty())
                .count()
                >= instances
        })
        .unwrap()
}

fn throttled(bed: &Bed) -> u64 {
    bed.budgets.view().map(|it| it.throttled).sum()
}

#[test]
fn a_cluster_comes_up_within_the_budgets_and_is_idle_then() {
    let mut bed = bed(150);
    let seconds = time_to_serve(&mut bed);
    assert!(seconds <= 45, "{seconds} s");
    bed.run(120);
    assert_eq!(bed.ec2.calls.len(), 3 * 150, "create, attach, mark");
    assert_eq!(throttled(&bed), 0);
    bed.run(120);
    assert_eq!(bed.ec2.calls.len(), 3 * 150);
    assert_eq!(
        bed.memory.inventory.due(bed.ec2.now, |_| true),
        cloud::inventory::Due::default()
    );
    bed.assert_published_blocks_are_true();
}

#[test]
fn another_user_of_the_account_slows_the_cluster_and_stops_nothing() {
    let mut bed = bed(60);
    for bucket in bed.ec2.buckets.values_mut() {
        bucket.set_rate(bucket.rate().share(0.1), bed.ec2.now);
    }
    let seconds = time_to_serve(&mut bed);
    assert!(seconds <= 240, "{seconds} s");
    assert!(throttled(&bed) > 0);
    bed.run(600);
    assert!(bed.loose().is_empty());
    let calls = bed.ec2.calls.len() - usize::try_from(throttled(&bed)).unwrap();
    assert_eq!(calls, 3 * 60);
}

#[test]
fn an_hour_of_churn_leaves_nothing_behind() {
    let mut bed = bed(12);
    bed.random = Random::new(7);
    (bed.faults.chance, bed.lag) = (3, 30);
    for minute in 0..60 {
        for n in 0..12 {
            let wanted = 8 + u32::try_from(bed.random.below(40)).unwrap();
            let name = n.to_string();
            if bed.nodes.contains_key(&name) {
                bed.set_requested(&name, wanted, 0);
            }
        }
        // Instances come and go.
        let old = 12 * (minute / 12) + minute % 12;
        if minute % 5 == 4 {
            bed.nodes.remove(&old.to_string());
            bed.progress.remove(&old.to_string());
            bed.ec2.terminate(&format!("i-{old}"));
            add(&mut bed, 100 + minute, 2);
        }
        bed.run(60);
        bed.assert_published_blocks_are_true();
    }
    bed.faults.chance = 0;
    bed.run(2400);
    assert!(bed.loose().is_empty(), "{:?}", bed.loose());
    let running = &bed.ec2.instances;
    let lost = bed
        .ec2
        .enis
        .values()
        .filter(|eni| !eni.instance().is_some_and(|it| running.contains_key(it)));
    assert_eq!(lost.count(), 0);
    for name in bed.nodes.keys() {
        assert!(bed.available(name) >= 8, "{name}");
    }
}
