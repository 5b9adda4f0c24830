//! Plain pools: nodes get blocks, pools change and go, leaders take over.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet::{About, Part, Settings, Task, Written};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::bed::{Bed, CLUSTER, Fault, Planned, world};
use super::reports::refuse;

const SOON: Duration = Duration::from_secs(30);

pub(super) fn bed() -> Bed {
    let mut bed = Bed::with(&world(), Settings::of(CLUSTER));
    bed.lead();
    bed
}

/// A pool of blocks that have four addresses, each of which can be given.
pub(super) fn small(cidrs: &[&str]) -> Value {
    json!({"ipv4": {"cidrs": cidrs, "maskSize": 30}, "allowFirstIP": true, "allowLastIP": true})
}

pub(super) fn set_pool(bed: &mut Bed, name: &str, spec: &Value) {
    bed.api.set_pool(name, spec, bed.now);
}

/// A node of no instance wants this many addresses of each family.
pub(super) fn want(bed: &mut Bed, node: &str, pool: &str, [ipv4, ipv6]: [u32; 2]) {
    let needed = json!({"ipv4-addrs": ipv4, "ipv6-addrs": ipv6});
    let requested = json!([{"pool": pool, "needed": needed}]);
    bed.change(
        node,
        &json!({"spec": {"ipam": {"pools": {"requested": requested}}}}),
    );
}

/// The agent of a node has these blocks alone.
fn keep(bed: &mut Bed, node: &str, pool: &str, cidrs: &[String]) {
    let allocated = json!([{"pool": pool, "cidrs": cidrs}]);
    bed.change(
        node,
        &json!({"spec": {"ipam": {"pools": {"allocated": allocated}}}}),
    );
}

pub(super) fn blocks(bed: &Bed, node: &str) -> Vec<String> {
    let all = bed.api.objects[node]["spec"]["ipam"]["pools"]["allocated"].as_array();
    let cidrs = all
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["cidrs"].as_array());
    let texts = cidrs.flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// Checks that no two nodes have an address in common. Returns the number of blocks.
pub(super) fn check(bed: &Bed) -> usize {
    let mut owners: BTreeMap<IpNet, &str> = BTreeMap::new();
    for node in bed.api.objects.keys() {
        for block in blocks(bed, node) {
            let other = owners.insert(block.parse().unwrap(), node);
            assert_eq!(other, None, "{block} of {node}");
        }
    }
    let all: Vec<_> = owners.keys().collect();
    assert!(all.windows(2).all(|pair| !pair[0].contains(pair[1])));
    owners.len()
}

pub(super) fn faults(bed: &Bed, pool: &str) -> Vec<String> {
    let is_about = |about: &About| matches!(about, About::Pool { name, .. } if name == pool);
    let events = bed.events.iter().filter(|it| is_about(&it.about));
    events
        .map(|it| format!("{:?}: {}", it.reason, it.text))
        .collect()
}

#[test]
fn a_node_gets_blocks_of_both_families_and_more_as_its_demand_grows() {
    let mut bed = bed();
    let spec = json!({
        "ipv4": {"cidrs": ["172.16.0.0/16"], "maskSize": 28},
        "ipv6": {"cidrs": ["fd00::/104"], "maskSize": 120}
    });
    set_pool(&mut bed, "green", &spec);
    want(&mut bed, "one", "green", [8, 8]);
    bed.until(SOON, "both families", |bed| blocks(bed, "one").len() == 2);
    want(&mut bed, "two", "green", [20, 0]);
    bed.until(SOON, "two blocks", |bed| blocks(bed, "two").len() == 2);
    assert_eq!(blocks(&bed, "one"), ["172.16.0.0/28", "fd00::/120"]);
    want(&mut bed, "one", "green", [15, 8]);
    bed.until(SOON, "another one", |bed| blocks(bed, "one").len() == 3);
    assert_eq!(check(&bed), 5);
    bed.run(SOON);
    // Neither waits for an instance that it does not name.
    assert!(bed.fleet.nodes(bed.at()).iter().all(|it| it.missing == 0));
    assert_eq!((bed.report("one"), bed.report("two")), ("", ""));
    let writes = bed.api.writes.clone();
    bed.run(SOON * 20);
    assert_eq!(
        bed.api.writes, writes,
        "nothing is written where nothing changes"
    );
}

