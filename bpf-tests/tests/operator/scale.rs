//! Many nodes at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Result, anyhow};
use ec2_fake::{Ask, Call, Create, Logged, Request};
use serde_json::json;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, SOON, node_name, world};

/// The most memory of an operator, in KiB.
const RESIDENT: u64 = 120 * 1024;
/// The most writes of a node's object.
const WRITES: usize = 3;
/// ENIs of others in the VPC of the nodes.
const FOREIGN: usize = 4_000;
const FULL_FOREIGN: usize = 20_000;
/// ENIs of a page, as the operator requests by default.
const PAGE: usize = 500;
/// The most memory that a listing of them takes, in KiB: a few pages at a time, however many.
const LISTING: u64 = 40 * 1024;

#[test]
fn many_nodes_get_addresses_with_few_writes_and_little_memory() {
    let nodes = if std::env::var_os("TOWPATH_FULL").is_some() {
        500
    } else {
        50
    };
    // The subnet has room for all addresses: a node that gets some elsewhere has one more write.
    let mut world = world(nodes);
    world["subnets"][0]["ipv4"] = json!("10.0.128.0/17");
    let bed = Bed::of_world(world).unwrap();
    let operator = bed.start(0, &json!({"log-level": "info"})).unwrap();
    for number in 0..nodes {
        bed.add_node(number, 8).unwrap();
    }
    let started = Instant::now();
    for number in 0..nodes {
        bed.node_has(number, 8).unwrap();
    }
    println!("{nodes} nodes have addresses after {:?}", started.elapsed());
    let writes = writes(&bed).unwrap();
    println!("{writes} writes of CiliumNodes");
    assert!(writes <= WRITES * nodes, "{writes} writes of {nodes} nodes");
    let resident = operator.resident().unwrap();
    println!("{resident} KiB resident");
    assert!(resident <= RESIDENT, "{resident} KiB");
    let throttled = bed.cloud.peek(|cloud| {
        let throttled = cloud
            .log()
            .filter(|it| it.error.as_deref() == Some("RequestLimitExceeded"));
        throttled.count()
    });
    let calls = bed.cloud.peek(|cloud| cloud.log().count());
    println!("{calls} calls of EC2, {throttled} throttled");
    assert!(
        throttled * 100 <= calls,
        "{throttled} of {calls} calls are throttled"
    );
    assert!(
        operator
            .ask("nodes")
            .unwrap()
            .contains(&node_name(nodes - 1))
    );
    bed.finish().unwrap();
}

/// Patches of `CiliumNode` objects, by the API server's own count.
fn writes(bed: &Bed) -> Result<usize> {
    let metrics = bed.kubectl(&["get", "--raw", "/metrics"])?;
    let is_write = |line: &&str| {
        line.starts_with("apiserver_request_total")
            && line.contains("resource=\"ciliumnodes\"")
            && line.contains("verb=\"PATCH\"")
    };
    let counts = metrics.lines().filter(is_write);
    let counts = counts.filter_map(|line| line.rsplit(' ').next());
    counts.map(|count| Ok(count.parse::<usize>()?)).sum()
}

/// Other users of the account create ENIs in a subnet.
fn crowd(bed: &Bed, subnet: &str, count: usize) -> Result<()> {
    let tags = ["Name", "owner", "environment"].map(|key| (key.to_owned(), "others".to_owned()));
    let create = Create {
        subnet: subnet.to_owned(),
        description: "an interface of another service".to_owned(),
        ipv4: Ask {
            count: 2,
            ..Ask::default()
        },
        tags: tags.into(),
        ..Create::default()
    };
    let request = Request {
        call: Call::Create(Box::new(create)),
        dry_run: false,
    };
    bed.cloud.with(|cloud, now| {
        for _ in 0..count {
            let answer = cloud.call(now, "others", &request).outcome;
            answer.map_err(|error| anyhow!("create an ENI of others: {error:?}"))?;
        }
        Ok(())
    })
}

