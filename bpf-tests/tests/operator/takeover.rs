//! One operator works; another one takes over.

use std::time::Duration;

use serde_json::json;

use super::bed::Bed;

#[test]
fn another_operator_takes_over_when_the_leader_is_killed_or_ends() {
    let bed = Bed::create(3).unwrap();
    let first = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 8).unwrap();
    bed.node_has(0, 8).unwrap();
    let second = bed.start(1, &json!({})).unwrap();
    first.kill().unwrap();
    let killed = std::time::Instant::now();
    bed.add_node(1, 8).unwrap();
    bed.node_has(1, 8).unwrap();
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
    let third = bed.start(2, &json!({})).unwrap();
    assert!(second.stop().unwrap());
    let ended = std::time::Instant::now();
    bed.add_node(2, 8).unwrap();
    bed.node_has(2, 8).unwrap();
    // The Lease was released, so that no operator waits for its expiry.
    let took = ended.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    drop(third);
    bed.finish().unwrap();
}