#[test]
fn a_full_pool_is_named_and_a_new_cidr_serves_who_waits() {
    let mut bed = bed();
    set_pool(&mut bed, "green", &small(&["172.16.0.0/30"]));
    want(&mut bed, "one", "green", [4, 0]);
    bed.until(SOON, "the last block", |bed| blocks(bed, "one").len() == 1);
    want(&mut bed, "two", "green", [4, 0]);
    bed.until(SOON, "the report", |bed| {
        bed.report("two").starts_with("PoolFull: ")
    });
    want(&mut bed, "three", "absent", [1, 0]);
    bed.until(SOON, "the other report", |bed| {
        bed.report("three").starts_with("PoolUnknown: ")
    });
    set_pool(
        &mut bed,
        "green",
        &small(&["172.16.0.0/30", "172.17.0.0/30"]),
    );
    bed.until(SOON, "a block", |bed| {
        blocks(bed, "two") == ["172.17.0.0/30"]
    });
    bed.until(SOON, "no report", |bed| bed.report("two").is_empty());
    // Released blocks are assigned again.
    want(&mut bed, "two", "green", [8, 0]);
    bed.until(SOON, "full again", |bed| !bed.report("two").is_empty());
    want(&mut bed, "one", "green", [0, 0]);
    keep(&mut bed, "one", "green", &[]);
    bed.until(SOON, "the block of the other", |bed| {
        blocks(bed, "two").len() == 2
    });
    assert_eq!(check(&bed), 2);
}

#[test]
fn a_pool_in_use_names_its_cidrs_and_goes_after_its_last_block() {
    let mut bed = bed();
    set_pool(
        &mut bed,
        "green",
        &small(&["172.16.0.0/30", "172.17.0.0/30"]),
    );
    want(&mut bed, "one", "green", [4, 0]);
    let mark = |bed: &Bed| {
        let marks = &bed.api.pools["green"]["metadata"]["annotations"];
        marks["pool.towpath.dev/cidrs-in-use"]
            .as_str()
            .map(str::to_owned)
    };
    let named = Some("172.16.0.0/30".to_owned());
    bed.until(SOON, "the CIDR is named", |bed| mark(bed) == named);
    set_pool(&mut bed, "green", &Value::Null);
    bed.run(SOON);
    let reported = faults(&bed, "green");
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].starts_with("PoolInUse: "), "{reported:?}");
    want(&mut bed, "two", "green", [4, 0]);
    bed.until(SOON, "the report", |bed| {
        bed.report("two").starts_with("PoolUnusable: ")
    });
    assert!(bed.api.pools.contains_key("green"));
    bed.api.delete("one", bed.now);
    bed.until(SOON, "the pool goes", |bed| bed.api.pools.is_empty());
}

#[test]
fn nothing_is_lost_when_a_pool_shrinks_or_is_removed_by_force() {
    let mut bed = bed();
    set_pool(&mut bed, "green", &small(&["172.16.0.0/29"]));
    want(&mut bed, "one", "green", [8, 0]);
    bed.until(SOON, "all blocks", |bed| blocks(bed, "one").len() == 2);
    let before = blocks(&bed, "one");
    bed.api.pools.clear();
    set_pool(&mut bed, "blue", &small(&["172.16.0.0/28"]));
    want(&mut bed, "two", "blue", [16, 0]);
    bed.until(SOON, "what is free", |bed| blocks(bed, "two").len() == 2);
    bed.run(SOON);
    assert_eq!(blocks(&bed, "one"), before);
    assert_eq!(check(&bed), 4);
    let green = bed.plain_pool("green");
    assert_eq!(green.orphans.len(), 2, "{green:?}");
    // They go with their node, and are free then.
    bed.api.delete("one", bed.now);
    bed.until(SOON, "the rest", |bed| blocks(bed, "two").len() == 4);
}

