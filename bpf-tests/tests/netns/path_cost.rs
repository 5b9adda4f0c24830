//! What `datapath.path: stack` costs: both ways side by side, in one run on one machine. Figures are
//! shown and never judged, for a shared machine's are worth little by themselves.

use serde_json::json;
use towpath::intent::Family;

use crate::masq::scene;
use crate::masq_tools::{Iperf, iperf};

/// Measurements of each path, one after the other in turn.
const ROUNDS: usize = 3;

/// What is measured: what it is called, iperf3's options, and the figure in its report.
const MEASURES: [(&str, &[&str], &str); 2] = [
    ("TCP, bit/s", &["-t", "1"], "/sum_received/bits_per_second"),
    // Small packets as fast as they can be sent: what arrives is what the path carries.
    (
        "UDP of 64 bytes, packets/s",
        &["-u", "-b", "0", "-l", "64", "-w", "2M", "-t", "1"],
        "/sum/packets",
    ),
];

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[test]
fn both_paths_side_by_side() {
    let paths = ["direct", "stack"];
    let scenes = paths.map(|path| scene(json!({"datapath": {"path": path}})));
    let peers = scenes.each_ref().map(|(fabric, _)| {
        let peer = fabric.peer(Family::V4);
        (peer, Iperf::start(peer))
    });
    for (what, options, figure) in MEASURES {
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for ((scene, (peer, _)), figures) in scenes.iter().zip(&peers).zip(&mut figures) {
                let report = iperf(scene.1[1].at(Family::V4), *peer, options);
                let lost = report["sum"]["lost_packets"].as_f64().unwrap_or(0.0);
                let sent = report.pointer(figure).and_then(|value| value.as_f64());
                figures.push(sent.unwrap() - lost);
            }
        }
        let [direct, stack] = figures.map(median);
        assert!(direct > 0.0 && stack > 0.0, "{what}");
        println!(
            "{what}: direct {direct:.0}, stack {stack:.0}: {:.2} of direct",
            stack / direct
        );
    }
    for (fabric, _) in scenes {
        fabric.finish().unwrap();
    }
}
