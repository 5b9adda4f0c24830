//! Programs are replaced under load: no packet is lost.

use ipam::Family;
use testkit::fabric::state::program_ids;
use testkit::fabric::traffic::Stream;
use testkit::fabric::{Fabric, Place, Spec};

use crate::support::is_full;

/// Replacements of an ordinary run, and of the long form.
const TIMES: usize = 25;
const TIMES_FULL: usize = 100;
/// Packets a second that a stream must have had at least, in each direction.
const RATE: u64 = 5000;

#[test]
fn replacements_lose_no_packet() {
    let times = if is_full() { TIMES_FULL } else { TIMES };
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    let start = |from: Place, to: Place| Stream::start(from, to, RATE + RATE / 10, "udp").unwrap();
    let peer = fabric.peer(Family::V4);
    let streams = [
        start(pod.at(Family::V4), peer),
        start(peer, pod.at(Family::V4)),
        start(pod.at(Family::V6), other.at(Family::V6)),
        start(other.at(Family::V6), pod.at(Family::V6)),
    ];
    let hooks = [
        pod.host_device(),
        other.host_device(),
        "eth0".into(),
        "eth1".into(),
    ];
    let programs = |fabric: &Fabric| {
        hooks
            .clone()
            .map(|device| program_ids(&fabric.node, &device).unwrap())
    };
    let mut last = programs(&fabric);
    for time in 0..times {
        fabric.agent.stop().unwrap();
        assert_eq!(
            programs(&fabric),
            last,
            "{time}: the programs stay while the agent is away"
        );
        fabric.start_agent().unwrap();
        let now = programs(&fabric);
        for (hook, (old, new)) in hooks.iter().zip(last.iter().zip(&now)) {
            assert_eq!(new.len(), 1, "{time}: one program at {hook}");
            assert_ne!(old, new, "{time}: the program at {hook} is a new one");
        }
        last = now;
    }
    for stream in streams {
        let report = stream.finish().unwrap();
        println!("{times} replacements: {report}");
        assert!(report.lost.is_empty(), "{report}");
        assert_eq!(report.refused, None, "{report}");
        assert!(report.rate >= RATE, "{report}");
    }
    fabric.finish().unwrap();
}