/// The pool's first CIDR is that of the VPC, or of services.
fn overlapping() -> Value {
    small(&["10.200.0.0/24", "172.16.0.0/24"])
}

#[test]
fn no_block_is_granted_before_the_services_are_read() {
    let mut bed = Bed::with(&world(), Settings::of(CLUSTER));
    bed.watched.services = None;
    set_pool(&mut bed, "green", &overlapping());
    want(&mut bed, "two", "green", [4, 0]);
    bed.lead();
    let text = "NotReady: blocks of plain pools are granted once the ServiceCIDRs are read";
    bed.until(SOON, "the reason", |bed| {
        bed.report("two").starts_with(text)
    });
    bed.run(SOON);
    assert_eq!(blocks(&bed, "two"), [""; 0]);
    bed.watched.services = Some(["10.200.0.0/16".parse().unwrap()].into());
    bed.until(SOON, "a block", |bed| {
        blocks(bed, "two") == ["172.16.0.0/30"]
    });
    let reported = faults(&bed, "green");
    let named = "overlaps with 10.200.0.0/16 of the cluster's services";
    assert!(reported[0].contains(named), "{reported:?}");
}

#[test]
fn no_block_is_granted_before_the_vpcs_are_read() {
    let mut bed = Bed::with(&world(), Settings::of(CLUSTER));
    bed.add_node("one", "m5.large", "subnet-a");
    set_pool(&mut bed, "green", &overlapping());
    want(&mut bed, "two", "green", [4, 0]);
    refuse(&mut bed, "DescribeVpcs", "UnauthorizedOperation", 1);
    bed.lead();
    let text = "NotReady: blocks of plain pools are granted once the CIDRs of vpc-1 are read";
    bed.until(SOON, "the reason", |bed| {
        bed.report("two").starts_with(text)
    });
    bed.run(SOON);
    assert_eq!(blocks(&bed, "two"), [""; 0]);
    let retried = Duration::from_mins(6);
    bed.until(retried, "a block", |bed| {
        blocks(bed, "two") == ["172.16.0.0/30"]
    });
}

/// One bad document must not keep all nodes from their blocks.
#[test]
fn a_vpc_that_ec2_does_not_have_keeps_no_block_back() {
    let mut bed = bed();
    bed.add_node("one", "m5.large", "subnet-a");
    bed.change("one", &json!({"spec": {"eni": {"vpc-id": "vpc-9"}}}));
    set_pool(&mut bed, "green", &small(&["172.16.0.0/24"]));
    want(&mut bed, "two", "green", [4, 0]);
    bed.until(SOON, "a block", |bed| {
        blocks(bed, "two") == ["172.16.0.0/30"]
    });
}

#[test]
fn addresses_of_the_vpc_are_refused_by_name() {
    let mut bed = bed();
    bed.add_node("one", "m5.large", "subnet-a");
    bed.until(SOON, "the VPC is read", |bed| bed.shown("one") > 0);
    set_pool(&mut bed, "green", &overlapping());
    want(&mut bed, "two", "green", [4, 0]);
    bed.until(SOON, "the other CIDR serves", |bed| {
        blocks(bed, "two") == ["172.16.0.0/30"]
    });
    let reported = faults(&bed, "green");
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].contains("overlaps with 10.0.0.0/8 of VPC vpc-1"),
        "{reported:?}"
    );
}

#[test]
fn a_node_on_enis_gets_blocks_beside_them() {
    let mut bed = bed();
    bed.add_node("one", "m5.large", "subnet-a");
    bed.until(SOON, "addresses of ENIs", |bed| bed.shown("one") >= 8);
    set_pool(&mut bed, "green", &small(&["172.16.0.0/24"]));
    // A plain pool of that name gives nothing to a node whose default pool ENIs serve.
    set_pool(&mut bed, "default", &small(&["172.17.0.0/24"]));
    let requested = json!([
        {"pool": "default", "needed": {"ipv4-addrs": 10}},
        {"pool": "green", "needed": {"ipv4-addrs": 4}}
    ]);
    bed.change(
        "one",
        &json!({"spec": {"ipam": {"pools": {"requested": requested}}}}),
    );
    bed.until(SOON, "a block", |bed| {
        blocks(bed, "one") == ["172.16.0.0/30"]
    });
    bed.until(SOON, "more addresses", |bed| bed.shown("one") >= 10);
    assert_eq!(bed.report("one"), "");
}