/// Reads of ENIs so far, failed ones too, and the listings of all pages among them by their sizes.
///
/// A listing has full pages and a last one with less. Reads of single ENIs are a page with less, and
/// may come between the pages of a listing.
fn listings(bed: &Bed) -> (usize, Vec<usize>) {
    bed.cloud.peek(|cloud| {
        let is_read = |it: &&Logged| it.action == "DescribeNetworkInterfaces";
        let pages = cloud
            .log()
            .filter(is_read)
            .filter_map(|it| it.page.as_ref());
        let (mut tokens, mut listings) = (BTreeSet::new(), Vec::new());
        for page in pages {
            let is_full = page.items == PAGE;
            if page.token.is_none() && is_full {
                tokens.clear();
            }
            if is_full || page.token.is_some() {
                // A page without an answer is read again.
                tokens.insert(&page.token);
            }
            if page.token.is_some() && !is_full {
                listings.push(tokens.len());
            }
        }
        (cloud.log().filter(is_read).count(), listings)
    })
}

/// The failed calls of EC2 so far, by action and error.
fn failures(bed: &Bed) -> String {
    bed.cloud.peek(|cloud| {
        let mut counts = BTreeMap::<_, usize>::new();
        let failed = cloud
            .log()
            .filter_map(|it| Some((it.action, it.error.clone()?)));
        failed.for_each(|failure| *counts.entry(failure).or_default() += 1);
        format!("failed: {counts:?}")
    })
}

#[test]
fn thousands_of_enis_of_the_vpc_are_listed_in_pages_and_in_little_memory() {
    let is_full = std::env::var_os("TOWPATH_FULL").is_some();
    let foreign = if is_full { FULL_FOREIGN } else { FOREIGN };
    let mut world = world(1);
    world["settings"] = json!({"interface_quota": 100_000, "throttle": false});
    world["vpcs"] = json!([
        {"id": "vpc-1", "cidrs": ["10.0.0.0/8"]}, {"id": "vpc-2", "cidrs": ["10.0.0.0/8"]}
    ]);
    for (id, vpc) in [("subnet-8", "vpc-1"), ("subnet-9", "vpc-2")] {
        let subnet = json!({"id": id, "vpc": vpc, "zone": "a", "ipv4": "10.64.0.0/12"});
        world["subnets"].as_array_mut().unwrap().push(subnet);
    }
    let bed = Bed::of_world(world).unwrap();
    let operator = bed.start(0, &json!({"log-level": "info"})).unwrap();
    bed.add_node(0, 8).unwrap();
    bed.node_has(0, 8).unwrap();
    crowd(&bed, "subnet-8", foreign).unwrap();
    crowd(&bed, "subnet-9", 2_000).unwrap();
    let ((before, listed), memory) = (listings(&bed), operator.peak().unwrap());
    // The last page is that of the one ENI of the node.
    let pages = foreign / PAGE + 1;
    let look = || {
        let (calls, listings) = listings(&bed);
        // One that began before has less.
        let is_read = listings.iter().skip(listed.len()).any(|it| *it >= pages);
        check(is_read, || format!("{calls} calls, {listings:?} pages"))
    };
    eventually(2 * SOON, "all pages are read", look).unwrap();
    // A node that is served afterwards shows that the listing was taken in.
    bed.request(0, 9).unwrap();
    bed.node_has(0, 9).unwrap();
    let (calls, listings) = listings(&bed);
    let taken = operator.peak().unwrap() - memory;
    let made = calls - before;
    println!("{made} reads, {listings:?} pages, {taken} KiB more at most");
    assert!(
        made < pages + 4,
        "{made} reads, {listings:?} pages, {}",
        failures(&bed)
    );
    let is_of_the_vpc = listings.iter().all(|it| *it <= pages);
    assert!(is_of_the_vpc, "{listings:?} pages, some of the other VPC");
    assert!(taken <= LISTING, "{taken} KiB");
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}
