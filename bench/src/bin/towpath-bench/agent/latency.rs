//! Durations of adding and deleting endpoints over the socket.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use testkit::fabric::Pod;

use super::figures::{against, median_row, millis, quantile, row};
use super::scene::{Scene, Size};
use crate::report::{Row, Unit};

/// Target for the median of single adds, in milliseconds.
const SERIAL: f64 = 8.0;
/// Target for the slowest add in a burst of [`SMALL`], in milliseconds.
const BURST: f64 = 60.0;
/// The burst that has a target.
const SMALL: usize = 30;

pub(super) fn measure(scene: &Scene, size: &Size) -> Result<Vec<Row>> {
    let mut rows = serial(scene, size, "no others")?;
    for &(pods, rounds) in size.bursts {
        rows.extend(bursts(scene, pods, rounds)?);
    }
    // All but one of the pods stay, as on a node that is nearly full.
    let (one, others) = scene.pods.split_first().context("a pod")?;
    burst(scene, others, add)?;
    rows.extend(again(scene, one, size.serial, others.len())?);
    burst(scene, others, delete)?;
    Ok(rows)
}

/// Adds pod after pod, then deletes pod after pod.
fn serial(scene: &Scene, size: &Size, beside: &str) -> Result<Vec<Row>> {
    let (mut adds, mut deletes) = (Vec::new(), Vec::new());
    let pods: Vec<_> = scene.pods.iter().cycle().take(size.serial).collect();
    // No more than a node's usual number of pods at a time.
    for pods in pods.chunks(SMALL) {
        for pod in pods {
            adds.push(timed(|| add(scene, pod))?);
        }
        for pod in pods {
            deletes.push(timed(|| delete(scene, pod))?);
        }
    }
    Ok(serial_rows(&adds, &deletes, beside))
}

/// Adds and deletes one pod while others exist.
fn again(scene: &Scene, pod: &Pod, times: usize, others: usize) -> Result<Vec<Row>> {
    let (mut adds, mut deletes) = (Vec::new(), Vec::new());
    for _ in 0..times {
        adds.push(timed(|| add(scene, pod))?);
        deletes.push(timed(|| delete(scene, pod))?);
    }
    Ok(serial_rows(&adds, &deletes, &format!("{others} others")))
}

fn serial_rows(adds: &[f64], deletes: &[f64], beside: &str) -> Vec<Row> {
    let p99 = |what, samples| {
        let name = format!("endpoint {what}, serial p99, {beside}");
        row(name, quantile(samples, 0.99), Unit::Milliseconds)
    };
    let p50 = |what, samples| {
        let name = format!("endpoint {what}, serial p50, {beside}");
        median_row(name, samples, Unit::Milliseconds)
    };
    vec![
        against(SERIAL, p50("add", adds)),
        p99("add", adds),
        p50("delete", deletes),
        p99("delete", deletes),
    ]
}

/// Medians over several bursts of a number of pods.
fn bursts(scene: &Scene, pods: usize, rounds: usize) -> Result<Vec<Row>> {
    let pods = scene.pods.get(..pods).context("enough pods")?;
    let mut rows = Vec::new();
    let (mut adds, mut deletes) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        adds.push(burst(scene, pods, add)?);
        deletes.push(burst(scene, pods, delete)?);
    }
    for (what, rounds) in [("add", &adds), ("delete", &deletes)] {
        let figure = |name: &str, of: &dyn Fn(&Burst) -> f64| {
            let samples: Vec<_> = rounds.iter().map(of).collect();
            let name = format!("endpoint {what}, burst of {} {name}", pods.len());
            median_row(name, &samples, Unit::Milliseconds)
        };
        rows.push(figure("p50", &|burst| quantile(&burst.each, 0.5)));
        let slowest = figure("p99", &|burst| quantile(&burst.each, 0.99));
        rows.push(match (what, pods.len()) {
            ("add", SMALL) => against(BURST, slowest),
            _other => slowest,
        });
        rows.push(figure("whole", &|burst| burst.whole));
    }
    Ok(rows)
}

/// Durations of a burst, in milliseconds.
struct Burst {
    each: Vec<f64>,
    whole: f64,
}

/// Sends the requests for all pods at the same time, each by a connection of its own.
fn burst(
    scene: &Scene,
    pods: &[Arc<Pod>],
    ask: impl Fn(&Scene, &Pod) -> Result<()> + Sync,
) -> Result<Burst> {
    let barrier = Barrier::new(pods.len() + 1);
    let (ask, barrier) = (&ask, &barrier);
    thread::scope(|scope| {
        let callers: Vec<_> = pods
            .iter()
            .map(|pod| {
                scope.spawn(move || {
                    barrier.wait();
                    timed(|| ask(scene, pod))
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let each = callers.into_iter().map(|caller| {
            let answer = caller.join();
            answer.map_err(|_panic| anyhow!("a caller panicked"))?
        });
        let each = each.collect::<Result<_>>()?;
        Ok(Burst {
            each,
            whole: millis(start.elapsed()),
        })
    })
}

fn add(scene: &Scene, pod: &Pod) -> Result<()> {
    scene.fabric.add_endpoint(pod).map(drop)
}

fn delete(scene: &Scene, pod: &Pod) -> Result<()> {
    scene.fabric.delete_endpoint(pod)
}

/// Duration of some work, in milliseconds.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    let took: Duration = start.elapsed();
    Ok(millis(took))
}