#[test]
fn a_paused_leader_that_wakes_grants_nothing_twice() {
    let mut bed = bed();
    set_pool(&mut bed, "green", &small(&["172.16.0.0/29"]));
    bed.run(SOON);
    bed.faults.planned = Some(Planned {
        what: "spec",
        skip: 0,
        fault: Fault::Unsent,
        kills: true,
    });
    // The leader plans a grant, and is paused before it sends it.
    want(&mut bed, "one", "green", [4, 0]);
    bed.run(SOON);
    let late = bed.faults.unsent.pop().unwrap();
    // The next one serves another node first, and has no block left for this one.
    want(&mut bed, "another", "green", [8, 0]);
    bed.lead();
    bed.until(SOON, "the other node is served", |bed| {
        blocks(bed, "another").len() == 2
    });
    let Task::Patch { name, body, .. } = late else {
        panic!("{late:?}");
    };
    let written = bed.api.patch(&name, Part::Spec, &body, bed.now);
    assert!(matches!(written, Written::Conflict), "{written:?}");
    bed.run(SOON);
    check(&bed);
}

#[test]
fn a_new_leader_lists_what_its_watch_has_not_brought_yet() {
    let mut bed = bed();
    set_pool(&mut bed, "green", &small(&["172.16.0.0/30"]));
    want(&mut bed, "one", "green", [0, 0]);
    want(&mut bed, "two", "green", [0, 0]);
    bed.run(SOON);
    let stale = bed.api.objects.values().cloned().collect();
    want(&mut bed, "one", "green", [4, 0]);
    bed.until(SOON, "a block", |bed| blocks(bed, "one").len() == 1);
    bed.kill();
    // Its watch is late by minutes.
    bed.api.lag = Duration::from_mins(5);
    bed.lead_from(stale);
    want(&mut bed, "two", "green", [4, 0]);
    bed.run(Duration::from_mins(10));
    assert_eq!(check(&bed), 1);
    assert!(
        bed.report("two").starts_with("PoolFull: "),
        "{}",
        bed.report("two")
    );
}

#[test]
fn pod_cidrs_become_blocks_of_the_default_pool() {
    let mut settings = Settings::of(CLUSTER);
    settings.pools.migrate_pod_cidrs = true;
    let mut bed = Bed::with(&world(), settings);
    set_pool(&mut bed, "default", &small(&["172.16.0.0/28"]));
    let ipam = json!({"podCIDRs": ["172.16.0.0/30"]});
    bed.change("one", &json!({"spec": {"ipam": ipam}}));
    want(&mut bed, "two", "default", [8, 0]);
    bed.lead();
    bed.until(SOON, "both are served", |bed| {
        blocks(bed, "one").len() == 1 && blocks(bed, "two").len() == 2
    });
    assert_eq!(blocks(&bed, "one"), ["172.16.0.0/30"]);
    assert_eq!(check(&bed), 3);
}

#[test]
fn a_node_on_enis_keeps_its_pod_cidrs_and_nobody_gets_them() {
    let mut settings = Settings::of(CLUSTER);
    settings.pools.migrate_pod_cidrs = true;
    let mut bed = Bed::with(&world(), settings);
    set_pool(&mut bed, "default", &small(&["172.16.0.0/29"]));
    bed.add_node("one", "m5.large", "subnet-a");
    bed.request("one", 8);
    let ipam = json!({"podCIDRs": ["172.16.0.0/30"]});
    bed.change("one", &json!({"spec": {"ipam": ipam}}));
    want(&mut bed, "two", "default", [8, 0]);
    bed.lead();
    bed.until(SOON, "both are served", |bed| {
        bed.shown("one") >= 8 && !blocks(bed, "two").is_empty()
    });
    bed.run(SOON);
    assert_eq!(
        bed.api.objects["one"]["spec"]["ipam"]["podCIDRs"],
        json!(["172.16.0.0/30"])
    );
    let given = blocks(&bed, "one");
    assert!(
        !given.iter().any(|it| it.starts_with("172.16.")),
        "{given:?}"
    );
    assert_eq!(blocks(&bed, "two"), ["172.16.0.4/30"]);
}

