//! Many pods of containerd at once: each has its own addresses of the right pool, reaches all ends,
//! and leaves no leftovers.

use std::collections::BTreeSet;
use std::time::Instant;

use ipam::Family;
use testkit::cri::{Bed, Containerd, Plugins, PodRequest, Sandbox, Setup};
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::Protocol;

use crate::census::{Census, exactly};
use crate::scene::{BLUE, Reach, Scene};
use crate::table::Times;

/// One pod in this many is of the pool `blue`, which has 48 addresses.
const BLUE_EVERY: usize = 4;
/// Pods at once.
const BURSTS: [usize; 3] = [1, 30, 100];

fn start(scene: &Scene, containerd: Containerd, plugins: Plugins, version: &str) -> Bed {
    let of = |pool| {
        let mut network = scene.network(version, Vec::new()).unwrap();
        network.plugins = vec![scene.entry(pool)];
        network.list()
    };
    let setup = Setup {
        containerd,
        plugins,
        own_plugins: scene.own_plugins(),
        networks: &[("runc", of(None)), (BLUE, of(Some(BLUE)))],
    };
    Bed::start(&scene.fabric, &setup).unwrap()
}

fn request(number: usize) -> PodRequest {
    let mut request = PodRequest::new(&format!("pod{number}"));
    if number % BLUE_EVERY == BLUE_EVERY - 1 {
        BLUE.clone_into(&mut request.handler);
    }
    request
}

/// Runs pods at once, checks each, removes them at once.
fn burst(scene: &Scene, bed: &Bed, count: usize, rows: &mut Vec<String>) {
    let requests: Vec<_> = (0..count).map(request).collect();
    let start = Instant::now();
    let pods = bed.cri.run_pods(&requests);
    let wall = start.elapsed();
    let pods: Vec<Sandbox> = pods.into_iter().map(Result::unwrap).collect();
    rows.push(Times::of(pods.iter().map(|pod| pod.took)).row(&format!("{count} at once: run")));
    println!("{count} pods at once ran after {:.2} s", wall.as_secs_f64());

    let mut seen = BTreeSet::new();
    for (request, pod) in requests.iter().zip(&pods) {
        let families: BTreeSet<_> = pod.addresses.iter().map(|ip| Family::of(*ip)).collect();
        assert_eq!(families.len(), Family::ALL.len(), "{:?}", pod.addresses);
        for address in &pod.addresses {
            assert!(seen.insert(*address), "{address} twice");
            let is_blue = scene.owner(*address).unwrap() == 2;
            assert_eq!(
                is_blue,
                request.handler == BLUE,
                "{address} of {}",
                request.name
            );
        }
    }
    let ids: Vec<_> = pods.iter().map(|pod| pod.id.as_str()).collect();
    exactly(scene, &ids).unwrap();
    let reach: Vec<_> = pods
        .iter()
        .map(|pod| Reach::new(&pod.netns, &pod.addresses).unwrap())
        .collect();
    let fabric = &scene.fabric;
    let others = reach.iter().skip(1).chain(reach.first());
    for (pod, other) in reach.iter().zip(others) {
        pod.talk(&[Protocol::Tcp], |family| {
            Ok(fabric.host(Host::Outside, family))
        })
        .unwrap();
        pod.talk(&[Protocol::Udp], |family| Ok(fabric.peer(family)))
            .unwrap();
        if count > 1 {
            pod.talk(&[Protocol::Udp], |family| other.at(family))
                .unwrap();
        }
    }
    from_inside(scene, bed, &pods[count - 1]);

    let stopped = bed.cri.stop_pods(&pods).into_iter().map(Result::unwrap);
    rows.push(Times::of(stopped).row(&format!("{count} at once: stop")));
    let removed = bed.cri.remove_pods(&pods).into_iter().map(Result::unwrap);
    rows.push(Times::of(removed).row(&format!("{count} at once: remove")));
    assert!(bed.cri.known_pods().unwrap().is_empty());
}

/// Checks the destinations that a program in a container reaches.
fn from_inside(scene: &Scene, bed: &Bed, pod: &Sandbox) {
    let container = bed.cri.start_container(pod).unwrap();
    for host in Host::ALL {
        for (family, ping) in [(Family::V4, "ping"), (Family::V6, "ping6")] {
            let address = scene.fabric.host(host, family).address.to_string();
            let answer = bed
                .cri
                .exec(&container, &[ping, "-c", "1", "-W", "3", &address])
                .unwrap();
            assert_eq!(answer.code, 0, "{ping} {address}: {}", answer.text);
        }
    }
}

fn bursts(containerd: Containerd, plugins: Plugins, version: &str, counts: &[usize]) {
    let scene = Scene::ready().unwrap();
    let census = Census::of_empty(&scene).unwrap();
    let bed = start(&scene, containerd, plugins, version);
    let mut rows = vec![Times::header()];
    for count in counts {
        burst(&scene, &bed, *count, &mut rows);
        census.nothing_left(&scene).unwrap();
    }
    println!("{containerd:?}, CNI {version}\n{}", rows.join("\n"));
    drop(bed);
    scene.fabric.finish().unwrap();
}

#[test]
fn containerd_1_runs_1_30_and_100_pods_at_once() {
    bursts(Containerd::One, Plugins::Old, "1.0.0", &BURSTS);
}

#[test]
fn containerd_2_runs_30_pods_at_once() {
    bursts(Containerd::Two, Plugins::New, "1.1.0", &[30]);
}
