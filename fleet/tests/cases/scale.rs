//! Many nodes: how long they take, how many calls, what is left.

use std::time::Duration;

use ec2_fake::world::World;
use serde_json::json;

use super::bed::{Bed, CLUSTER, world};
use fleet::Settings;

/// Nodes that need an ENI each beside their own: prefixes, and the primary ENI left alone.
fn bed(count: usize, world: &World) -> Bed {
    let settings = Settings {
        prefixes: true,
        ..Settings::of(CLUSTER)
    };
    let mut bed = Bed::with(world, settings);
    for number in 0..count {
        add(&mut bed, &format!("n{number:04}"));
    }
    bed.run(Duration::from_mins(1));
    bed.lead();
    bed
}

fn add(bed: &mut Bed, name: &str) {
    bed.add_node(name, "m5.4xlarge", "subnet-a");
    let spec = json!({"eni": {"first-interface-index": 1}});
    bed.change(name, &json!({"spec": spec}));
}

fn all_served(bed: &Bed) -> bool {
    bed.api.objects.keys().all(|name| bed.shown(name) >= 8)
}

fn assert_cold(count: usize, limit: u64) -> Bed {
    let mut bed = bed(count, &world());
    let limit = Duration::from_secs(limit);
    let took = bed.until(limit * 3, "addresses for all", all_served);
    assert!(took <= limit, "{count} nodes took {took:?}");
    bed.run(Duration::from_mins(3));
    assert!(
        bed.throttled() <= 1.0,
        "{} % are throttled",
        bed.throttled()
    );
    bed.assert_true("cold");
    bed.assert_no_leaks("cold");
    let most = bed.api.writes.values().max();
    assert!(most.is_some_and(|it| *it <= 3), "{most:?} writes of a node");
    bed
}

/// The time that EC2's token buckets need for a new ENI of each node, at the used share: that of
/// the slowest of the three calls. Cilium's operator has one bucket of 4 per second for all calls,
/// and needs five of them for a node.
fn bound(nodes: usize, share: f64) -> Duration {
    let nodes = f64::from(u32::try_from(nodes).unwrap());
    let buckets = [(100.0, 5.0), (50.0, 5.0), (50.0, 5.0)];
    let times = buckets.map(|(burst, rate)| (nodes - burst * share) / (rate * share));
    Duration::from_secs_f64(times.into_iter().fold(0.0, f64::max))
}

/// The long form is for `cargo xtask test --full`.
#[test]
fn all_nodes_of_a_cold_cluster_are_served_within_the_bound_of_the_buckets() {
    let is_full = std::env::var_os("TOWPATH_FULL").is_some();
    let count = if is_full { 5000 } else { 250 };
    let bound = bound(count, cloud::budget::SHARE);
    // In a small cluster the time of a single node matters.
    let single = Duration::from_secs(if is_full { 0 } else { 10 });
    let begun = std::time::Instant::now();
    assert_cold(count, (bound.mul_f64(1.06) + single).as_secs());
    let took = begun.elapsed();
    println!("{count} nodes: bound {bound:?}, simulated in {took:?}");
}

/// Blocks come at the pace of the API server: EC2 has no part in them.
#[test]
fn blocks_of_plain_pools_for_many_nodes_cost_one_write_each() {
    let is_full = std::env::var_os("TOWPATH_FULL").is_some();
    let count = if is_full { 5000 } else { 500 };
    let mut bed = Bed::new(&world());
    let spec = json!({"ipv4": {"cidrs": ["172.16.0.0/12"], "maskSize": 24}});
    bed.api.set_pool("green", &spec, bed.now);
    for number in 0..count {
        let requested = json!([{"pool": "green", "needed": {"ipv4-addrs": 250}}]);
        let ipam = json!({"pools": {"requested": requested}});
        bed.change(&format!("n{number:04}"), &json!({"spec": {"ipam": ipam}}));
    }
    bed.lead();
    let has_block = |node: &serde_json::Value| {
        node["spec"]["ipam"]["pools"]["allocated"][0]["cidrs"].is_array()
    };
    bed.until(Duration::from_secs(30), "blocks for all", |bed| {
        bed.api.objects.values().all(has_block)
    });
    bed.run(Duration::from_mins(1));
    let nodes = bed
        .api
        .writes
        .iter()
        .filter(|(name, _)| !name.starts_with("pool"));
    // The first leader of all touches each node once.
    assert!(nodes.clone().all(|(_, writes)| *writes == 2));
    assert_eq!(nodes.count(), count);
    let space = bed.plain_pool("green").ipv4.unwrap();
    assert_eq!(space.taken, u64::try_from(count).unwrap());
}