#[test]
fn pools_add_up_after_churn_of_nodes_and_leaders() {
    let mut bed = bed();
    set_pool(
        &mut bed,
        "green",
        &small(&["172.16.0.0/22", "172.17.0.0/23"]),
    );
    let nodes: Vec<String> = (0..60).map(|number| format!("n{number}")).collect();
    let mut seed = 30_u32;
    let mut random = |bound: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) % bound
    };
    for round in 0..400 {
        let node = &nodes[usize::try_from(random(60)).unwrap()];
        let is_there = bed.api.objects.contains_key(node);
        match random(10) {
            0 if is_there => bed.api.delete(node, bed.now),
            1..=3 if is_there => {
                let mut kept = blocks(&bed, node);
                kept.pop();
                keep(&mut bed, node, "green", &kept);
                want(&mut bed, node, "green", [4, 0]);
            }
            _ => want(&mut bed, node, "green", [random(24), 0]),
        }
        if round % 80 == 79 {
            bed.kill();
            bed.lead();
        }
        bed.run(Duration::from_millis(u64::from(random(400))));
        check(&bed);
    }
    bed.run(SOON);
    let held = u64::try_from(check(&bed)).unwrap();
    let space = bed.plain_pool("green").ipv4.unwrap();
    assert_eq!((space.blocks, space.taken), (384, held));
    for node in nodes.iter().filter(|it| bed.api.objects.contains_key(*it)) {
        assert_eq!(bed.report(node), "", "{node}");
    }
    for node in &nodes {
        if bed.api.objects.contains_key(node) {
            bed.api.delete(node, bed.now);
        }
    }
    bed.run(SOON);
    assert_eq!(bed.plain_pool("green").ipv4.unwrap().taken, 0);
}

/// Each node has blocks, keeps some beyond the pool's end, or goes before it has any.
#[test]
fn r32_a_pool_adds_up_after_ten_thousand_nodes() {
    let mut bed = bed();
    let spec = |first: &str| small(&[first, "172.17.0.0/24"]);
    set_pool(&mut bed, "green", &spec("172.16.0.0/24"));
    let mut nodes: std::collections::VecDeque<String> = std::collections::VecDeque::new();
    for round in 0..500_u32 {
        for number in 0..20 {
            let name = format!("n{round:03}-{number:02}");
            want(&mut bed, &name, "green", [1 + number % 12, 0]);
            nodes.push_back(name);
        }
        if round % 7 == 0 {
            // Some are gone before the operator has seen them.
            bed.run(Duration::from_millis(60));
            for name in nodes.split_off(nodes.len() - 5) {
                bed.api.delete(&name, bed.now);
            }
        }
        while nodes.len() > 40 {
            let name = nodes.pop_front().unwrap();
            bed.api.delete(&name, bed.now);
        }
        if round % 50 == 20 {
            // The first CIDR is replaced, and its blocks become orphans.
            let first = format!("172.{}.0.0/24", 18 + round / 50);
            set_pool(&mut bed, "green", &spec(&first));
        }
        if round % 25 == 24 {
            bed.kill();
            bed.lead();
        }
        bed.run(Duration::from_millis(1_500));
        let held = check(&bed);
        let pool = bed.plain_pool("green");
        let space = pool.ipv4.unwrap();
        let orphans = pool.orphans.len();
        assert_eq!(
            usize::try_from(space.taken).unwrap() + orphans,
            held,
            "round {round}"
        );
        assert_eq!(space.blocks, 128, "round {round}");
    }
    for name in nodes {
        bed.api.delete(&name, bed.now);
    }
    bed.run(SOON);
    let pool = bed.plain_pool("green");
    assert_eq!((pool.ipv4.unwrap().taken, pool.orphans.len()), (0, 0));
}

