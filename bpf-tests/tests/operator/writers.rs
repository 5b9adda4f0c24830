//! Objects that other controllers write all the time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, NODES, SOON, node_name, world};

/// Writes per second.
const RATE: u32 = 50;
/// Total number of writes, which outlast the test.
const WRITES: u32 = 3_000;
/// Maximum time until a node has its new addresses.
const CONVERGES: Duration = Duration::from_secs(5);

/// Number of writes of the other controller to an object.
fn count(bed: &Bed) -> Result<u32> {
    let node = bed.node(0)?;
    let count = node["metadata"]["annotations"]["count"].as_str();
    count
        .context("nobody has written")?
        .parse()
        .context("count")
}

#[test]
fn a_node_whose_object_is_written_fifty_times_a_second_gets_addresses_in_five_seconds() {
    let mut world = world(1);
    world["settings"] = json!({"lag_listing": [0, 0], "lag_by_id": [0, 0], "unknown": [0, 0]});
    let bed = Bed::of_world(world).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 1).unwrap();
    bed.node_has(0, 1).unwrap();
    let path = format!("{NODES}/{}", node_name(0));
    let patches = (1..=WRITES)
        .map(|number| json!({"metadata": {"annotations": {"count": number.to_string()}}}));
    let admin = bed.plane.server.admin();
    let mut writer = admin.merge_all(&path, patches, RATE, bed.folder()).unwrap();
    let look = || check(count(&bed)? > RATE, || "it has begun".to_owned());
    eventually(SOON, "the writer writes", look).unwrap();
    let mut slowest = Duration::ZERO;
    // Each step is one more address of the primary ENI: one call, and one write of the status.
    for wanted in 2..=9 {
        let begun = Instant::now();
        bed.request(0, wanted).unwrap();
        bed.node_has(0, usize::try_from(wanted).unwrap()).unwrap();
        slowest = slowest.max(begun.elapsed());
    }
    let written = count(&bed).unwrap();
    assert!(writer.try_wait().unwrap().is_none(), "the writer has ended");
    writer.kill().unwrap();
    writer.wait().unwrap();
    println!("{written} writes by another; the slowest addresses came after {slowest:?}");
    assert!(slowest <= CONVERGES, "{slowest:?}");
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}
