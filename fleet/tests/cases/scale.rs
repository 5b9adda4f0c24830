//! Many nodes: how long they take, how many calls, what is left.

use std::collections::VecDeque;
use std::fs;
use std::time::{Duration, Instant};

use ec2_fake::world::World;
use serde_json::json;

use super::bed::{Bed, CLUSTER, document, world, world_of};
use super::others::{assert_groups_follow, crowd};
use fleet::Settings;

/// Bytes of an ENI with a prefix in an answer of EC2.
const ENI: usize = 2_570;
/// Zones, each with a subnet of 65,536 addresses: a node takes up to 32 of them.
const ZONES: [char; 4] = ['a', 'b', 'c', 'd'];

/// A cloud with room for thousands of nodes.
fn wide() -> World {
    let mut document = document();
    let subnets = ZONES.iter().zip(1..).map(|(zone, number)| {
        json!({
            "id": format!("subnet-{zone}"), "vpc": "vpc-1", "zone": zone.to_string(),
            "ipv4": format!("10.{number}.0.0/16")
        })
    });
    document["subnets"] = subnets.collect();
    let groups = document["groups"].as_array_mut().unwrap();
    groups.push(json!({"id": "sg-2", "vpc": "vpc-1", "name": "other"}));
    let mut world = world_of(document);
    // EC2's default of 5,000 is less than the nodes' own ENIs.
    world.settings.interface_quota = 20_000;
    world
}

/// Nodes that need an ENI each beside their own: prefixes, and the primary ENI left alone.
fn bed(count: usize, world: &World) -> Bed {
    let mut settings = Settings::of(CLUSTER);
    settings.enis.prefixes = true;
    let mut bed = Bed::with(world, settings);
    for number in 0..count {
        add(&mut bed, number);
    }
    bed.run(Duration::from_mins(1));
    bed.lead();
    bed
}

fn name(number: usize) -> String {
    format!("n{number:05}")
}

fn add(bed: &mut Bed, number: usize) {
    let subnet = format!("subnet-{}", ZONES[number % ZONES.len()]);
    bed.add_node(&name(number), "m5.4xlarge", &subnet);
    let spec = json!({"eni": {"first-interface-index": 1}});
    bed.change(&name(number), &json!({"spec": spec}));
}

/// Ends the instance of a node, whose object goes with it.
fn end(bed: &mut Bed, name: &str) {
    let (now, date) = (bed.now, bed.at().date);
    bed.cloud.terminate(&format!("i-{name}"), date).unwrap();
    bed.api.delete(name, now);
}

fn all_served(bed: &Bed) -> bool {
    bed.api.objects.keys().all(|name| bed.shown(name) >= 8)
}

/// A condition for each step of a simulation. A node that has its addresses is not looked at again.
fn all_become_served(bed: &Bed) -> impl FnMut(&Bed) -> bool + use<> {
    let mut waiting: Vec<_> = bed.api.objects.keys().cloned().collect();
    move |bed| {
        while waiting.last().is_some_and(|name| bed.shown(name) >= 8) {
            waiting.pop();
        }
        waiting.is_empty()
    }
}

fn assert_cold(count: usize, limit: u64) -> Bed {
    let mut bed = bed(count, &wide());
    let limit = Duration::from_secs(limit);
    let served = all_become_served(&bed);
    let took = bed.until(limit * 3, "addresses for all", served);
    let times = [
        cilium(count),
        bound(count, cloud::call::budget::SHARE),
        took,
        limit,
    ];
    let times = times
        .map(|time| format!("{} s", time.as_secs()))
        .join(" | ");
    println!("bench operator: {count} | {times} | {}", memory());
    assert!(took <= limit, "{count} nodes took {took:?}");
    bed.run(Duration::from_mins(3));
    assert_settled(&bed, "cold");
    let most = bed.api.writes.values().max();
    assert!(most.is_some_and(|it| *it <= 3), "{most:?} writes of a node");
    bed
}

/// Nothing leaks, all that is shown is true, and EC2 throttled at most one call in a hundred.
fn assert_settled(bed: &Bed, label: &str) {
    bed.assert_true(label);
    bed.assert_no_leaks(label);
    let throttled = bed.throttled();
    assert!(throttled <= 1.0, "{label}: {throttled} % are throttled");
}

