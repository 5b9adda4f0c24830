//! Operators that are killed at random moments, in a cloud that loses answers.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use bpf_tests::random::Random;
use serde_json::json;

use super::bed::Bed;

/// Nodes.
const NODES: usize = 4;

#[test]
fn kills_at_any_moment_leave_no_eni_and_no_address_of_two_nodes() {
    let rounds = if std::env::var_os("TOWPATH_FULL").is_some() {
        1000
    } else {
        15
    };
    let bed = Bed::create(NODES).unwrap();
    for number in 0..NODES {
        bed.add_node(number, 8).unwrap();
    }
    let mut random = Random::new(29);
    for round in 0..rounds {
        let operator = bed.start(0, &json!({"log-level": "info"})).unwrap();
        let node = random.below(NODES);
        bed.request(node, 8 + u32::try_from(random.below(20)).unwrap())
            .unwrap();
        lose_an_answer(&bed, &mut random).unwrap();
        // The moment of the kill varies; the test waits for no event.
        let moment = 300 + 100 * u64::try_from(random.below(30)).unwrap();
        thread::sleep(Duration::from_millis(moment));
        operator.kill().unwrap();
        bed.free_lease().unwrap();
        println!("round {round}: killed after {moment} ms");
    }
    let operator = bed.start(0, &json!({"log-level": "info"})).unwrap();
    for number in 0..NODES {
        bed.request(number, 27).unwrap();
    }
    for number in 0..NODES {
        bed.node_has(number, 27).unwrap();
    }
    bed.finish().unwrap();
    drop(operator);
}

/// Makes the cloud lose the answer to one of the next calls of an action.
fn lose_an_answer(bed: &Bed, random: &mut Random) -> Result<()> {
    let actions = [
        "CreateNetworkInterface",
        "AttachNetworkInterface",
        "AssignPrivateIpAddresses",
        "ModifyNetworkInterfaceAttribute",
    ];
    let action = actions[random.below(actions.len())];
    let fault = json!({"action": action, "skip": random.below(2), "kind": "answer-lost"});
    let fault = serde_json::from_value(fault)?;
    bed.cloud.with(|cloud, _| cloud.plant(fault));
    Ok(())
}
