//! Nodes that want addresses.

use serde_json::json;
use testkit::cloud::audit::published;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, SOON};

#[test]
fn a_node_gets_addresses_as_its_demand_grows() {
    let bed = Bed::create(2).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 8).unwrap();
    let node = bed.node_has(0, 8).unwrap();
    let before: Vec<_> = published(&node);
    // An ENI of m5.large gives 9 addresses: the next one comes from another ENI.
    bed.request(0, 20).unwrap();
    let node = bed.node_has(0, 20).unwrap();
    let after = published(&node);
    assert!(
        before.iter().all(|it| after.contains(it)),
        "{before:?} {after:?}"
    );
    assert!(node["status"]["eni"]["enis"].as_object().unwrap().len() >= 3);
    bed.add_node(1, 8).unwrap();
    bed.node_has(1, 8).unwrap();
    let shown = operator.ask("nodes").unwrap();
    assert!(
        shown.contains("node-0") && shown.contains("node-1"),
        "{shown}"
    );
    for path in ["/healthz", "/readyz"] {
        let answer = operator.probe(path).unwrap();
        assert_eq!(answer, (200, "ok".to_owned()), "{path}");
    }
    let metrics = operator.get("/metrics").unwrap();
    assert!(metrics.contains("towpath_operator_leader 1"), "{metrics}");
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}

#[test]
fn a_node_that_can_have_no_more_says_so() {
    let bed = Bed::create(1).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    // m5.large: 3 ENIs of 9 addresses.
    bed.add_node(0, 40).unwrap();
    bed.node_has(0, 27).unwrap();
    let look = || {
        let node = bed.node(0)?;
        let error = node["status"]["ipam"]["operator-status"]["error"].to_string();
        check(error.contains("AtCapacity"), || error)
    };
    eventually(SOON, "the status says so", look).unwrap();
    let why = operator.ask("why node-0").unwrap();
    assert!(why.contains("AtCapacity"), "{why}");
    bed.finish().unwrap();
}