/// The time that Cilium's operator needs, by its code: five calls for each node, and one bucket of 4
/// a second with a burst of 20 for all of them.
fn cilium(nodes: usize) -> Duration {
    let nodes = u64::try_from(nodes).unwrap();
    Duration::from_secs((5 * nodes).saturating_sub(20) / 4)
}

/// The time that EC2's token buckets need for a new ENI of each node, at the used share: that of
/// the slowest of the three calls.
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
    let bound = bound(count, cloud::call::budget::SHARE);
    // In a small cluster the time of a single node matters.
    let single = Duration::from_secs(if is_full { 0 } else { 10 });
    let begun = Instant::now();
    let mut bed = assert_cold(count, (bound.mul_f64(1.06) + single).as_secs());
    let took = begun.elapsed();
    if is_full {
        assert_costs(&mut bed);
    }
    println!(
        "{count} nodes: bound {bound:?}, simulated in {took:?}, {}",
        memory()
    );
}

/// The most memory that the test program has had, by the kernel.
fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    peak.unwrap()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Nodes are replaced for hours, the oldest first. Each new one is served within two minutes. The
/// long form has 5,000 nodes, of which 100 a minute are replaced for six hours.
#[test]
fn hours_of_replaced_nodes_leave_nothing_behind() {
    let is_full = std::env::var_os("TOWPATH_FULL").is_some();
    let (count, minutes, a_minute) = if is_full {
        (5000, 360, 100)
    } else {
        (100, 60, 2)
    };
    let begun = Instant::now();
    let mut bed = bed(count, &wide());
    let limit = bound(count, cloud::call::budget::SHARE).mul_f64(1.06) + Duration::from_secs(10);
    let served = all_become_served(&bed);
    let took = bed.until(limit * 3, "addresses for all", served);
    assert!(
        took <= limit,
        "{count} nodes took {took:?}, expected {limit:?}"
    );
    let mut ages: VecDeque<usize> = (0..count).collect();
    for minute in 1..=minutes {
        for number in (count + (minute - 1) * a_minute..).take(a_minute) {
            let oldest = ages.pop_front().unwrap();
            end(&mut bed, &name(oldest));
            add(&mut bed, number);
            ages.push_back(number);
        }
        bed.run(Duration::from_mins(1));
        let mut old = ages.iter().take(count - 2 * a_minute);
        let unserved = old.find(|number| bed.shown(&name(**number)) < 8);
        assert_eq!(unserved, None, "after {minute} min");
        if minute % 20 == 0 {
            bed.assert_true("churn");
        }
    }
    bed.run(Duration::from_mins(20));
    assert!(all_served(&bed));
    assert_settled(&bed, "churn");
    let replaced = minutes * a_minute;
    println!(
        "{count} nodes: served after {took:?}, then {replaced} replaced in {minutes} min; \
         simulated in {:?}, {}",
        begun.elapsed(),
        memory()
    );
}