#[test]
fn a_hundred_and_fifty_nodes_are_served_within_45_seconds() {
    assert_cold(150, 45);
}

#[test]
fn five_hundred_nodes_are_served_within_130_seconds_and_then_cost_nothing() {
    let mut bed = assert_cold(500, 130);
    assert_rate(&bed);
    bed.run(Duration::from_mins(5));
    let (calls, writes) = (bed.cloud.log().count(), bed.api.writes.clone());
    bed.run(Duration::from_mins(30));
    let calls = bed.cloud.log().count() - calls;
    assert!(calls <= 360, "{calls} calls in 30 min");
    assert_eq!(bed.api.writes, writes);
}

/// Creations come at the configured rate once the first burst is over: 0.8 of 5 a second.
fn assert_rate(bed: &Bed) {
    let creations = bed
        .cloud
        .log()
        .filter(|it| it.action == "CreateNetworkInterface");
    let times: Vec<_> = creations.map(|it| it.at).collect();
    let after = |seconds| times[0] + jiff::SignedDuration::from_secs(seconds);
    let steady = times
        .iter()
        .filter(|it| **it >= after(20) && **it < after(100));
    let count = steady.count();
    assert!((304..=336).contains(&count), "{count} in 80 s");
}

/// Nodes come, go, and change what they want, for an hour.
#[test]
fn an_hour_of_churn_leaves_nothing_behind() {
    let mut bed = bed(40, &world());
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    let mut born = 40;
    for _ in 0..120 {
        bed.run(Duration::from_secs(30));
        bed.assert_true("churn");
        let names: Vec<String> = bed.api.objects.keys().cloned().collect();
        let name = &names[usize::try_from(draw(names.len() as u64)).unwrap()];
        if draw(3) == 0 {
            let date = bed.at().date;
            bed.cloud.terminate(&format!("i-{name}"), date).unwrap();
            bed.api.delete(name, bed.now);
            add(&mut bed, &format!("n{born:04}"));
            born += 1;
        } else {
            let wanted = u32::try_from(8 + draw(600)).unwrap();
            bed.request(name, wanted);
        }
    }
    bed.run(Duration::from_mins(25));
    assert!(all_served(&bed));
    bed.assert_true("churn");
    bed.assert_no_leaks("churn");
    assert!(
        bed.throttled() <= 1.0,
        "{} % are throttled",
        bed.throttled()
    );
}

#[test]
fn an_account_with_lower_rates_is_adapted_to() {
    let mut world = world();
    let rate = ec2_fake::Rate {
        burst: 10.0,
        refill: 1.0,
    };
    let action = "CreateNetworkInterface".to_owned();
    world.settings.rates.insert(action, rate);
    let mut bed = bed(60, &world);
    bed.until(Duration::from_mins(4), "addresses for all", all_served);
    let throttled = bed.fleet.budgets(bed.at());
    let create = throttled
        .iter()
        .find(|it| it.action == "CreateNetworkInterface");
    assert!(
        create.is_some_and(|it| it.throttled > 0 && it.factor < 1.0),
        "{create:?}"
    );
    bed.run(Duration::from_mins(3));
    bed.assert_no_leaks("lower rates");
}
