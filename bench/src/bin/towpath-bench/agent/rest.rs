//! CPU and wakeups of the agent while nothing happens.

use std::thread;
use std::time::Instant;

use anyhow::Result;

use super::figures::{against, row};
use super::process;
use super::scene::{Scene, Size};
use crate::report::{Row, Unit};

/// The share of a CPU that the agent may take with all endpoints, in percent.
const SHARE: f64 = 0.3;

/// Watches an agent that knows so many endpoints. Returns its share of a CPU with the rows.
pub(super) fn measure(scene: &Scene, size: &Size, endpoints: usize) -> Result<(f64, Vec<Row>)> {
    let agent = scene.agent()?;
    let (cpu, wakeups) = (process::cpu_time(agent)?, process::wakeups(agent)?);
    let start = Instant::now();
    thread::sleep(size.rest);
    let time = start.elapsed().as_secs_f64();
    let used = process::cpu_time(agent)?.saturating_sub(cpu);
    let woken = process::wakeups(agent)?.saturating_sub(wakeups);
    let share = used.as_secs_f64() / time;
    let named = |what: &str| format!("{what} at rest, {endpoints} endpoints");
    let cpu = row(named("CPU"), share * 100.0, Unit::Percent);
    let cpu = if endpoints == size.endpoints {
        against(SHARE, cpu)
    } else {
        cpu
    };
    let wakeups = f64::from(u32::try_from(woken)?) / time;
    Ok((
        share,
        vec![cpu, row(named("wakeups"), wakeups, Unit::PerSecond)],
    ))
}
