//! A change of the packet mark's mask by the configuration, under traffic that the stack forwards
//! by the mark.

use std::time::{Duration, Instant};

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::traffic::Stream;
use testkit::fabric::{Fabric, Spec};

use crate::support::{CHANGE, End, PEER, carry_all, count, nothing_differs, within};

/// Masks that share no bit.
const MASKS: [&str; 2] = ["0x003f0000", "0xff000000"];
/// Least number of changes of the mask: the moments between are short.
const TIMES: usize = 8;
/// Least duration of the changes, so that more packets pass than are sent in a second.
const LONG: Duration = Duration::from_millis(1500);
/// Packets a second of each stream.
const RATE: u64 = 4000;

fn settings(mask: &str) -> Value {
    json!({"datapath": {"mark-mask": mask}})
}

#[test]
fn a_mark_can_be_moved_under_what_the_stack_forwards() {
    let spec = Spec {
        settings: settings(MASKS[1]),
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let (from, to) = (pod.at(Family::V4), fabric.peer(Family::V4));
    let stream = Stream::start_by_stack(from, to, RATE, "udp").unwrap();
    let path = fabric.agent.config_path();
    let began = Instant::now();
    for (times, mask) in MASKS.iter().cycle().enumerate() {
        if times >= TIMES && began.elapsed() > LONG {
            break;
        }
        fabric.agent.stop().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["datapath"]["mark-mask"] = json!(mask);
        std::fs::write(&path, config.to_string()).unwrap();
        fabric.start_agent().unwrap();
        within(CHANGE, "the mask is in force", || nothing_differs(&fabric));
    }
    let report = stream.finish().unwrap();
    println!("{report}");
    assert!(report.lost.is_empty() && report.sent > RATE, "{report}");
    assert!(count(&fabric, "from_endpoint", "ip-options") >= report.sent);
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.finish().unwrap();
}
