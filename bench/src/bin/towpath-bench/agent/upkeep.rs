//! Cost of the agent without requests: memory, CPU at rest and while flows expire.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ipam::Family;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::fabric::Place;
use testkit::fabric::traffic::Stream;
use testkit::fabric::world::Site;

use super::figures::{against, mebibytes, millis, row};
use super::flows::Flows;
use super::scene::{Scene, Size};
use super::{memory, process, rest};
use crate::report::{Row, Unit};

/// Target for the agent's resident memory, in mebibytes.
const RESIDENT: f64 = 20.0;
/// Target for the maps' memory with all IPv4 flows in use, in mebibytes.
const FLOWS: f64 = 64.0;
/// Packets a second of each stream while memory is read.
const RATE: u64 = 1000;
/// Duration of traffic before memory is read.
const TRAFFIC: Duration = Duration::from_secs(2);
/// Longer than the lifetime of a UDP flow without answers, which is 30 seconds.
const IDLE: Duration = Duration::from_secs(40);
/// The default capacity of the map.
const CAPACITY: u32 = datapath_common::abi::DEFAULT_FLOWS_V4;
/// Entries of the map that traffic may use.
const OTHERS: u32 = 64;
/// The time that flows may take to expire: a sweep is due every ten seconds.
const DEADLINE: Duration = Duration::from_mins(1);

pub(super) fn measure(scene: &mut Scene, size: &Size) -> Result<Vec<Row>> {
    let mut rows = with_traffic(scene)?;
    let (share, at_rest) = rest::measure(scene, size, scene.pods.len())?;
    rows.extend(at_rest);
    rows.extend(expiring(scene, size, share)?);
    Ok(rows)
}

/// Memory while pods communicate with the VPC and with the world.
fn with_traffic(scene: &Scene) -> Result<Vec<Row>> {
    let fabric = &scene.fabric;
    let mut streams = Vec::new();
    for pod in scene.pods.iter().take(4) {
        for family in Family::ALL {
            let to = [
                fabric.peer(family),
                fabric.world()?.at(Site::Internet, family),
            ];
            for to in to {
                let from: Place<'_> = pod.at(family);
                streams.push(Stream::start(from, to, RATE, "udp")?);
            }
        }
    }
    thread::sleep(TRAFFIC);
    let used = process::memory(scene.agent()?)?;
    for stream in streams {
        let report = stream.finish()?;
        if report.received == 0 {
            bail!("traffic does not run: {report}");
        }
    }
    let named = |name: &str, bytes| {
        let name = format!("agent {name}, {} endpoints, traffic", scene.pods.len());
        row(name, mebibytes(bytes), Unit::Mebibytes)
    };
    Ok(vec![
        against(RESIDENT, named("resident", used.resident)),
        named("resident, shared pages divided", used.proportional),
        named("resident, of no file", used.anonymous),
        named("resident at most since start", used.peak),
    ])
}

/// Fills the map of flows while the agent is stopped, reads the memory for that, and waits until
/// most of them have expired. `rest` is the share of a CPU that the agent needs anyway.
fn expiring(scene: &Scene, size: &Size, rest: f64) -> Result<Vec<Row>> {
    let agent = scene.agent()?;
    let pid = Pid::from_raw(i32::try_from(agent)?);
    let mut flows = Flows::open(scene)?;
    // The entry of a fresh flow shows the current time.
    let site = scene.fabric.world()?.at(Site::Internet, Family::V4);
    let from = scene.pods[0].at(Family::V4);
    Stream::start(from, site, RATE, "udp")?.finish()?;
    let now = flows.now()?;
    kill(pid, Signal::SIGSTOP)?;
    let filled = (|| -> Result<_> {
        let (kernel, empty) = (memory::kernel()?, flows.memory()?);
        let fresh = CAPACITY - size.expiring - OTHERS;
        flows.preload(0..fresh, now, Duration::ZERO)?;
        let left = flows.memory()?;
        flows.preload(fresh..fresh + size.expiring, now, IDLE)?;
        let grown = memory::kernel()?.saturating_sub(kernel);
        Ok((memory::maps(scene)?, grown, flows.memory()? - empty, left))
    })();
    let before = process::cpu_time(agent)?;
    let start = Instant::now();
    kill(pid, Signal::SIGCONT)?;
    let (maps, grown, counted, left) = filled?;
    let took = removal(&flows, left, start)?;
    let used = process::cpu_time(agent)?.saturating_sub(before);
    let used = used.saturating_sub(start.elapsed().mul_f64(rest));
    let maps = row(
        format!("BPF maps, {CAPACITY} IPv4 flows"),
        mebibytes(maps),
        Unit::Mebibytes,
    );
    Ok(vec![
        against(FLOWS, maps),
        row(
            "of that the flows' entries",
            mebibytes(counted),
            Unit::Mebibytes,
        ),
        row(
            "growth of the kernel's memory by them",
            mebibytes(grown),
            Unit::Mebibytes,
        ),
        row(
            format!("CPU time to expire {} flows", size.expiring),
            millis(used),
            Unit::Milliseconds,
        ),
        row(
            format!("time to remove {} expired flows", size.expiring),
            millis(took),
            Unit::Milliseconds,
        ),
    ])
}

/// Waits until no more memory than `left` is in use. Returns the time from the first removal on.
fn removal(flows: &Flows, left: u64, start: Instant) -> Result<Duration> {
    let full = flows.memory()?;
    let mut began = None;
    while flows.memory()? > left {
        if began.is_none() && flows.memory()? < full {
            began = Some(Instant::now());
        }
        if start.elapsed() > DEADLINE {
            bail!("flows do not expire");
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(began.map(|began| began.elapsed()).unwrap_or_default())
}
