//! Many nodes at once.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::bed::{Bed, node_name};

/// The most memory of an operator, in KiB.
const RESIDENT: u64 = 120 * 1024;
/// The most writes of a node's object.
const WRITES: usize = 3;

#[test]
fn many_nodes_get_addresses_with_few_writes_and_little_memory() {
    let nodes = if std::env::var_os("TOWPATH_FULL").is_some() {
        500
    } else {
        50
    };
    let bed = Bed::create(nodes).unwrap();
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