#[test]
fn enis_of_another_pool_take_their_part_of_what_a_node_can_have() {
    let mut settings = Settings::of(CLUSTER);
    settings.pools.advertised = true;
    let mut bed = Bed::with(&world(), settings);
    bed.watched.pools = Some(vec![json!({"metadata": {
        "name": "blue", "annotations": {"ipam.towpath.dev/eni-tags": "team=blue"}
    }})]);
    bed.add_node("one", "m5.large", "subnet-a");
    let requested = json!([
        {"pool": "default", "needed": {"ipv4-addrs": 8}},
        {"pool": "blue", "needed": {"ipv4-addrs": 5}}
    ]);
    bed.change(
        "one",
        &json!({"spec": {"ipam": {"pools": {"requested": requested}}}}),
    );
    bed.lead();
    bed.run(SOON * 4);
    let views = bed.fleet.pools(bed.at());
    let blue = views.iter().find(|it| it.name == "blue").unwrap();
    assert_eq!((blue.enis, blue.addresses), (1, 5));
    // 3 ENIs of 9 addresses, less those of the other pool.
    let default = &bed.api.advertised["one"].0["towpath.dev/ipv4-default"];
    assert_eq!(*default, json!("22"));
}

/// Works of the scenario below, with the number of each.
const WORKS: [(&str, u32); 3] = [("metadata", 3), ("pool", 2), ("spec", 4)];

/// Nodes want more blocks than the pool has, give some back, come and go, while a fault hits a leader.
fn contend(planned: Planned) {
    let what = format!("{planned:?}");
    let mut bed = Bed::with(&world(), Settings::of(CLUSTER));
    set_pool(&mut bed, "green", &small(&["172.16.0.0/28"]));
    want(&mut bed, "one", "green", [8, 0]);
    want(&mut bed, "two", "green", [8, 0]);
    want(&mut bed, "three", "green", [4, 0]);
    bed.faults.planned = Some(planned);
    bed.lead();
    let run = |bed: &mut Bed, millis: u64| {
        for _ in 0..millis / 500 {
            bed.run(Duration::from_millis(500));
            check(bed);
            if !bed.lease.is_led {
                // The next leader has to wait for the end of the lease.
                bed.run(Duration::from_secs(17));
                check(bed);
                bed.lead();
            }
        }
    };
    run(&mut bed, 40_000);
    // One node gives a block back, another one goes, and others get these blocks.
    let kept: Vec<_> = blocks(&bed, "one").into_iter().take(1).collect();
    want(&mut bed, "one", "green", [4, 0]);
    keep(&mut bed, "one", "green", &kept);
    run(&mut bed, 40_000);
    bed.api.delete("two", bed.now);
    want(&mut bed, "four", "green", [8, 0]);
    run(&mut bed, 40_000);
    // A call of a dead leader can come ten minutes late.
    run(&mut bed, 640_000);
    assert!(bed.faults.planned.is_none(), "{what}: nothing was hit");
    assert_eq!(check(&bed), 4, "{what}");
    let counts = ["one", "three", "four"].map(|name| blocks(&bed, name).len());
    assert_eq!(counts, [1, 1, 2], "{what}");
    let pool = bed.plain_pool("green");
    assert_eq!(
        (pool.ipv4.unwrap().taken, pool.orphans.len()),
        (4, 0),
        "{what}"
    );
    for name in ["one", "three", "four"] {
        assert_eq!(bed.report(name), "", "{what}: {name}");
    }
}

#[test]
fn every_work_for_plain_pools_hit_by_every_fault_grants_nothing_twice() {
    let late = Fault::Late(Duration::from_mins(10));
    for (what, count) in WORKS {
        for skip in 0..count {
            for fault in Fault::ALL.into_iter().chain([late]) {
                for kills in [false, true] {
                    contend(Planned {
                        what,
                        skip,
                        fault,
                        kills,
                    });
                }
            }
        }
    }
}
