//! The agent: latencies, start, repair, memory, CPU, loading.
//!
//! A real process in the node's namespace of a fabric, asked over its socket. Its endpoints are real
//! pods, because their devices are what an add takes its time for.

pub(crate) mod figures;
mod floor;
mod flows;
mod latency;
mod lifecycle;
mod loading;
mod memory;
mod process;
mod scene;
mod upkeep;

use anyhow::Result;

use crate::options::Options;
use crate::report::Row;
use scene::{Scene, Size};

/// Measures the agent.
///
/// # Errors
/// When the fabric cannot be made, the agent refuses something, or a packet left by the wrong ENI.
pub(crate) fn measure(options: &Options) -> Result<Vec<Row>> {
    measure_with(if options.quick {
        &Size::QUICK
    } else {
        &Size::FULL
    })
}

fn measure_with(size: &Size) -> Result<Vec<Row>> {
    let mut rows = loading::measure(size)?;
    rows.extend(floor::measure(size)?);
    let mut scene = Scene::set(size)?;
    rows.extend(memory::at_rest(&scene)?);
    rows.extend(latency::measure(&scene, size)?);
    scene.fill()?;
    rows.extend(lifecycle::measure(&mut scene, size)?);
    rows.extend(upkeep::measure(&mut scene, size)?);
    scene.finish()?;
    Ok(rows)
}

#[cfg(test)]
mod tests;
