//! Cost of `datapath.path: stack`: both paths side by side, in one run on one machine. Figures are
//! shown and not judged, because those of a shared machine mean little.

use std::time::{Duration, Instant};

use ipam::Family;
use serde_json::json;
use testkit::fabric::Place;
use testkit::fabric::traffic::{Asker, Echo};

use crate::masq::scene;
use crate::masq_tools::{Iperf, iperf};

/// Measurements of each path, alternating.
const ROUNDS: usize = 3;

/// Measures something between two places.
type Measure = fn(Place, Place) -> f64;

/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(1);

/// Bits a second of one TCP connection.
fn stream(from: Place, to: Place) -> f64 {
    let report = iperf(from, to, &["-t", "1"]);
    report["sum_received"]["bits_per_second"].as_f64().unwrap()
}

/// Small datagrams a second that are sent and returned, one after the other.
fn round_trips(from: Place, to: Place) -> f64 {
    let server = Echo::telling(to, 0).unwrap();
    let asker = Asker::open(from, 0, server.address()).unwrap();
    let (start, mut answers) = (Instant::now(), 0_u32);
    while start.elapsed() < TIME {
        asker.ask(7).unwrap();
        answers += 1;
    }
    f64::from(answers) / start.elapsed().as_secs_f64()
}

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
    let measures: [(_, Measure); 2] = [("TCP, bit/s", stream), ("UDP, round trips/s", round_trips)];
    for (what, measure) in measures {
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for ((scene, (peer, _)), figures) in scenes.iter().zip(&peers).zip(&mut figures) {
                figures.push(measure(scene.1[1].at(Family::V4), *peer));
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