/// Blocks come at the pace of the API server: EC2 has no part in them.
#[test]
fn blocks_of_plain_pools_for_many_nodes_cost_one_write_each() {
    let is_full = std::env::var_os("TOWPATH_FULL").is_some();
    let count = if is_full { 5000 } else { 500 };
    let mut bed = Bed::new(&world());
    let spec = json!({"ipv4": {"cidrs": ["100.64.0.0/10"], "maskSize": 24}});
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
fn a_cluster_comes_up_with_150_nodes_within_45_seconds() {
    assert_cold(150, 45);
}

#[test]
fn a_cluster_comes_up_with_500_nodes_within_130_seconds_and_costs_nothing_then() {
    let mut bed = assert_cold(500, 130);
    assert_rate(&bed);
    assert_costs(&mut bed);
}

/// Listings of all ENIs come every 200 seconds, and the primary ENIs are too many to be read by id.
#[test]
fn groups_of_many_nodes_follow_the_primary_enis_within_two_minutes_beside_many_others() {
    let mut world = wide();
    world.settings.throttle = false;
    let mut bed = bed(1_100, &world);
    let served = all_become_served(&bed);
    bed.until(Duration::from_mins(10), "addresses for all", served);
    crowd(&mut bed, "subnet-a", 8_000);
    bed.run(Duration::from_mins(5));
    for (number, seconds) in [1, 50, 130].into_iter().enumerate() {
        bed.run(Duration::from_secs(seconds));
        assert_groups_follow(&mut bed, &format!("i-{}", name(number)), "sg-2");
    }
}

/// A cluster at rest costs few calls and no writes, and a new leader is at work soon.
fn assert_costs(bed: &mut Bed) {
    bed.run(Duration::from_mins(5));
    let (calls, writes) = (bed.cloud.log().count(), bed.api.writes.clone());
    bed.run(Duration::from_hours(1));
    let listed = bed.cloud.log().skip(calls);
    let listed = listed.filter(|it| it.action == "DescribeNetworkInterfaces");
    let listed = listed.filter_map(|it| it.page.as_ref()).map(|it| it.items);
    let listed = listed.sum::<usize>() * ENI;
    let calls = bed.cloud.log().count() - calls;
    assert!(calls <= 720, "{calls} calls in an hour");
    assert_eq!(bed.api.writes, writes);
    let nodes = bed.api.objects.len();
    // A page of the listing every ten seconds, and one listing more in an hour. Where listings are
    // rarer than every 90 seconds, the primary ENIs are read that often.
    let has_primaries = 2 * nodes > 9 * 500;
    let primaries = if has_primaries { 41 * nodes } else { 0 };
    let most = (360 * 500 + 2 * nodes + primaries) * ENI;
    assert!(listed <= most, "{listed} bytes listed in an hour");
    let took = take_over(bed);
    assert!(took <= Duration::from_secs(40), "{took:?}");
    let mega = |bytes: usize| format!("{} MB", bytes / 1_000_000);
    let milli = calls * 1000 / (60 * 60);
    let written = writes.values().max().unwrap();
    for [cost, cilium, ours, target] in [
        [
            "calls a second at rest".to_owned(),
            "0.3, and a listing each minute".to_owned(),
            format!("0.{milli:03}"),
            "0.2".to_owned(),
        ],
        [
            "ENIs listed an hour at rest".to_owned(),
            mega(60 * 2 * nodes * ENI),
            mega(listed),
            mega(most),
        ],
        [
            "writes at rest".to_owned(),
            "0".to_owned(),
            "0".to_owned(),
            "0".to_owned(),
        ],
        [
            "most writes of a new node".to_owned(),
            "2, and repetitions".to_owned(),
            written.to_string(),
            "3".to_owned(),
        ],
        [
            "from a leader's end to the next change".to_owned(),
            "15 s, and a listing".to_owned(),
            format!("{:.1} s", took.as_secs_f64()),
            "40 s".to_owned(),
        ],
    ] {
        println!("bench operator cost: {cost} | {nodes} | {cilium} | {ours} | {target}");
    }
}

/// A leader dies as a node wants more addresses, and another one leads once the Lease is over. Returns
/// the time until the next change of EC2.
fn take_over(bed: &mut Bed) -> Duration {
    let assigned = bed.calls("AssignPrivateIpAddresses");
    bed.request(&name(0), 30);
    bed.kill();
    let lease = Duration::from_secs(15);
    bed.run(lease);
    assert_eq!(bed.calls("AssignPrivateIpAddresses"), assigned);
    bed.lead();
    let limit = Duration::from_mins(2);
    lease
        + bed.until(limit, "an assignment", |bed| {
            bed.calls("AssignPrivateIpAddresses") > assigned
        })
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
    let mut bed = bed(40, &wide());
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
            end(&mut bed, name);
            add(&mut bed, born);
            born += 1;
        } else {
            let wanted = u32::try_from(8 + draw(600)).unwrap();
            bed.request(name, wanted);
        }
    }
    bed.run(Duration::from_mins(25));
    assert!(all_served(&bed));
    assert_settled(&bed, "churn");
}

#[test]
fn an_account_with_lower_rates_is_adapted_to() {
    let mut world = wide();
    let rate = ec2_fake::Rate {
        burst: 10.0,
        refill: 1.0,
    };
    let action = "CreateNetworkInterface".to_owned();
    world.settings.rates.insert(action, rate);
    let mut bed = bed(60, &world);
    let served = all_become_served(&bed);
    bed.until(Duration::from_mins(4), "addresses for all", served);
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
